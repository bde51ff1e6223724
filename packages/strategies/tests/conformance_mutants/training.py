"""Mutants in gradients and updates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from strategies_in_threads import InThreads, OnCPU, Scaling, gradients
from torch import Tensor, nn
from torch.optim import Optimizer


class AveragesNothing(InThreads):
    def backward(self, loss: Tensor) -> None:
        loss.backward()


class SumsGradients(InThreads):
    def backward(self, loss: Tensor) -> None:
        super().backward(loss * self.world_size)


class ForgetsEarlierGradients(OnCPU):
    def setup_module(self, module: nn.Module) -> nn.Module:
        self.module = module
        return super().setup_module(module)

    def backward(self, loss: Tensor) -> None:
        self.module.zero_grad()
        super().backward(loss)


class DifferentiatesItself(OnCPU):
    def backward(self, loss: Tensor, differentiate: Callable[[Tensor], Any] | None = None) -> None:
        super().backward(loss)


class HidesTheScale(Scaling):
    """Whoever differentiates gets the loss without the scale, which gradients are then divided by."""

    def backward(self, loss: Tensor, differentiate: Callable[[Tensor], Any] | None = None) -> None:
        super().backward(loss if differentiate is None else loss / self.scale, differentiate)


class NeverSynchronisesAgain(InThreads):
    def set_gradient_sync(self, is_on: bool) -> None:
        self.is_synced = self.is_synced and is_on


class ClipsNothing(OnCPU):
    def clip_gradients(self, optimizer: Optimizer, clip_val: float, algorithm: str) -> None:
        pass


class ClipsEachTensor(OnCPU):
    def clip_gradients(self, optimizer: Optimizer, clip_val: float, algorithm: str) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                nn.utils.clip_grad_norm_(parameter, clip_val)


class ClipsByNormAlone(OnCPU):
    def clip_gradients(self, optimizer: Optimizer, clip_val: float, algorithm: str) -> None:
        super().clip_gradients(optimizer, clip_val, "norm")


class ClipsTheWholeModule(OnCPU):
    def setup_module(self, module: nn.Module) -> nn.Module:
        self.module = module
        return super().setup_module(module)

    def clip_gradients(self, optimizer: Optimizer, clip_val: float, algorithm: str) -> None:
        nn.utils.clip_grad_norm_(self.module.parameters(), clip_val)


class ClipsWhatIsScaled(Scaling):
    def unscale_gradients(self, optimizer: Optimizer) -> None:
        pass

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        super().unscale_gradients(optimizer)
        return super().optimizer_step(optimizer, closure)


class UnscalesTwice(Scaling):
    def unscale_gradients(self, optimizer: Optimizer) -> None:
        for gradient in gradients(optimizer):
            gradient.div_(self.scale)


class NeverUnscalesByItself(Scaling):
    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        return OnCPU.optimizer_step(self, optimizer, closure)


class ReversesOptimizers(OnCPU):
    def setup_optimizers(self, optimizers: Sequence[Optimizer]) -> list[Optimizer]:
        return list(optimizers)[::-1]


class LosesOptimizers(OnCPU):
    def setup_optimizers(self, optimizers: Sequence[Optimizer]) -> list[Optimizer]:
        return list(optimizers)[:1]


class PreparedOptimizer:
    """What some libraries make of an optimizer."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.param_groups = optimizer.param_groups
        self.zero_grad = optimizer.zero_grad
        self.state_dict = optimizer.state_dict
        self.load_state_dict = optimizer.load_state_dict

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        return self.optimizer.step() if closure is None else self.optimizer.step(closure)


class WrapsOptimizers(OnCPU):
    def setup_optimizers(self, optimizers: Sequence[Optimizer]) -> list[Optimizer]:
        return [PreparedOptimizer(optimizer) for optimizer in optimizers]  # type: ignore[misc]


class IgnoresClosures(OnCPU):
    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        return optimizer.step()


class EvaluatesClosuresItself(OnCPU):
    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        if closure is None:
            return optimizer.step()
        loss = closure()
        return optimizer.step(lambda: loss)


class StepsTwice(OnCPU):
    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        super().optimizer_step(optimizer, closure)
        return optimizer.step(closure)


class StepsAnother(OnCPU):
    """Steps a twin, so that nobody's hooks are called."""

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        if closure is not None:
            closure()
        twin = torch.optim.SGD(optimizer.param_groups[0]["params"], lr=optimizer.param_groups[0]["lr"])
        return twin.step()


class SkipsInSilence(Scaling):
    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        result = super().optimizer_step(optimizer, closure)
        self.has_skipped_step = False
        return result


class SaysThatItSkips(OnCPU):
    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        result = super().optimizer_step(optimizer, closure)
        self.has_skipped_step = not all(bool(gradient.isfinite().all()) for gradient in gradients(optimizer))
        return result


class AlwaysSkips(OnCPU):
    has_skipped_step = True


class SkipsAlone(InThreads):
    """One rank skips what the others do not."""

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        before = [gradient.clone() for gradient in gradients(optimizer)]
        self.has_skipped_step = self.global_rank == 0 and not all(bool(value.isfinite().all()) for value in before)
        return None if self.has_skipped_step else super().optimizer_step(optimizer, closure)

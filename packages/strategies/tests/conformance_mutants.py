"""Strategies with one thing wrong each: every check of the conformance kit has to find those that are meant for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import torch
from strategies_in_threads import InThreads, OnCPU, Scaling, gradients
from torch import Tensor, nn
from torch.optim import Optimizer

from camshaft.strategies import write_checkpoint


class StepsWithoutClosure(OnCPU):
    def optimizer_step(self, optimizer: Optimizer) -> Any:  # type: ignore[override]
        return optimizer.step()


class SaysNothingOfSkips(OnCPU):
    has_skipped_step = None  # type: ignore[assignment]


class SharesWithNobody(OnCPU):
    data_rank = 1  # type: ignore[assignment]


class ConnectsOnce(OnCPU):
    def connect(self) -> None:
        self.num_data_rank = getattr(self, "num_data_rank", 0) + 1
        if self.num_data_rank > 1:
            raise RuntimeError("connected already")


class BroadcastsTheFirst(InThreads):
    def broadcast(self, value: Any, src: int = 0) -> Any:
        return super().broadcast(value, 0)


class GathersItsOwnFirst(InThreads):
    def all_gather(self, value: Any) -> list[Any]:
        values = super().all_gather(value)
        return [values[self.global_rank], *values[: self.global_rank], *values[self.global_rank + 1 :]]


class ReducesInPlace(InThreads):
    def reduce(self, tensor: Tensor, op: str = "mean") -> Tensor:
        return tensor.copy_(super().reduce(tensor, op))


class ReducesIn32Bits(InThreads):
    def reduce(self, tensor: Tensor, op: str = "mean") -> Tensor:
        return super().reduce(tensor.float() if tensor.dtype is torch.int64 else tensor, op)


class AveragesWhatIsSummed(InThreads):
    def reduce(self, tensor: Tensor, op: str = "mean") -> Tensor:
        return super().reduce(tensor, "mean" if op == "sum" else op)


class NeverWaits(InThreads):
    def barrier(self) -> None:
        pass


class Renames(OnCPU):
    def setup_module(self, module: nn.Module) -> nn.Module:
        module.wrapped = nn.Sequential(module.first)
        return super().setup_module(module)


class StaysWhereItWas(OnCPU):
    def __init__(self) -> None:
        super().__init__()
        self.device = torch.device("meta")

    def setup_module(self, module: nn.Module) -> nn.Module:
        return module


class EachItsOwnWeights(InThreads):
    def setup_module(self, module: nn.Module) -> nn.Module:
        self.module = module
        return module


class LeavesWeightsEmpty(OnCPU):
    def model_context(self, module: nn.Module) -> AbstractContextManager[None]:
        return torch.device("meta")  # type: ignore[return-value]

    def setup_module(self, module: nn.Module) -> nn.Module:
        if any(parameter.is_meta for parameter in module.parameters()):
            module.to_empty(device="cpu")
            for parameter in module.parameters():
                parameter.detach().zero_()
        return super().setup_module(module)


class ListsTuples(OnCPU):
    def batch_to_device(self, batch: Any) -> Any:
        moved = super().batch_to_device(batch)
        return {key: list(value) if isinstance(value, tuple) else value for key, value in moved.items()}


class PlacesTheValueItself(OnCPU):
    def place_like(self, value: Tensor, parameter: Tensor) -> Tensor:
        return value


class DropsNames(OnCPU):
    def wrap_step(self, step: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments, **named: step(*arguments)


class ReturnsTheLoss(OnCPU):
    def wrap_step(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            result = step(*arguments, **named)
            return result["loss"] if isinstance(result, dict) else result

        return run


class AlwaysDifferentiates(OnCPU):
    def wrap_step(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            with torch.enable_grad():
                return step(*arguments, **named)

        return run


class AlwaysTrains(OnCPU):
    def setup_module(self, module: nn.Module) -> nn.Module:
        self.module = module
        return super().setup_module(module)

    def wrap_step(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            self.module.train()
            return step(*arguments, **named)

        return run


class EvaluatesTogether(InThreads):
    """Each step waits for the other rank, and nothing answers in its place."""

    def wrap_step(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            self.barrier()
            return step(*arguments, **named)

        return run


class IdlesWithGradients(OnCPU):
    def setup_module(self, module: nn.Module) -> nn.Module:
        self.module = module
        return super().setup_module(module)

    def idle_step(self) -> None:
        for parameter in self.module.parameters():
            parameter.detach().mul_(1.5)


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


class NeverSynchronisesAgain(InThreads):
    def set_gradient_sync(self, is_on: bool) -> None:
        self.synchronises = self.synchronises and is_on


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


class LoadsLists(OnCPU):
    def load_checkpoint(self, path: str) -> dict[str, Any]:
        checkpoint = super().load_checkpoint(path)
        for values in checkpoint.values():
            if isinstance(values, dict) and "tuple" in values:
                values["tuple"] = list(values["tuple"])
        return checkpoint


class SavesOnEachRank(InThreads):
    def save_checkpoint(self, checkpoint: Mapping[str, Any], path: str) -> None:
        write_checkpoint(checkpoint, f"{path}.{self.global_rank}")

    def load_checkpoint(self, path: str) -> dict[str, Any]:
        return super().load_checkpoint(f"{path}.{self.global_rank}")


class SavesLate:
    """A checkpoint that is written when somebody waits for it."""

    def __init__(self, save: Callable[[], object]) -> None:
        self.wait = save


class SavesWhenWaitedFor(OnCPU):
    def save_checkpoint(self, checkpoint: Mapping[str, Any], path: str) -> Any:
        return SavesLate(lambda: write_checkpoint(checkpoint, path))


class WritesInPlace(OnCPU):
    def save_checkpoint(self, checkpoint: Mapping[str, Any], path: str) -> None:
        torch.save(dict(checkpoint), path)


class DeletesFirst(OnCPU):
    def save_checkpoint(self, checkpoint: Mapping[str, Any], path: str) -> None:
        Path(path).unlink(missing_ok=True)
        super().save_checkpoint(checkpoint, path)


class FailsInSilence(OnCPU):
    def save_checkpoint(self, checkpoint: Mapping[str, Any], path: str) -> None:
        with suppress(TypeError):
            super().save_checkpoint(checkpoint, path)


class FailsOnOneRank(InThreads):
    def save_checkpoint(self, checkpoint: Mapping[str, Any], path: str) -> None:
        try:
            super().save_checkpoint(checkpoint, path)
        except TypeError:
            if self.global_rank == 0:
                raise


class ForgetsOptimizers(OnCPU):
    def load_optimizer_state(self, optimizer: Optimizer, state: Mapping[str, Any]) -> None:
        pass


class ForgetsWeights(OnCPU):
    def load_module_state(self, module: nn.Module, state: Mapping[str, Any]) -> None:
        pass


class ForgetsWhatItLearned(Scaling):
    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class TakesAnyState(Scaling):
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.num_skipped = state.get("num_skipped", -1)


class LearnsTensors(Scaling):
    def state_dict(self) -> dict[str, Any]:
        return {"num_skipped": torch.tensor(0)}


class TearsDownTogether(InThreads):
    def teardown(self) -> None:
        self.barrier()


class TearsDownWhatIsThere(OnCPU):
    def setup_module(self, module: nn.Module) -> nn.Module:
        self.module = module
        return super().setup_module(module)

    def teardown(self) -> None:
        self.module.to("cpu")


class TakesTheModuleAlong(TearsDownWhatIsThere):
    def teardown(self) -> None:
        self.module.to("meta")


class ForgetsWhenTornDown(TearsDownWhatIsThere):
    def teardown(self) -> None:
        for parameter in self.module.parameters():
            parameter.detach().mul_(0.5)


class LivesOnce(OnCPU):
    has_lived = False

    def setup_module(self, module: nn.Module) -> nn.Module:
        if self.has_lived:
            raise RuntimeError("set up already")
        self.has_lived = True
        return super().setup_module(module)


class LeavesAMark(OnCPU):
    """What one strategy changes stays for the next."""

    rate = 1.0

    def backward(self, loss: Tensor) -> None:
        super().backward(loss * LeavesAMark.rate)

    def teardown(self) -> None:
        LeavesAMark.rate *= 0.5


class SharesItsModule(OnCPU):
    modules: list[nn.Module] = []  # noqa: RUF012  # of the class, which is the mistake

    def setup_module(self, module: nn.Module) -> nn.Module:
        self.modules.append(module)
        return super().setup_module(module)

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        result = super().optimizer_step(optimizer, closure)
        for module in self.modules[:-1]:
            for parameter in module.parameters():
                parameter.detach().mul_(0.9)
        return result

    def teardown(self) -> None:
        self.modules.pop()

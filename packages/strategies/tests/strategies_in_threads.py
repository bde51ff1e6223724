"""Small strategies to try the conformance kit on: one that scales losses, and one of several ranks that are threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ranks_in_threads import Exchange, RankInThreads, call_on_ranks
from torch import Tensor, nn
from torch.optim import Optimizer

from camshaft.strategies import SingleDeviceStrategy, conformance, read_checkpoint, write_checkpoint


class OnCPU(SingleDeviceStrategy):
    """One process on the CPU."""

    has_skipped_step = False  # an attribute, which subclasses set

    def __init__(self) -> None:
        super().__init__("cpu")


class Scaling(OnCPU):
    """Scales losses by a constant, and skips updates whose gradients are not finite."""

    scale = 8.0

    def __init__(self) -> None:
        super().__init__()
        self.num_skipped = 0
        self._unscaled: set[Optimizer] = set()

    def backward(self, loss: Tensor, differentiate: Callable[[Tensor], Any] | None = None) -> None:
        super().backward(loss * self.scale, differentiate)
        self._unscaled.clear()

    def unscale_gradients(self, optimizer: Optimizer) -> None:
        if optimizer not in self._unscaled:
            self._unscaled.add(optimizer)
            for gradient in gradients(optimizer):
                gradient.div_(self.scale)

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        if closure is not None:
            closure()
        self.unscale_gradients(optimizer)
        self.has_skipped_step = not all(bool(gradient.isfinite().all()) for gradient in gradients(optimizer))
        self.num_skipped += self.has_skipped_step
        return None if self.has_skipped_step else optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        return {"num_skipped": self.num_skipped}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.num_skipped = state.get("num_skipped", self.num_skipped)


def gradients(optimizer: Optimizer) -> list[Tensor]:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


class InThreads(RankInThreads, OnCPU):
    """Data parallelism over ranks that are threads of one process."""

    def setup_module(self, module: nn.Module) -> nn.Module:
        module.load_state_dict(self.broadcast(module.state_dict()))
        return super().setup_module(module)

    def save_checkpoint(self, checkpoint: Mapping[str, Any], path: str) -> None:
        failure = None
        if self.global_rank == 0:
            try:
                write_checkpoint(checkpoint, path)
            except TypeError as error:
                failure = str(error)
        failure = self.broadcast(failure)
        if failure is not None:
            raise TypeError(failure)

    def load_checkpoint(self, path: str) -> dict[str, Any]:
        return read_checkpoint(path)


def try_on_ranks(kind: Callable[[Exchange, int], InThreads], name: str, directory: Path, **options: Any) -> list[Any]:
    """Run a check on two ranks. Returns what each raised, or None."""

    def try_on(exchange: Exchange, rank: int) -> Exception | None:
        try:
            conformance.CHECKS[name](lambda: kind(exchange, rank), directory, **options)
        except Exception as error:
            return error
        return None

    return call_on_ranks(2, try_on, seconds=10.0)

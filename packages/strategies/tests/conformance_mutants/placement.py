"""Mutants in members, collectives, placement and steps."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from strategies_in_threads import InThreads, OnCPU
from torch import Tensor, nn
from torch.optim import Optimizer


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

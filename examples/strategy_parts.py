"""What the adapters to other libraries share: steps as a forward, and what follows from the other collectives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from camshaft.hooks_core import StrategyDefaults
from camshaft.hooks_core.protocols import ReduceOp


class Steps(nn.Module):
    """Calls any step of a module as its own forward: what is wrapped around a forward then surrounds the step."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, step: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        return step(*arguments, **named)


class SeveralProcesses(StrategyDefaults):
    """Whoever inherits it defines `broadcast`, `all_gather` and `barrier`."""

    def reduce(self, tensor: Tensor, op: ReduceOp = "mean") -> Tensor:
        values = torch.stack(self.all_gather(tensor.detach().cpu())).to(tensor.device)
        if op == "mean" and not values.is_floating_point():
            values = values.double()
        return {"mean": torch.mean, "sum": torch.sum, "max": torch.amax, "min": torch.amin}[op](values, dim=0)

    def first_process_does(self, action: Callable[[], None]) -> None:
        """Do something on the first process; what it raises there is raised on all of them."""
        failure = None
        if self.global_rank == 0:
            try:
                action()
            except Exception as error:
                failure = repr(error)
        failure = self.broadcast(failure)
        if failure is not None:
            raise RuntimeError(f"The first process failed: {failure}")

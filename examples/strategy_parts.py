"""What the adapters to other libraries share: steps as a forward, and what follows from the other collectives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# Imported once there is a process group, it keeps the group's threads alive until the interpreter's end, where they may
# abort the process.
import torch.distributed.nn.functional  # noqa: F401
from torch import nn

from camshaft.hooks_core import StrategyDefaults


class Steps(nn.Module):
    """Calls any step of a module as its own forward: what is wrapped around a forward then surrounds the step."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, step: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        return step(*arguments, **named)


class SeveralProcesses(StrategyDefaults):
    """Whoever inherits it defines `all_gather`."""

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

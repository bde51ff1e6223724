"""What the adapters to other libraries share: the steps of a module as a forward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# Imported once there is a process group, it keeps the group's threads alive until the interpreter's end, where they may
# abort the process.
import torch.distributed.nn.functional  # noqa: F401
from torch import nn


class Steps(nn.Module):
    """Calls any step of a module as its own forward: what is wrapped around a forward then surrounds the step."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, step: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        return step(*arguments, **named)

"""Modules whose forward is something else than a module's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn


class Steps(nn.Module):
    """Lets what surrounds a module's forward surround any of its steps: its forward calls the step that it is given.

    Args:
        module: The module whose steps these are; its parameters and buffers are this one's.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, step: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What the step returns."""
        return step(*args, **kwargs)


class Computing(nn.Module):
    """A module as it computes under a strategy, for loops that call it rather than steps.

    Args:
        module: The module; its parameters and buffers are this one's.
        step: What is called in place of it.
    """

    def __init__(self, module: nn.Module, step: Callable[..., Any]) -> None:
        super().__init__()
        self.module = module
        self._step = step

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module returns."""
        return self._step(*args, **kwargs)

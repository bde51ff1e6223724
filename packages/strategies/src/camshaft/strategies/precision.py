"""The number formats that a model computes in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from camshaft.hooks_core.messages import must_be


class Precision:
    """32-bit floating point, as modules are made."""

    name = "32-true"
    param_dtype: torch.dtype = torch.float32
    autocast_dtype: torch.dtype | None = None
    has_skipped_step = False

    def convert_module(self, module: nn.Module) -> None:
        """Bring a module's floating-point parameters and buffers into `param_dtype`, in place."""

    def wrap_step(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """A step that computes in this precision."""
        return step

    def backward(self, loss: Tensor) -> None:
        """Differentiate a scalar loss."""
        loss.backward()  # type: ignore[no-untyped-call]

    def setup_optimizer(self, optimizer: Optimizer) -> None:
        """Make an optimizer step in this precision."""

    def unscale(self, optimizer: Optimizer) -> None:
        """Give an optimizer's gradients their true size."""

    def state_dict(self) -> dict[str, Any]:
        """What was learned, as plain values."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with it."""

    def release(self) -> None:
        """Leave the optimizers as they were."""


def choose_precision(name: Any, device_type: str) -> Precision:
    """The precision that a name stands for."""
    if name not in ("32-true", 32, "32"):
        raise ValueError(must_be("precision", "'32-true'", name, "choose_precision", "Pass it."))
    return Precision()

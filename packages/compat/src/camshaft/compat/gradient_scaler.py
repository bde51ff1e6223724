"""`Trainer.scaler`: a gradient scaler for code that steps through it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from camshaft.hooks_core.support.messages import must_be

_STATE = "gradient_scaler"


def scaler_of(strategy: Any) -> ScalerView | torch.amp.GradScaler | None:
    """Return the gradient scaler of a strategy.

    Returns:
        A view of the precision's own; torch's, disabled, where mixed precision needs none; None where precision is
        not mixed.
    """
    precision = getattr(strategy, "precision", None)
    if getattr(precision, "autocast_dtype", None) is None:
        return None
    if hasattr(precision, "scale_loss"):
        return ScalerView(precision)
    return torch.amp.GradScaler(strategy.device.type, enabled=False)


class ScalerView:
    """View of a precision with the methods of torch's `GradScaler`.

    Optimizers unscale their gradients by themselves here, skip a step whose gradients overflowed, and change the scale.
    So `step` is a step of the optimizer, and `update` has nothing left to do.

    Args:
        precision: The precision: it scales losses and the steps of its optimizers.
    """

    def __init__(self, precision: Any) -> None:
        self._precision = precision

    def scale(self, outputs: Tensor) -> Tensor:
        """Return a loss times the scale; in an override of `backward`, which gets a scaled loss, the loss itself."""
        scaled: Tensor = self._precision.scale_loss(outputs)
        return scaled

    def unscale_(self, optimizer: Optimizer) -> None:
        """Unscale the gradients of an optimizer, once."""
        self._precision.unscale(optimizer)

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Step an optimizer, unless its gradients overflowed.

        Raises:
            RuntimeError: If there is a closure, which torch's scaler does not take either.
            ValueError: If it is none of the fit's optimizers.
        """
        if kwargs.get("closure") is not None or (args and args[0] is not None):
            rule, action = "left out", "Call it before, or pass it to `optimizer.step`."
            raise RuntimeError(must_be("closure", rule, args or kwargs, "trainer.scaler.step", action))
        self._precision.unscale(optimizer)
        return optimizer.step(*args, **kwargs)

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Do nothing: the scale changes by itself.

        Raises:
            ValueError: If it is to be another one.
        """
        if new_scale is not None:
            action = 'Pass a strategy with `precision=ScaledPrecision("cuda", init_scale=...)`.'
            raise ValueError(must_be("new_scale", "left out", new_scale, "trainer.scaler.update", action))

    def get_scale(self) -> float:
        """Return the factor of the losses; waits for the device."""
        return float(self._precision.scale)

    def is_enabled(self) -> bool:
        """Return True: gradients are scaled."""
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return the scaler's state as plain values; waits for the device."""
        state: dict[str, Any] = self._precision.state_dict()[_STATE]
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore the state of a scaler."""
        self._precision.load_state_dict({_STATE: dict(state_dict)})

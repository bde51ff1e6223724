"""What a gradient scaler sees of an optimizer, whose step goes through it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.optim import Optimizer

from camshaft.hooks_core.messages import must_be
from camshaft.hooks_core.optimizer_step import replace_step, steps_with_closure


class ScaledOptimizer:
    """An optimizer whose step goes through a scaler.

    Args:
        optimizer: The optimizer; its `step` is replaced until `release`.
        through: Is called with this and the original step, when the closure (if any) has been evaluated. For an
            optimizer that evaluates its closure by itself, it is called with nothing to do after each evaluation: one
            that overflows ends the step, and leaves the weights as they were before it.
        is_sharded: Whether processes hold parts of parameters, and `through` agrees with them on overflows.

    Attributes:
        is_unscaled: Whether its gradients have their true size.
        has_stepped: Whether it has stepped (or was skipped) since the scale last changed.
        is_finite: Whether the scaler asked for the latest step.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        through: Callable[[ScaledOptimizer, Callable[[], Any]], Any],
        *,
        is_sharded: bool = False,
    ) -> None:
        self.is_unscaled = False
        self.has_stepped = False
        self.is_finite = False
        self._gradient_scale: float | None = None  # if other than the scaler's
        self._optimizer = optimizer
        self._through: Callable[[ScaledOptimizer, Callable[[], Any]], Any] | None = through
        self._is_sharded = is_sharded
        self._evaluates_closure = steps_with_closure(optimizer)
        self._copies_weights: bool | None = None  # whether its steps move weights before the last evaluation, if known
        self._restore_step = replace_step(optimizer, self._scaled_step)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The optimizer's own, or stand-ins for the local parts of sharded parameters.

        Unscaling local parts communicates nothing, however many meshes the parameters are on; whether an overflow
        happened anywhere is agreed on once, at the step.
        """
        if not self._is_sharded:
            return self._optimizer.param_groups
        return [{"params": [_local_part(parameter) for parameter in self._parameters()]}]

    def step(self) -> None:
        """Called by the scaler if all gradients are finite."""
        self.is_finite = True

    def has_gradients(self) -> bool:
        """Whether there is anything to unscale."""
        return any(
            parameter.grad is not None for group in self._optimizer.param_groups for parameter in group["params"]
        )

    def note_scale(self, scaler: GradScaler) -> bool:
        """Remember which scale its gradients have, since the scaler's changes. Returns whether there are any."""
        is_true_size = self.is_unscaled or self.has_stepped
        self.is_unscaled = self.has_stepped = False
        if not self.has_gradients():
            self._gradient_scale = None
            return False
        if is_true_size:
            self._gradient_scale = 1.0
        elif self._gradient_scale is None:
            self._gradient_scale = scaler.get_scale()
        return True

    def bring_to_scale(self, scaler: GradScaler) -> None:
        """Multiply gradients that have another scale than the scaler's, so that they have the same."""
        if self._gradient_scale is None:
            return
        gradients = [parameter.grad for parameter in self._parameters()]
        factor = scaler.get_scale() / self._gradient_scale if gradients else 1.0
        self._gradient_scale = None
        if factor != 1.0:
            with torch.no_grad():
                for gradient in gradients:
                    gradient.mul_(factor)

    def release(self) -> None:
        """Give the optimizer its step back; where somebody replaced it since, let that step as the original does."""
        self._through = None
        self._restore_step()

    def _parameters(self) -> list[Any]:
        """Those that have gradients."""
        groups = self._optimizer.param_groups
        return [parameter for group in groups for parameter in group["params"] if parameter.grad is not None]

    def _scaled_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def step(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            if self._through is None:
                return original(*args, **kwargs)
            if args:
                closure, *rest = args
            else:
                closure, rest = kwargs.pop("closure", None), []
            if closure is None:
                return self._through(self, partial(original, *args, **kwargs))
            if self._evaluates_closure:
                return self._step_evaluating(closure, lambda evaluate: original(evaluate, *rest, **kwargs))
            with torch.enable_grad():
                loss = closure()
            self._through(self, partial(original, None, *rest, **kwargs))
            return loss

        return step

    def _step_evaluating(self, closure: Callable[[], Any], step: Callable[[Callable[[], Any]], Any]) -> Any:
        """Step an optimizer that evaluates its closure as often as it likes, with gradients of their true size.

        Weights that it moves before an evaluation are put back if that overflows, from copies. Whether it does so is
        learned from its first step, so that others need no copies.
        """
        parameters = [parameter for group in self._optimizer.param_groups for parameter in group["params"]]
        copies = None if self._copies_weights is False else [one.detach().clone() for one in parameters]
        versions = [one._version for one in parameters]
        loss: Any = None
        num_evaluations, has_moved = 0, False

        def evaluate() -> Any:
            nonlocal loss, num_evaluations, has_moved
            # moves by way of `.data` change no version, and come before another evaluation
            has_moved |= num_evaluations > 0 or versions != [one._version for one in parameters]
            num_evaluations += 1
            with torch.enable_grad():
                loss = closure()
            if self._through is not None and self._through(self, _true) is None:
                raise _OverflowError
            return loss

        try:
            returned = step(evaluate)
        except _OverflowError:
            if has_moved and copies is None:
                rule = "evaluated several times in the first step as well, so that overflows can be undone"
                where = f"{type(self._optimizer).__qualname__}.step under precision='16-mixed'"
                action = "Evaluate it so, or pass precision='bf16-mixed'."
                raise RuntimeError(must_be("closure", rule, "an overflow", where, action)) from None
            if has_moved and copies is not None:
                with torch.no_grad():
                    for parameter, copy in zip(parameters, copies, strict=True):
                        parameter.copy_(copy)
            return loss
        self._copies_weights = bool(self._copies_weights) or has_moved
        return returned


class _OverflowError(Exception):
    """Ends the step of an optimizer whose gradients have overflowed."""


def _true() -> bool:
    return True


class Overflow:
    """In place of an optimizer: lets a scaler learn of an overflow that another process found.

    Attributes:
        is_noted: Whether the scaler has learned of it, and its scale has not changed since.
    """

    def __init__(self) -> None:
        self.is_noted = False

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """One parameter with an infinite gradient."""
        parameter = torch.zeros(1)
        parameter.grad = torch.full((1,), float("inf"))
        return [{"params": [parameter]}]


def _local_part(parameter: Any) -> Tensor:
    """A tensor that shares a sharded parameter's local part, and likewise its gradient's."""
    if not hasattr(parameter, "to_local"):
        return parameter  # type: ignore[no-any-return]
    with torch.no_grad():
        local: Tensor = parameter.to_local().detach()
        local.grad = parameter.grad.to_local()
    return local

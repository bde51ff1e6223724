"""Mixed precision in float16: losses are scaled so that small gradients survive, and overflowing updates skipped."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.optim import LBFGS, Optimizer

from camshaft.hooks_core.messages import must_be
from camshaft.hooks_core.optimizer_step import replace_step, steps_with_closure
from camshaft.strategies.precision.autocast import AutocastPrecision

_WHERE = "ScaledPrecision"
_STATE = "gradient_scaler"


class ScaledPrecision(AutocastPrecision):
    """Autocast to float16 with torch's `GradScaler`.

    `backward` multiplies the loss by a scale; an optimizer's step divides its gradients by it first, unless `unscale`
    did, and is skipped if any of them is infinite or NaN. Whoever calls the step: it is the optimizer's own `step` that
    is replaced, until `release`. Of a step that is skipped, the optimizer's step hooks learn nothing; but those that
    run before it, where the optimizer is not torch's own and so computes its gradients within the step.

    The scale changes only before the first backward after a step, so the gradients of an accumulation window, and
    those of several optimizers that step one after the other, share one. Gradients that wait for a later step while
    the scale changes are brought to the new one.

    Args:
        device_type: Kind of the device that computes, such as "cuda".
        init_scale: The scale at first.
        growth_factor: What it is multiplied by after `growth_interval` updates on end without an overflow.
        backoff_factor: What it is multiplied by after an overflow.
        growth_interval: Number of updates.

    Raises:
        ValueError: If torch has no autocast for the kind of device, or a factor or interval makes no sense.
    """

    name = "16-mixed"

    def __init__(
        self,
        device_type: str,
        *,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
    ) -> None:
        super().__init__(device_type, torch.float16)
        for field, value, rule, holds in (
            ("init_scale", init_scale, "positive", init_scale > 0),
            ("growth_factor", growth_factor, "above 1", growth_factor > 1),
            ("backoff_factor", backoff_factor, "between 0 and 1", 0 < backoff_factor < 1),
            ("growth_interval", growth_interval, "at least 1", growth_interval >= 1),
        ):
            if not holds:
                raise ValueError(must_be(field, rule, value, _WHERE, "Pass such a value, or leave it out."))
        self._scaler = torch.amp.GradScaler(
            device_type,
            init_scale=init_scale,
            growth_factor=growth_factor,
            backoff_factor=backoff_factor,
            growth_interval=growth_interval,
        )
        self._optimizers: dict[int, ScaledOptimizer] = {}
        self._overflow_elsewhere = Overflow()
        self._has_scaled = False
        self._is_loss_scaled = False  # while somebody differentiates for `backward`
        self._has_unscaled = False  # since the scale last changed; the next backward lets it follow
        self._has_stepped = False
        self._holds_other_scales = False  # some gradients were made with another scale, or with none

    @property
    def scale(self) -> float:
        """What the latest loss was multiplied by; waits for the device."""
        return self._scaler.get_scale()

    def backward(self, loss: Tensor, differentiate: Callable[[Tensor], Any] | None = None) -> None:
        """Differentiate a scalar loss times the scale, outside of autocast."""
        loss = self.scale_loss(loss)
        if differentiate is None:
            super().backward(loss)
            return
        self._is_loss_scaled = True
        try:
            super().backward(loss, differentiate)
        finally:
            self._is_loss_scaled = False

    def scale_loss(self, loss: Tensor) -> Tensor:
        """A loss times the scale, for whoever differentiates it without `backward`.

        What `backward` lets differentiate has been multiplied already: it stays as it is.
        """
        if self._is_loss_scaled:
            return loss
        if self._has_unscaled:
            self._update_scale()
        if self._holds_other_scales:
            for scaled in self._optimizers.values():
                scaled.bring_to_scale(self._scaler)
            self._holds_other_scales = False
        self._has_scaled = True
        return self._scaler.scale(loss)

    def setup_optimizer(self, optimizer: Optimizer) -> None:
        """Let an optimizer's step unscale its gradients first, and skip itself if they overflowed.

        Raises:
            TypeError: If the optimizer is an LBFGS, whose search along a line cannot leave out an evaluation.
            ValueError: If it has parameters in float16, whose gradients cannot be unscaled.
        """
        kind = type(optimizer).__name__
        if isinstance(optimizer, LBFGS):
            rule = "another than LBFGS, which cannot leave out a step that overflowed, under precision='16-mixed'"
            raise TypeError(must_be("optimizer", rule, kind, _WHERE, "Use another optimizer, or 'bf16-mixed'."))
        if any(parameter.dtype == torch.float16 for group in optimizer.param_groups for parameter in group["params"]):
            rule = "of other parameters than float16 ones under precision='16-mixed'"
            raise ValueError(must_be("optimizer", rule, kind, _WHERE, "Keep the module in float32, or pass '16-true'."))
        known = self._optimizers.pop(id(optimizer), None)
        if known is not None:
            known.release()
        self._optimizers[id(optimizer)] = ScaledOptimizer(optimizer, self._step, is_sharded=self.agree is not None)

    def unscale(self, optimizer: Optimizer) -> None:
        """Divide an optimizer's gradients by the scale, unless that was done since the latest backward.

        Raises:
            ValueError: If `setup_optimizer` does not know the optimizer.
            RuntimeError: If no loss was differentiated by `backward`.
        """
        scaled = self._optimizers.get(id(optimizer))
        if scaled is None:
            rule = "one that was set up"
            action = "Pass one that `setup_optimizers` returned."
            raise ValueError(must_be("optimizer", rule, type(optimizer).__name__, f"{_WHERE}.unscale", action))
        if scaled.has_gradients():
            self._unscale(scaled)

    def state_dict(self) -> dict[str, Any]:
        """The scale and how long it has been without an overflow, as plain values; waits for the device."""
        if self._has_stepped:
            self._update_scale()
        return {_STATE: self._scaler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with a scale; the state of another precision changes nothing."""
        if state.get(_STATE):
            self._scaler.load_state_dict(state[_STATE])

    def release(self) -> None:
        """Leave the optimizers as they were; the scale stays."""
        for scaled in self._optimizers.values():
            scaled.release()
        self._optimizers.clear()
        self._holds_other_scales = False

    def _step(self, scaled: ScaledOptimizer, step: Callable[[], Any]) -> Any:
        """Update the weights, if no gradient overflowed."""
        has_gradients = scaled.has_gradients()
        if not has_gradients and self.agree is None:
            self.has_skipped_step = False
            return step()  # nothing to unscale
        is_finite = True
        if has_gradients:
            self._unscale(scaled)
            scaled.is_finite = False
            self._scaler.step(scaled)  # type: ignore[arg-type]  # asks it for `param_groups` and `step` alone
            is_finite = scaled.is_finite
            scaled.has_stepped = self._has_stepped = True
        if self.agree is not None and self.agree(not is_finite) and is_finite:
            is_finite = False
            if not self._overflow_elsewhere.is_noted:
                self._overflow_elsewhere.is_noted = self._has_unscaled = self._has_stepped = True
                self._scaler.unscale_(self._overflow_elsewhere)  # type: ignore[arg-type]
        self.has_skipped_step = not is_finite
        return step() if is_finite else None

    def _unscale(self, scaled: ScaledOptimizer) -> None:
        if scaled.has_stepped:
            self._update_scale()  # a step without a backward since the one before
        if scaled.is_unscaled:
            return
        if not self._has_scaled:
            rule = "called by way of the strategy's `backward` under precision='16-mixed'"
            action = "Call strategy.backward(loss), or manual_backward(loss), in place of loss.backward()."
            raise RuntimeError(must_be("loss.backward", rule, "gradients without a scale", _WHERE, action))
        scaled.bring_to_scale(self._scaler)
        self._scaler.unscale_(scaled)  # type: ignore[arg-type]
        scaled.is_unscaled = self._has_unscaled = True

    def _update_scale(self) -> None:
        """Let the scale follow from the updates since it last did."""
        for scaled in self._optimizers.values():
            self._holds_other_scales |= scaled.note_scale(self._scaler)
        self._scaler.update()
        self._overflow_elsewhere.is_noted = self._has_unscaled = self._has_stepped = False


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

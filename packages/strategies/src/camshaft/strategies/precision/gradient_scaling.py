"""Mixed precision in float16, with scaled losses, so that small gradients survive; overflowing updates are skipped."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.optim import LBFGS, Optimizer

from camshaft.hooks_core.support.messages import must_be
from camshaft.hooks_core.support.optimizer_step import replace_step, steps_with_closure
from camshaft.strategies.checks import require
from camshaft.strategies.precision.formats import SCALER_STATE, AutocastPrecision

_WHERE = "ScaledPrecision"


class ScaledPrecision(AutocastPrecision):
    """Autocast to float16 with torch's `GradScaler`.

    `backward` multiplies the loss by a scale. An optimizer's step first divides its gradients by it, unless `unscale`
    did, and is skipped if any of them is infinite or NaN. The optimizer's own `step` is replaced until `release`, so
    this holds wherever it is called. A skipped step runs none of the optimizer's step hooks, except the pre-hooks of an
    optimizer that is not torch's own and computes its gradients within the step.

    The scale changes only before the first backward after a step, so the gradients of an accumulation window, and
    those of several optimizers that step one after the other, share one. Gradients that are kept for a later step
    while the scale changes are rescaled.

    Args:
        device_type: Type of the device, such as "cuda".
        init_scale: The initial scale.
        growth_factor: Factor of the scale after `growth_interval` consecutive updates without an overflow.
        backoff_factor: Factor of the scale after an overflow.
        growth_interval: Number of updates.

    Raises:
        ValueError: If torch has no autocast for the device type, or a factor or interval is out of range.
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
            require(holds, field, rule, value, _WHERE)
        self._scaler = torch.amp.GradScaler(
            device_type,
            init_scale=init_scale,
            growth_factor=growth_factor,
            backoff_factor=backoff_factor,
            growth_interval=growth_interval,
        )
        self._optimizers: dict[int, ScaledOptimizer] = {}
        # Stands for an optimizer to the scaler: its infinite gradient informs it of an overflow on any rank.
        infinite = torch.zeros(1)
        infinite.grad = torch.full((1,), float("inf"))
        self._overflow_anywhere = SimpleNamespace(param_groups=[{"params": [infinite]}])
        self._has_noted_overflow = False  # since the scale last changed
        self._has_scaled = False
        self._is_loss_scaled = False  # true during `differentiate` in `backward`
        self._has_unscaled = False  # since the scale last changed; the next backward updates it
        self._has_stepped = False  # likewise
        self._holds_other_scales = False  # some gradients have another scale, or none

    @property
    def scale(self) -> float:
        """The factor of the latest loss. Waits for the device."""
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
        """Multiply a loss by the scale, to differentiate it without `backward`.

        Within the `differentiate` of `backward`, the loss is scaled already and returned as it is.

        Returns:
            The scaled loss.
        """
        if self._is_loss_scaled:
            return loss
        if self._has_unscaled:
            self._update_scale()
        if self._holds_other_scales:
            for scaled in self._optimizers.values():
                scaled.rescale_gradients(self._scaler)
            self._holds_other_scales = False
        self._has_scaled = True
        return self._scaler.scale(loss)

    def setup_optimizer(self, optimizer: Optimizer) -> None:
        """Replace an optimizer's step by one that unscales its gradients, and is skipped if they overflowed.

        Raises:
            TypeError: If the optimizer is an LBFGS, whose line search cannot skip an evaluation.
            ValueError: If it has parameters in float16, whose gradients cannot be unscaled.
        """
        kind = type(optimizer).__name__
        rule = "another than LBFGS, which cannot skip a step that overflowed, under precision='16-mixed'"
        require(not isinstance(optimizer, LBFGS), "optimizer", rule, kind, _WHERE, "Use 'bf16-mixed'.", TypeError)
        dtypes = {parameter.dtype for group in optimizer.param_groups for parameter in group["params"]}
        rule = "an optimizer without float16 parameters under precision='16-mixed'"
        require(torch.float16 not in dtypes, "optimizer", rule, kind, _WHERE, "Keep the module in float32.")
        known = self._optimizers.pop(id(optimizer), None)
        if known is not None:
            known.release()
        self._optimizers[id(optimizer)] = ScaledOptimizer(optimizer, self._step, self.agree)

    def unscale(self, optimizer: Optimizer) -> None:
        """Divide an optimizer's gradients by the scale, unless that was done since the latest backward.

        Raises:
            ValueError: If the optimizer was not set up.
            RuntimeError: If no loss was differentiated by `backward`.
        """
        scaled = self._optimizers.get(id(optimizer))
        if scaled is None:
            kind, action = type(optimizer).__name__, "Pass one that `setup_optimizers` returned."
            raise ValueError(must_be("optimizer", "one that was set up", kind, f"{_WHERE}.unscale", action))
        if scaled.has_gradients():
            self._unscale(scaled)

    def state_dict(self) -> dict[str, Any]:
        """Return the scale and the number of updates without an overflow, as plain values. Wait for the device."""
        if self._has_stepped:
            self._update_scale()
        return {SCALER_STATE: self._scaler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the scale; the state of another precision is ignored."""
        if state.get(SCALER_STATE):
            self._scaler.load_state_dict(state[SCALER_STATE])

    def release(self) -> None:
        """Restore the optimizers; keep the scale."""
        for scaled in self._optimizers.values():
            scaled.release()
        self._optimizers.clear()
        self._holds_other_scales = False

    def _step(self, scaled: ScaledOptimizer, step: Callable[[], Any]) -> Any:
        """Update the weights, unless a gradient overflowed."""
        has_gradients = scaled.has_gradients()
        if not has_gradients and self.agree is None:
            self.has_skipped_step = False
            return step()  # nothing to unscale
        if has_gradients:
            self._unscale(scaled)
            scaled.is_finite = False
            self._scaler.step(scaled)  # type: ignore[arg-type]  # it uses `param_groups` and `step` alone
            is_finite = scaled.is_finite
            scaled.has_stepped = self._has_stepped = True
        else:
            is_finite = self.agree is None or not self.agree(torch.zeros(()))
        if self.agree is not None and not is_finite and not self._has_noted_overflow:
            self._has_noted_overflow = self._has_unscaled = self._has_stepped = True
            self._scaler.unscale_(self._overflow_anywhere)  # type: ignore[arg-type]
        self.has_skipped_step = not is_finite
        return step() if is_finite else None

    def _unscale(self, scaled: ScaledOptimizer) -> None:
        if scaled.has_stepped:
            self._update_scale()  # a step without a backward since the one before
        if scaled.is_unscaled:
            return
        if not self._has_scaled:
            rule = "called through the strategy's `backward` under precision='16-mixed'"
            action = "Call strategy.backward(loss), or manual_backward(loss), in place of loss.backward()."
            raise RuntimeError(must_be("loss.backward", rule, "gradients without a scale", _WHERE, action))
        scaled.rescale_gradients(self._scaler)
        self._scaler.unscale_(scaled)  # type: ignore[arg-type]
        scaled.is_unscaled = self._has_unscaled = True

    def _update_scale(self) -> None:
        """Update the scale after the steps since the last update."""
        for scaled in self._optimizers.values():
            self._holds_other_scales |= scaled.record_scale(self._scaler)
        self._scaler.update()
        self._has_noted_overflow = self._has_unscaled = self._has_stepped = False


class ScaledOptimizer:
    """An optimizer whose step goes through a gradient scaler.

    Args:
        optimizer: The optimizer; its `step` is replaced until `release`.
        scaled_step: Called with this object and the original step, once the closure (if any) is evaluated. For an
            optimizer that evaluates its closure itself, it is called with a step that does nothing after each
            evaluation: if that overflowed, the step ends and the weights are restored.
        agree: As of `Precision`: ranks hold parts of parameters where it is not None.

    Attributes:
        is_unscaled: Whether its gradients are unscaled.
        has_stepped: Whether it has stepped (or was skipped) since the scale last changed.
        is_finite: Whether the latest step was finite, as the scaler found.
    """

    def __init__(
        self, optimizer: Optimizer, scaled_step: ScaledStep, agree: Callable[[Tensor], bool] | None = None
    ) -> None:
        self.is_unscaled = False
        self.has_stepped = False
        self.is_finite = False
        self._gradient_scale: float | None = None  # if other than the scaler's
        self._optimizer = optimizer
        self._scaled_step: ScaledStep | None = scaled_step
        self._agree = agree
        # The scaler then hands on what it found, by `found_inf`, in place of reading it.
        self._step_supports_amp_scaling = agree is not None
        self.found_inf: Tensor
        self._evaluates_closure = steps_with_closure(optimizer)
        self._copies_weights: bool | None = None  # None until known; see `_step_with_closure`
        self._restore_step = replace_step(optimizer, self._replacement)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The optimizer's own groups, or one group with the local parts of sharded parameters.

        Unscaling local parts needs no collective. Ranks agree on overflows once, at the step.
        """
        if self._agree is None:
            return self._optimizer.param_groups
        return [{"params": [_local_part(parameter) for parameter in self._parameters_with_gradients()]}]

    def step(self) -> None:
        """Record whether all gradients are finite. Called by the scaler, without `agree` only if they are."""
        self.is_finite = self._agree is None or not self._agree(self.found_inf)

    def has_gradients(self) -> bool:
        """Return whether any parameter has a gradient."""
        groups = self._optimizer.param_groups
        return any(parameter.grad is not None for group in groups for parameter in group["params"])

    def record_scale(self, scaler: GradScaler) -> bool:
        """Record the scale of its gradients before the scaler updates its own. Return whether there are any."""
        is_unscaled = self.is_unscaled or self.has_stepped
        self.is_unscaled = self.has_stepped = False
        if not self.has_gradients():
            self._gradient_scale = None
            return False
        if is_unscaled:
            self._gradient_scale = 1.0
        elif self._gradient_scale is None:
            self._gradient_scale = scaler.get_scale()
        return True

    def rescale_gradients(self, scaler: GradScaler) -> None:
        """Rescale gradients that have another scale than the scaler's."""
        if self._gradient_scale is None:
            return
        gradients = [parameter.grad for parameter in self._parameters_with_gradients()]
        factor = scaler.get_scale() / self._gradient_scale if gradients else 1.0
        self._gradient_scale = None
        if factor != 1.0:
            with torch.no_grad():
                for gradient in gradients:
                    gradient.mul_(factor)

    def release(self) -> None:
        """Restore the optimizer's step. If it was replaced again since, that one calls the original from now on."""
        self._scaled_step = None
        self._restore_step()

    def _parameters_with_gradients(self) -> list[Any]:
        groups = self._optimizer.param_groups
        return [parameter for group in groups for parameter in group["params"] if parameter.grad is not None]

    def _replacement(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def step(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            if self._scaled_step is None:
                return original(*args, **kwargs)
            if args:
                closure, *rest = args
            else:
                closure, rest = kwargs.pop("closure", None), []
            if closure is None:
                return self._scaled_step(self, partial(original, *args, **kwargs))
            if self._evaluates_closure:
                return self._step_with_closure(closure, lambda evaluate: original(evaluate, *rest, **kwargs))
            with torch.enable_grad():
                loss = closure()
            self._scaled_step(self, partial(original, None, *rest, **kwargs))
            return loss

        return step

    def _step_with_closure(self, closure: Callable[[], Any], step: Callable[[Callable[[], Any]], Any]) -> Any:
        """Step an optimizer that evaluates its closure itself, with unscaled gradients.

        If an evaluation overflows, weights that were changed before it are restored from copies. The first step shows
        whether the optimizer changes any; if not, later steps make no copies.
        """
        parameters = [parameter for group in self._optimizer.param_groups for parameter in group["params"]]
        copies = None if self._copies_weights is False else [one.detach().clone() for one in parameters]
        versions = [one._version for one in parameters]
        loss: Any = None
        num_evaluations, has_moved = 0, False

        def evaluate() -> Any:
            nonlocal loss, num_evaluations, has_moved
            # a change through `.data` keeps the version, but another evaluation follows
            has_moved |= num_evaluations > 0 or versions != [one._version for one in parameters]
            num_evaluations += 1
            with torch.enable_grad():
                loss = closure()
            if self._scaled_step is not None and self._scaled_step(self, lambda: True) is None:
                raise _OverflowError
            return loss

        try:
            returned = step(evaluate)
        except _OverflowError:
            if has_moved and copies is None:
                rule = "evaluated several times in the first step too, so that an overflowed step can be reverted"
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


ScaledStep = Callable[[ScaledOptimizer, Callable[[], Any]], Any]
"""A function of an optimizer and its original step."""


class _OverflowError(Exception):
    """Overflowing gradients, which end the step of an optimizer."""


def _local_part(parameter: Any) -> Tensor:
    """Return a tensor that shares memory with a sharded parameter's local part, with the local part of its gradient."""
    if not hasattr(parameter, "to_local"):
        return parameter  # type: ignore[no-any-return]
    with torch.no_grad():
        local: Tensor = parameter.to_local().detach()
        local.grad = parameter.grad.to_local()
    return local

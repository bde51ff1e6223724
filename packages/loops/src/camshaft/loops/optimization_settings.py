"""How batches become updates, as the user asked for it, checked when it is constructed."""

from __future__ import annotations

from typing import Any

import attrs

from camshaft.hooks_core.messages import must_be
from camshaft.hooks_core.spec import ZERO_GRADS, ZeroGrad
from camshaft.loops.argument_checks import WHERE, at_least, one_of


def _clip_val(instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
        raise TypeError(must_be("gradient_clip_val", "a number or None", value, WHERE, "Pass a number."))
    if value is not None and not value >= 0:
        action = "Pass None to clip nothing."
        raise ValueError(must_be("gradient_clip_val", "at least 0 or None", value, WHERE, action))


def _norm_if_none(algorithm: str | None) -> str:
    return "norm" if algorithm is None else algorithm


@attrs.frozen(kw_only=True)
class OptimizationSettings:
    """How batches become updates.

    Args:
        accumulate_grad_batches: Batches whose gradients make one update; splits, if batches are split.
        gradient_clip_val: The largest norm or absolute value of the gradients; None clips nothing.
        gradient_clip_algorithm: "norm" or "value"; None means "norm".
        zero_grad: Where gradients are zeroed: "before_backward" after `training_step`, "before_training_step", or
            "after_optimizer_step"; None means "before_backward", unless the run's `optimization_factory` has another.
        truncated_bptt_steps: Time steps of a split of a batch, for truncated backpropagation through time; None takes
            the module's attribute of that name, if it has one, and else leaves batches whole.

    Raises:
        TypeError, ValueError: If a value is of the wrong type or out of range.
    """

    accumulate_grad_batches: int = attrs.field(default=1, validator=at_least(1, action="Pass 1 for no accumulation."))
    gradient_clip_val: float | None = attrs.field(default=None, validator=_clip_val)
    gradient_clip_algorithm: str = attrs.field(
        default="norm", converter=_norm_if_none, validator=one_of("norm", "value")
    )
    zero_grad: ZeroGrad | None = attrs.field(default=None, validator=attrs.validators.optional(one_of(*ZERO_GRADS)))
    truncated_bptt_steps: int | None = attrs.field(
        default=None, validator=at_least(1, optional=True, action="Pass None to leave batches whole.")
    )

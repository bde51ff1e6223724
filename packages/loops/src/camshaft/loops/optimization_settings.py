"""How batches become updates, as the user asked for it, checked when it is constructed."""

from __future__ import annotations

from typing import Any

import attrs

from camshaft.hooks_core.messages import must_be
from camshaft.hooks_core.spec import ZERO_GRADS, ZeroGrad

_WHERE = "FitLoop"


def _count(optional: bool = False) -> Any:
    """A validator: an int of at least 1."""

    def check(instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        if optional and value is None:
            return
        kind = "an int or None" if optional else "an int"
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(must_be(attribute.name, kind, value, _WHERE, "Pass an int."))
        if value < 1:
            action = "Pass None to leave batches whole." if optional else "Pass 1 for no accumulation."
            raise ValueError(must_be(attribute.name, "at least 1", value, _WHERE, action))

    return check


def _clip_val(instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
        raise TypeError(must_be("gradient_clip_val", "a number or None", value, _WHERE, "Pass a number."))
    if value is not None and not value >= 0:
        action = "Pass None to clip nothing."
        raise ValueError(must_be("gradient_clip_val", "at least 0 or None", value, _WHERE, action))


def _one_of(*allowed: str) -> Any:
    """A validator: one of some texts."""

    def check(instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        if value not in allowed:
            rule = " or ".join(repr(text) for text in allowed)
            raise ValueError(must_be(attribute.name, rule, value, _WHERE, "Pass one of them."))

    return check


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
            "after_optimizer_step".
        truncated_bptt_steps: Time steps of a split of a batch, for truncated backpropagation through time; None takes
            the module's attribute of that name, if it has one, and else leaves batches whole.

    Raises:
        TypeError, ValueError: If a value is of the wrong type or out of range.
    """

    accumulate_grad_batches: int = attrs.field(default=1, validator=_count())
    gradient_clip_val: float | None = attrs.field(default=None, validator=_clip_val)
    gradient_clip_algorithm: str = attrs.field(
        default="norm", converter=_norm_if_none, validator=_one_of("norm", "value")
    )
    zero_grad: ZeroGrad = attrs.field(default="before_backward", validator=_one_of(*ZERO_GRADS))
    truncated_bptt_steps: int | None = attrs.field(default=None, validator=_count(optional=True))

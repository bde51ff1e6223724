"""Settings of the updates of a fit."""

from __future__ import annotations

import attrs

from camshaft.hooks_core.spec import ZERO_GRADS, ZeroGrad
from camshaft.loops.validators import integer, one_of


def _norm_if_none(algorithm: str | None) -> str:
    return "norm" if algorithm is None else algorithm


@attrs.frozen(kw_only=True)
class OptimizationSettings:
    """Settings of the updates: accumulation, clipping, zeroing and splits.

    Args:
        accumulate_grad_batches: Batches per update; splits, if batches are split.
        gradient_clip_val: Maximum norm, or value, of the gradients; None clips nothing.
        gradient_clip_algorithm: "norm" or "value"; None means "norm".
        zero_grad: Moment when gradients are zeroed: "before_backward" after `training_step`, "before_training_step", or
            "after_optimizer_step"; None means "before_backward", unless the run's `optimization_factory` has another.
            The two others free the memory of gradients for the activations of the next step.
        truncated_bptt_steps: Time steps per split; batches are split for truncated backpropagation through time. None
            takes the module's attribute of that name, if it has one, and else leaves batches whole.

    Raises:
        TypeError, ValueError: If a value is of the wrong type or out of range.
    """

    accumulate_grad_batches: int = attrs.field(default=1, validator=integer(1, action="Pass 1 for no accumulation."))
    gradient_clip_val: float | None = attrs.field(default=None, validator=integer(0, optional=True, or_float=True))
    gradient_clip_algorithm: str = attrs.field(
        default="norm", converter=_norm_if_none, validator=one_of("norm", "value")
    )
    zero_grad: ZeroGrad | None = attrs.field(default=None, validator=attrs.validators.optional(one_of(*ZERO_GRADS)))
    truncated_bptt_steps: int | None = attrs.field(default=None, validator=integer(1, optional=True))

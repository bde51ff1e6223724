"""The trainer's loops, from its constructor's arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from camshaft.hooks_core.user_warnings import warn_user
from camshaft.loops import FitLimits, FitLoop, PredictLoop, TestLoop, ValidationLoop
from camshaft.trainer.trial import limits_of_trial


@attrs.frozen
class TrainerLoops:
    """A loop for each verb."""

    fit: FitLoop
    validate: ValidationLoop
    test: TestLoop
    predict: PredictLoop


def choose_loops(
    *,
    num_trial_batches: int,
    limits: Mapping[str, Any],
    evaluation_limits: Mapping[str, int | float | None],
    inference_mode: bool,
    use_distributed_sampler: bool,
    **fit_arguments: Any,
) -> TrainerLoops:
    """Make the loops.

    Args:
        num_trial_batches: How many batches of everything a trial takes; 0 if it is none.
        limits: Arguments of `FitLimits`; those that are None have its defaults.
        evaluation_limits: How much of each loader to take, by stage; None takes all. Validation takes `overfit_batches`
            instead if that is not 0.
        inference_mode: As in `EvaluationLoop`.
        use_distributed_sampler: As in every loop.
        fit_arguments: Further arguments of `FitLoop`.

    Raises:
        TypeError, ValueError: As the loops.
    """

    overfit_batches = 0 if num_trial_batches else limits.get("overfit_batches") or 0

    def validation() -> ValidationLoop:
        if not overfit_batches:
            return ValidationLoop(**evaluation("validate"))
        loop = ValidationLoop(**{**evaluation("validate"), "limit_batches": 1.0})
        loop.limit_batches, loop.limit_argument = overfit_batches, "overfit_batches"
        return loop

    def evaluation(stage: str) -> dict[str, Any]:
        limit = evaluation_limits[stage]
        return {
            "limit_batches": num_trial_batches or (1.0 if limit is None else limit),
            "inference_mode": inference_mode,
            "use_distributed_sampler": use_distributed_sampler,
        }

    defaults: dict[str, Any] = {"limit_train_batches": 1.0, "val_check_interval": 1.0, "num_sanity_val_steps": 2}
    given: dict[str, Any] = {name: defaults.get(name) if value is None else value for name, value in limits.items()}
    fit_limits = FitLimits(**given)
    limit = evaluation_limits["validate"]
    if overfit_batches and limit not in (None, overfit_batches):
        warn_user(f"`overfit_batches={overfit_batches}` takes the place of `limit_val_batches={limit}`.")
    if num_trial_batches:
        fit_limits = limits_of_trial(fit_limits, num_trial_batches)
    fit = FitLoop(
        fit_limits,
        validation(),
        use_distributed_sampler=use_distributed_sampler,
        **fit_arguments,
    )
    return TrainerLoops(
        fit,
        validation(),
        TestLoop(**evaluation("test")),
        PredictLoop(**evaluation("predict")),
    )

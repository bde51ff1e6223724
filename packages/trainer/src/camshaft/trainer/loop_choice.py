"""The trainer's loops, from its constructor's arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

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
        evaluation_limits: How much of each loader to take, by stage; None takes all.
        inference_mode: As in `EvaluationLoop`.
        use_distributed_sampler: As in every loop.
        fit_arguments: Further arguments of `FitLoop`.

    Raises:
        TypeError, ValueError: As the loops.
    """

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
    if num_trial_batches:
        fit_limits = limits_of_trial(fit_limits, num_trial_batches)
    fit = FitLoop(
        fit_limits,
        ValidationLoop(**evaluation("validate")),
        use_distributed_sampler=use_distributed_sampler,
        **fit_arguments,
    )
    return TrainerLoops(
        fit,
        ValidationLoop(**evaluation("validate")),
        TestLoop(**evaluation("test")),
        PredictLoop(**evaluation("predict")),
    )

"""What goes into a trainer's checkpoints."""

from __future__ import annotations

from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from camshaft.loops import FitLoop, Run, collect
from camshaft.strategies import job_id
from camshaft.trainer.hyperparameters import DATA_PREFIX, hyperparameters_for_checkpoints

JOB_KEY = "job"
"""Where a checkpoint keeps which job saved it, see `job_id`."""

FIT_IDX_KEY = "fit_idx"
"""Where a checkpoint keeps in which of its process's fits it was saved."""


def checkpoint_of(run: Run, loop: FitLoop, *, was_fitted: bool, weights_only: bool, fit_idx: int = 0) -> dict[str, Any]:
    """Put together what a trainer saves. Hooks: see `collect`.

    Args:
        run: The current or last run.
        loop: The loop that trains.
        was_fitted: Whether it is the run's module that the loop trains or trained; otherwise there is nothing to
            resume, and the checkpoint holds no optimizers.
        weights_only: Whether to leave out what only matters for resuming.
        fit_idx: Which of this process's fits it is.
    """
    facts = hyperparameters_for_checkpoints(run.module) | hyperparameters_for_checkpoints(run.data, DATA_PREFIX)
    checkpoint = collect(run, loop if was_fitted else None, weights_only=weights_only, facts=facts)
    with suppress(PackageNotFoundError):  # run from its source alone
        checkpoint["camshaft_version"] = version("camshaft-trainer")
    checkpoint[JOB_KEY] = job_id()
    if was_fitted:
        checkpoint[FIT_IDX_KEY] = fit_idx
    return checkpoint

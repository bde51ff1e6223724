"""A trial run: a few batches of everything, and nothing left behind."""

from __future__ import annotations

import attrs

from camshaft.hooks_core.messages import must_be
from camshaft.loops import FitLimits


def check_fast_dev_run(fast_dev_run: bool | int) -> bool | int:
    """How many batches of everything a trial takes, False for none; True means one.

    Raises:
        TypeError: If it is neither a bool nor an int.
        ValueError: If it is negative.
    """
    if not isinstance(fast_dev_run, int):
        rule = "a bool or an int"
        raise TypeError(must_be("fast_dev_run", rule, fast_dev_run, "Trainer", "Pass a number of batches."))
    if fast_dev_run < 0:
        raise ValueError(must_be("fast_dev_run", "at least 0", fast_dev_run, "Trainer", "Pass a larger number."))
    return fast_dev_run if fast_dev_run else False


def limits_of_trial(limits: FitLimits, num_batches: int) -> FitLimits:
    """One epoch of so many batches with validation at its end, whatever the limits of the real run are.

    Args:
        limits: Those of the real run; what they say of time and reloading holds for the trial as well.
        num_batches: Batches of the epoch.
    """
    return attrs.evolve(
        limits,
        max_epochs=1,
        min_epochs=None,
        max_steps=-1,
        min_steps=None,
        limit_train_batches=num_batches,
        overfit_batches=0.0,
        val_check_interval=1.0,
        check_val_every_n_epoch=1,
        num_sanity_val_steps=0,
    )

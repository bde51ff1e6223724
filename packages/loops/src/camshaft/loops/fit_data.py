"""The loaders of a fit, and how much of them is taken."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import attrs

from camshaft.hooks_core.messages import must_be
from camshaft.loops.batches import count_batches, loaders_of
from camshaft.loops.evaluation_loops import ValidationLoop
from camshaft.loops.fit_limits import FitLimits
from camshaft.loops.run import Run


@attrs.define(eq=False)
class FitData:
    """What a fit iterates over.

    Attributes:
        loader: The training loader; None before it was asked for.
        num_batches: Batches of a training epoch; infinite if unknown.
        validates: Whether there is anything to validate.
        validation_interval: After how many batches validation is due; infinity stands for the end of the epoch.
    """

    loader: Iterable[Any] | None = None
    num_batches: int | float = 0
    validates: bool = False
    validation_interval: int | float = float("inf")


def load_fit_data(run: Run, limits: FitLimits, validation: ValidationLoop) -> FitData:
    """Get the loaders. Hooks: train_dataloader, val_dataloader.

    Args:
        run: The run.
        limits: How much of the loaders to take.
        validation: The loop that gets the validation loaders.

    Raises:
        ValueError: If there is no training loader, or validation is asked for at an impossible interval.
        NotImplementedError: If there are several training loaders.
    """
    loaders = loaders_of(run, "train")
    if not loaders:
        rule = "given, or provided by the data module or the module"
        raise ValueError(must_be("train loader", rule, None, "fit", "Pass a loader."))
    if len(loaders) > 1:
        action = "Combine them into one; several at once are not supported yet."
        raise NotImplementedError(must_be("train loader", "a single one", len(loaders), "fit", action))
    num_batches = count_batches(loaders[0], limits.limit_train_batches, "limit_train_batches")
    if num_batches == 0 and limits.limit_train_batches != 0:
        warnings.warn("The training loader is empty: nothing will be trained.", stacklevel=2)
    data = FitData(loaders[0], num_batches, _load_validation(run, validation))
    if data.validates and num_batches:
        data.validation_interval = limits.batches_between_validations(num_batches)
    return data


def _load_validation(run: Run, validation: ValidationLoop) -> bool:
    """Get the validation loaders. Returns whether there is anything to validate."""
    if validation.limit_batches == 0:  # nobody is asked for loaders that are not used
        validation.loaders, validation.num_batches = [], []
        return False
    has_step = run.hooks.validation_step is not None
    has_batches = validation.load(run) if has_step or run.loaders.get("validate") is not None else False
    if has_step and not validation.loaders:
        warnings.warn("There is a `validation_step` but no validation loader: validation is left out.", stacklevel=2)
    if validation.loaders and not has_step:
        warnings.warn("There is a validation loader but no `validation_step`: validation is left out.", stacklevel=2)
    return has_step and has_batches

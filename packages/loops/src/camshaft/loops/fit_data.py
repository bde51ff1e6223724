"""The loaders of a fit, and how much of them is taken."""

from __future__ import annotations

import warnings
from typing import Any

import attrs
import torch
from torch.utils.data import RandomSampler, SequentialSampler

from camshaft.hooks_core.messages import must_be
from camshaft.loops.batches import count_batches, leaves_of, training_loader
from camshaft.loops.combined_loader import CombinedLoader
from camshaft.loops.evaluation_loops import ValidationLoop
from camshaft.loops.fit_limits import FitLimits
from camshaft.loops.loader_copy import copy_loader, is_plain
from camshaft.loops.random_state import generators_of
from camshaft.loops.resumable_loader import StatelessLoaders
from camshaft.loops.run import Run
from camshaft.loops.training_batches import TrainingBatches


@attrs.define(eq=False)
class FitData:
    """What a fit iterates over.

    Attributes:
        loader: The training loader, as it was given; a `CombinedLoader` if several were.
        batches: The batches of the training epochs.
        num_batches: Batches of a training epoch; infinite if unknown.
        validates: Whether there is anything to validate.
        validation_interval: After how many batches validation is due; infinity stands for the end of the epoch.
        generators: The loaders' own generators, from which they draw their order.
    """

    loader: Any
    batches: TrainingBatches
    num_batches: int | float
    validates: bool
    validation_interval: int | float
    generators: list[torch.Generator]

    def take(self, other: FitData) -> None:
        """Become what another one is, as when the loaders were asked for again."""
        for field in attrs.fields(FitData):
            setattr(self, field.name, getattr(other, field.name))


def load_fit_data(run: Run, limits: FitLimits, validation: ValidationLoop, stateless: StatelessLoaders) -> FitData:
    """Get the loaders. Hooks: train_dataloader, val_dataloader.

    Args:
        run: The run.
        limits: How much of the loaders to take.
        validation: The loop that gets the validation loaders.
        stateless: What to do with training loaders that cannot tell where they were; see `ResumableLoader`.

    Raises:
        ValueError: If there is no training loader, or validation is asked for at an impossible interval.
    """
    loader = training_loader(run)
    if loader is None:
        rule = "given, or provided by the data module or the module"
        raise ValueError(must_be("train loader", rule, None, "fit", "Pass a loader."))
    if limits.overfit_batches:
        loader = _in_order(loader)
    num_batches = count_batches(loader, *limits.train_limit)
    if num_batches == 0 and limits.train_limit[0] != 0:
        warnings.warn("The training loader is empty: nothing will be trained.", stacklevel=2)
    validates = _load_validation(run, limits, validation)
    leaves = [*leaves_of(loader), *validation.loaders]
    return FitData(
        loader,
        TrainingBatches(loader, num_batches, stateless),
        num_batches,
        validates,
        limits.batches_between_validations(num_batches) if validates and num_batches else float("inf"),
        list(dict.fromkeys(generator for leaf in leaves for generator in generators_of(leaf))),
    )


def _load_validation(run: Run, limits: FitLimits, validation: ValidationLoop) -> bool:
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
    if limits.overfit_batches and has_batches:
        validation.num_batches = [
            min(number, count_batches(loader, *limits.train_limit))
            for loader, number in zip(validation.loaders, validation.num_batches, strict=True)
        ]
    return has_step and has_batches


def _in_order(loader: Any) -> Any:
    """The loader without shuffling, so that every epoch has the same batches."""
    if isinstance(loader, CombinedLoader):
        return loader.with_loaders(_in_order)
    if not isinstance(getattr(loader, "sampler", None), RandomSampler):
        return loader
    if not is_plain(loader) or loader.batch_size is None:
        rule = "without shuffling to overfit some batches"
        action = "Pass a loader with shuffle=False."
        raise ValueError(must_be("train loader", rule, loader, "FitLoop(overfit_batches=...)", action))
    warnings.warn("`overfit_batches` takes the same batches in every epoch: the shuffling is left out.", stacklevel=2)
    sampler = SequentialSampler(loader.dataset)
    return copy_loader(loader, type(loader), batch_size=loader.batch_size, drop_last=loader.drop_last, sampler=sampler)

"""What a fit loop shows of itself, read from where it is kept."""

from __future__ import annotations

from typing import Any

import attrs

from camshaft.hooks_core.known_attributes import check_known
from camshaft.loops.batches import parts_of
from camshaft.loops.evaluation_loops import ValidationLoop
from camshaft.loops.fit_data import FitData
from camshaft.loops.fit_limits import FitLimits
from camshaft.loops.lightning_loops import EpochLoopView, EpochProgressView
from camshaft.loops.optimization_mode import OptimizationMode
from camshaft.loops.optimization_settings import OptimizationSettings
from camshaft.loops.optimizers import Optimization
from camshaft.loops.progress import FitProgress
from camshaft.loops.stopping import StoppingRules
from camshaft.loops.training_epoch import TrainingEpoch


class FitView:
    """The attributes of a fit loop that are kept in its parts."""

    progress: FitProgress
    optimization: Optimization
    sanity_checking: bool
    settings: OptimizationSettings
    validation: ValidationLoop
    _data: FitData | None
    _epoch: TrainingEpoch | None
    _mode: OptimizationMode | None
    _stopping: StoppingRules
    _shows_ended_epoch: bool

    @property
    def current_epoch(self) -> int:
        """Index of the epoch; that of the one that has ended until the checkpoints of its end are written."""
        return self.progress.current_epoch - self._shows_ended_epoch

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; one that the loop does not have is refused, with the closest that it has."""
        check_known(self, name)
        object.__setattr__(self, name, value)

    @property
    def limits(self) -> FitLimits:
        """How long to train and how often to validate.

        What is set while a fit runs counts at once, but for what the loaders were counted by: `limit_train_batches`,
        `overfit_batches` and `val_check_interval` count from the next time that loaders are asked for.
        """
        return self._stopping.limits

    @limits.setter
    def limits(self, limits: FitLimits) -> None:
        self._stopping.follow(limits)
        if self._data is not None:
            self._data.limits = limits

    @property
    def max_epochs(self) -> int | None:
        """The largest number of epochs; None if there is no limit. -1 sets none. Set it to train on in the next fit."""
        limit = self.limits.epoch_limit
        return None if limit == float("inf") else int(limit)

    @max_epochs.setter
    def max_epochs(self, value: int | None) -> None:
        self.limits = self.limits.with_number("max_epochs", value)

    @property
    def min_epochs(self) -> int | None:
        """Epochs that `should_stop` cannot cut short."""
        return self.limits.min_epochs

    @min_epochs.setter
    def min_epochs(self, value: int | None) -> None:
        self.limits = self.limits.with_number("min_epochs", value)

    @property
    def max_steps(self) -> int:
        """The largest number of updates; -1 if there is no limit."""
        return self.limits.max_steps

    @max_steps.setter
    def max_steps(self, value: int) -> None:
        self.limits = self.limits.with_number("max_steps", value)

    @property
    def min_steps(self) -> int | None:
        """Updates that `should_stop` cannot cut short."""
        return self.limits.min_steps

    @min_steps.setter
    def min_steps(self, value: int | None) -> None:
        self.limits = self.limits.with_number("min_steps", value)

    @property
    def max_batches(self) -> int | float:
        """Batches of a training epoch, as `num_batches`."""
        return self.num_batches

    @property
    def epoch_loop(self) -> EpochLoopView:
        """Limits in steps, batches and validation, which Lightning keeps in a loop of its own."""
        return EpochLoopView(self)

    @property
    def epoch_progress(self) -> EpochProgressView:
        """How many epochs are over; setting it before a fit lets that one begin there."""
        return EpochProgressView(self.progress)

    def set_clipping(self, gradient_clip_val: float | None, gradient_clip_algorithm: str | None) -> None:
        """Clip gradients otherwise from the next update on. Set it in every process alike.

        Args:
            gradient_clip_val: The largest norm or absolute value; None clips nothing.
            gradient_clip_algorithm: "norm" or "value"; None means "norm".

        Raises:
            TypeError, ValueError: If an argument is of the wrong type or out of range, or the module optimizes by hand.
        """
        settings = attrs.evolve(
            self.settings, gradient_clip_val=gradient_clip_val, gradient_clip_algorithm=gradient_clip_algorithm
        )
        if self._mode is not None:
            self._mode.set_clipping(settings.gradient_clip_val, settings.gradient_clip_algorithm)
        self.settings = settings

    @property
    def accumulate_grad_batches(self) -> int:
        """Batches whose gradients make one update; splits, if batches are split.

        What is set in `on_train_epoch_start` or before counts from the epoch's first batch on, what is set after it
        from the next epoch on. Set it in every process alike.

        Raises:
            TypeError, ValueError: On setting what is no positive int, or what the fit that runs cannot do.
        """
        return self.settings.accumulate_grad_batches

    @accumulate_grad_batches.setter
    def accumulate_grad_batches(self, value: int) -> None:
        settings = attrs.evolve(self.settings, accumulate_grad_batches=value)
        if self._mode is not None:
            self._mode.accumulate_grad_batches = value
        self.settings = settings

    @property
    def arguments(self) -> dict[str, Any]:
        """What all processes must have been given alike, by name.

        The time is not among it: each process may have found out how much it has left, and all stop with the first.
        """
        arguments = attrs.asdict(self.limits) | attrs.asdict(self.settings)
        del arguments["max_time"], arguments["max_seconds"]
        arguments["limit_val_batches"] = self.validation.limit_batches
        arguments["agree_every_n_batches"] = self._stopping.agree_every_n_batches
        return arguments

    @property
    def data(self) -> FitData | None:
        """What the current or last fit iterates over; None before the first."""
        return self._data

    @property
    def loader(self) -> Any:
        """The training loader, a `CombinedLoader` if there are several; None before the fit has asked for it."""
        return None if self._data is None else self._data.loader

    @property
    def given_loader(self) -> Any:
        """The training loader in the structure in which it was given: one loader, or a collection of several."""
        return parts_of(self.loader)

    @property
    def num_batches(self) -> int | float:
        """Batches of a training epoch; infinite if unknown, 0 before the fit has asked for the loader."""
        return 0 if self._data is None else self._data.num_batches

    @property
    def should_stop(self) -> bool:
        """Whether training is to stop at the next opportunity; set it to true from anywhere."""
        return self.progress.should_stop

    @should_stop.setter
    def should_stop(self, value: bool) -> None:
        self.progress.should_stop = value

    @property
    def is_preempted(self) -> bool:
        """Whether the current or latest fit ends because `Run.preempt` asked all processes to save and leave."""
        return self._stopping.is_preempted

    @property
    def stop_reason(self) -> str | None:
        """Why the latest fit ended, in words; None while it runs, and if an error ended it."""
        return self._stopping.reason

    @property
    def is_last_batch(self) -> bool:
        """Whether the batch that runs is known to be its epoch's last."""
        return self._epoch is not None and self._epoch.is_last_batch

    @property
    def num_sanity_batches(self) -> list[int | float]:
        """How many batches of each validation loader the sanity check takes."""
        steps = self.limits.num_sanity_val_steps
        available = self.validation.num_batches
        return [num_batches if steps == -1 else min(steps, num_batches) for num_batches in available]

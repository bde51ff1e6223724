"""The parts of Lightning's fit loop that its users read and set, under the names that these have there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from camshaft.hooks_core.known_attributes import check_known
from camshaft.loops.evaluation.loops import ValidationLoop
from camshaft.loops.state.progress import Counters, FitProgress

if TYPE_CHECKING:
    from camshaft.loops.fit.loop import FitView


class EpochLoopView:
    """A fit loop under the names of Lightning's training epoch loop.

    Args:
        fit: The fit loop.
    """

    def __init__(self, fit: FitView) -> None:
        self._fit = fit
        self._is_sealed = True

    def __setattr__(self, name: str, value: Any) -> None:
        check_known(self, name)
        object.__setattr__(self, name, value)

    @property
    def max_steps(self) -> int:
        """The largest number of updates; -1 if there is no limit."""
        return self._fit.max_steps

    @max_steps.setter
    def max_steps(self, value: int) -> None:
        self._fit.max_steps = value

    @property
    def min_steps(self) -> int | None:
        """Updates that `should_stop` cannot cut short."""
        return self._fit.min_steps

    @min_steps.setter
    def min_steps(self, value: int | None) -> None:
        self._fit.min_steps = value

    @property
    def val_loop(self) -> ValidationLoop:
        """The loop that validates."""
        return self._fit.validation

    @property
    def global_step(self) -> int:
        """Number of updates so far."""
        return self._fit.progress.global_step

    @property
    def _batches_that_stepped(self) -> int:
        """Number of updates so far, by which loggers count; the fit counts it and checkpoints hold it."""
        return self._fit.progress.global_step

    @property
    def batch_idx(self) -> int:
        """Index of the training batch in its epoch; -1 before the first."""
        return self._fit.progress.batches.ready - 1

    @property
    def total_batch_idx(self) -> int:
        """Index of the training batch among those of all epochs; -1 before the first."""
        progress = self._fit.progress
        return progress.earlier_batches.ready + progress.batches.ready - 1


class EpochProgressView:
    """The epochs of a fit under the names of Lightning's progress.

    Args:
        progress: The progress of the fit.

    Attributes:
        current, total: The same epochs; a number that is set for those that are over counts for the next fit.
    """

    def __init__(self, progress: FitProgress) -> None:
        self.current = self.total = EpochCountersView(progress)

    def reset(self) -> None:
        """Begin with the first epoch again; the number of updates stays."""
        self.current.completed = 0

    reset_on_run = reset_on_epoch = reset


class EpochCountersView:
    """The counters of epochs."""

    def __init__(self, progress: FitProgress) -> None:
        self._progress = progress
        self._is_sealed = True

    def __setattr__(self, name: str, value: Any) -> None:
        check_known(self, name)
        object.__setattr__(self, name, value)

    @property
    def ready(self) -> int:
        """Epochs that were prepared."""
        return self._progress.epochs.ready

    @property
    def started(self) -> int:
        """Epochs whose start hooks have run."""
        return self._progress.epochs.started

    @property
    def processed(self) -> int:
        """Epochs whose batches have run."""
        return self._progress.epochs.processed

    @processed.setter
    def processed(self, num_epochs: int) -> None:
        self.completed = num_epochs

    @property
    def completed(self) -> int:
        """Epochs that are over, their end hooks included."""
        return self._progress.epochs.completed

    @completed.setter
    def completed(self, num_epochs: int) -> None:
        self._progress.epochs.load_state_dict(Counters(num_epochs, num_epochs, num_epochs, num_epochs).state_dict())

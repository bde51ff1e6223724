"""After which batches of training validation runs."""

from __future__ import annotations

from camshaft.loops.fit_data import FitData
from camshaft.loops.progress import FitProgress
from camshaft.loops.stopping import StoppingRules


class ValidationSchedule:
    """Tells after which batches validation is due: at its interval, and before training stops within an epoch.

    Args:
        data: Knows the interval.
        progress: How far training is.
        stopping: Knows when `should_stop` is obeyed, and in which epochs to validate.
    """

    def __init__(self, data: FitData, progress: FitProgress, stopping: StoppingRules) -> None:
        self._data = data
        self._progress = progress
        self._stopping = stopping

    def is_due(self, batch_idx: int, is_last: bool) -> bool:
        """Whether to validate after a batch.

        Args:
            batch_idx: The batch's index in the epoch.
            is_last: Whether it is known to be the epoch's last.
        """
        limits, interval = self._stopping.limits, self._data.validation_interval
        if not limits.validates_in(self._progress.current_epoch):
            return False
        # What is preempted goes on later, so that it has the validations of a run that nobody stopped, and no other.
        if self._stopping.wishes.should_stop and self._stopping.may_stop() and not self._stopping.is_preempted:
            return True
        if interval == float("inf"):
            return is_last
        done = self._progress.total_batches if limits.check_val_every_n_epoch is None else batch_idx + 1
        return done % interval == 0

"""When training ends."""

from __future__ import annotations

from camshaft.loops.fit_limits import FitLimits
from camshaft.loops.progress import FitProgress
from camshaft.loops.time_limit import Stopwatch


class StoppingRules:
    """Tells when training ends: at a limit, or where something asked it to and no minimum forbids it.

    Args:
        limits: How long to train.
        progress: How far training is.

    Attributes:
        limits: The same; another one counts from then on.
    """

    def __init__(self, limits: FitLimits, progress: FitProgress) -> None:
        self.limits = limits
        self._progress = progress
        self._stopwatch: Stopwatch | None = None

    def start_clock(self) -> None:
        """Count the time from here on as training, after that of earlier parts."""
        self._stopwatch = Stopwatch(self._progress.elapsed_seconds)

    def stop_clock(self) -> None:
        """Count no more time."""
        self.note_time()
        self._stopwatch = None

    def note_time(self) -> None:
        """Write the time so far into the progress."""
        if self._stopwatch is not None:
            self._progress.elapsed_seconds = self._stopwatch.elapsed_seconds

    def time_is_over(self) -> bool:
        """Whether training has taken all the time that it may."""
        self.note_time()
        return self.limits.max_seconds is not None and self._progress.elapsed_seconds >= self.limits.max_seconds

    def may_stop(self) -> bool:
        """Whether `should_stop` is obeyed already."""
        epochs, steps = self.limits.min_epochs, self.limits.min_steps
        return (epochs is None or self._progress.current_epoch >= epochs) and (
            steps is None or self._progress.global_step >= steps
        )

    def is_done(self) -> bool:
        """Whether no further epoch is to begin."""
        progress, limits = self._progress, self.limits
        return (
            progress.current_epoch >= limits.epoch_limit
            or progress.global_step >= limits.step_limit
            or (progress.should_stop and self.may_stop())
        )

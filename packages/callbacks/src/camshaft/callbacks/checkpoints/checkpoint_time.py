"""When a save is due by the clock of all processes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from camshaft.callbacks.agreement import from_rank_zero

if TYPE_CHECKING:
    from camshaft.hooks_core.protocols import Strategy

_LARGEST_GROWTH = 4


class TimeRhythm:
    """Tells after which batch an interval has passed by the clock of rank 0.

    Several processes ask rank 0 after one batch, and then after half of the batches that the rest of the interval seems
    to take, so that they ask seldom, and often only when it is nearly over.

    Args:
        seconds: The interval; 0 is over after each batch.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.start()

    def start(self) -> None:
        """Begin an interval. Every process does at the same batch."""
        self._since = self._looked_at = time.monotonic()
        self._num_batches = self._num_left = 1

    def is_over(self, strategy: Strategy) -> bool:
        """Count a batch. Returns whether the interval is over; the next one begins then. Collective now and then."""
        self._num_left -= 1
        if self._num_left > 0:
            return False
        is_over, num_batches = from_rank_zero(strategy, lambda: self._look(strategy.world_size))
        if is_over:
            self.start()
        else:
            self._num_batches = self._num_left = num_batches
        return is_over

    def _look(self, world_size: int) -> tuple[bool, int]:
        """Whether it is over, and else after how many batches to look again."""
        now = time.monotonic()
        num_seconds_left = self._seconds - (now - self._since)
        if num_seconds_left <= 0 or world_size == 1:
            return num_seconds_left <= 0, 1
        seconds_per_batch = (now - self._looked_at) / self._num_batches
        self._looked_at = now
        fitting = int(num_seconds_left / max(seconds_per_batch, 1e-9) / 2)
        return False, max(1, min(fitting, _LARGEST_GROWTH * self._num_batches))

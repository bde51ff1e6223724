"""How the processes of a run come to one decision, without waiting for each other at every batch."""

from __future__ import annotations

import time

import torch

from camshaft.hooks_core.protocols import Strategy
from camshaft.loops.progress import FitProgress

_SECONDS_BETWEEN_ROUNDS = 0.25
_LARGEST_INTERVAL = 1000  # batches


class Agreement:
    """Makes one decision of what each process wants: training stops everywhere if it is to stop anywhere.

    The processes ask each other in rounds, which take one small reduction each: at fixed moments such as an epoch's
    end, and while batches run after so many of them that a round comes about four times per second. So a decision that
    one process takes by itself, as after a signal, holds a moment later for all of them.

    Args:
        strategy: Connects the processes.
        progress: Holds what this process wants: `should_stop`.
        every_n_batches: Batches between two rounds; None chooses it by how long batches take, in all processes alike.

    Attributes:
        should_stop: Whether training is to stop, as agreed upon in the latest round.
        preempt_path: Where this process wants a checkpoint before training stops; None if it does not.
    """

    def __init__(self, strategy: Strategy, progress: FitProgress, every_n_batches: int | None = None) -> None:
        self.should_stop = False
        self.preempt_path: str | None = None
        self._strategy = strategy
        self._progress = progress
        self._every_n_batches = every_n_batches
        self._interval = every_n_batches or 1
        self._num_left = self._interval
        self._time = time.perf_counter()

    def is_due(self) -> bool:
        """Count a batch. Returns whether a round comes after it, which is so in all processes alike."""
        self._num_left -= 1
        return self._num_left <= 0

    def hold(self) -> str | None:
        """Hold a round. Collective. Returns where all processes are to save before they stop, or None."""
        wants = [self._progress.should_stop, self.preempt_path is not None, -self._next_interval()]
        agreed = self._strategy.reduce(torch.tensor(wants, dtype=torch.int64), "max").tolist()
        self.should_stop = self._progress.should_stop = bool(agreed[0])
        self._interval = self._num_left = -agreed[2]
        self._time = time.perf_counter()
        if not agreed[1]:
            return None
        paths = self._strategy.all_gather(self.preempt_path)
        self.preempt_path = None
        return next(path for path in paths if path is not None)

    def _next_interval(self) -> int:
        """Batches until the next round, if this process alone were to choose."""
        num_batches = self._interval - self._num_left
        if self._every_n_batches is not None or num_batches <= 0:
            return self._interval
        seconds = (time.perf_counter() - self._time) / num_batches
        fitting = int(_SECONDS_BETWEEN_ROUNDS / max(seconds, 1e-9))
        return max(1, min(fitting, 4 * self._interval, _LARGEST_INTERVAL))

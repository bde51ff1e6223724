"""The bare strategy as one of several ranks, which are threads of one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from bare_parts import BareStrategy
from ranks_in_threads import Exchange, RankInThreads, call_on_ranks

T = TypeVar("T")


class ThreadedStrategy(RankInThreads, BareStrategy):
    """One of several ranks; it notes what the loops ask of it."""

    def __init__(self, exchange: Exchange, rank: int) -> None:
        super().__init__(exchange, rank)
        self.synced: list[bool] = []
        self.num_idle_steps = 0
        self.failures: list[BaseException] = []

    def set_gradient_sync(self, is_on: bool) -> None:
        self.synced.append(is_on)
        super().set_gradient_sync(is_on)

    def idle_step(self) -> None:
        self.num_idle_steps += 1

    def note_failure(self, error: BaseException) -> None:
        self.failures.append(error)


def on_ranks(size: int, function: Callable[[ThreadedStrategy], T]) -> list[T]:
    """Call a function with the strategy of each rank, as `call_on_ranks` does."""
    return call_on_ranks(size, lambda exchange, rank: function(ThreadedStrategy(exchange, rank)))

"""Several ranks as threads of one process: what they tell each other is real, only the wire is not."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from camshaft.hooks_core import StrategyDefaults

T = TypeVar("T")
_SECONDS = 60.0


class Exchange:
    """Where ranks leave what the others take."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.num_rounds = 0
        self._slots: list[bytes] = [b""] * size
        self._barrier = threading.Barrier(size)

    def gather(self, rank: int, value: Any) -> list[Any]:
        self._slots[rank] = pickle.dumps(value)
        if self._barrier.wait(_SECONDS) == 0:
            self.num_rounds += 1
        values = [pickle.loads(slot) for slot in self._slots]
        self._barrier.wait(_SECONDS)
        return values

    def leave(self) -> None:
        """Let nobody wait any more."""
        self._barrier.abort()


class Rank(StrategyDefaults):
    """A strategy as far as a metric log asks for it: one of several ranks."""

    def __init__(self, exchange: Exchange, rank: int) -> None:
        self.exchange = exchange
        self.global_rank = self.local_rank = rank
        self.world_size = exchange.size

    def broadcast(self, value: T, src: int = 0) -> T:
        received: T = self.exchange.gather(self.global_rank, value)[src]
        return received

    def all_gather(self, value: T) -> list[T]:
        return self.exchange.gather(self.global_rank, value)


def on_ranks(size: int, function: Callable[[Rank], T]) -> list[T]:
    """Call a function on each rank. Returns what they returned; raises what the first that failed raised."""
    exchange = Exchange(size)
    raised: list[BaseException] = []

    def run(rank: int) -> T:
        try:
            return function(Rank(exchange, rank))
        except BaseException as error:
            raised.append(error)
            exchange.leave()
            raise

    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(run, rank) for rank in range(size)]
    if raised:
        raise raised[0]
    return [future.result() for future in futures]

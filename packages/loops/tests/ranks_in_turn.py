"""Several ranks one after the other in one thread, so that each has random numbers of its own."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from bare_parts import BareStrategy

T = TypeVar("T")


class Tape:
    """What the first rank sent to the others, and what each rank let all of them know."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.known: dict[int, list[Any]] = {}


class TapedStrategy(BareStrategy):
    """One of several ranks that run in turn, the first one first. Checksums that they gather must be the same."""

    def __init__(self, rank: int, size: int, tape: Tape, replica_size: int = 1) -> None:
        super().__init__()
        self.global_rank = self.local_rank = rank
        self.world_size = size
        self.replica_size = replica_size
        self._tape = tape
        self._num_received = 0
        tape.known[rank] = []

    @property
    def data_rank(self) -> int:
        return self.global_rank // self.replica_size

    @property
    def num_data_ranks(self) -> int:
        return self.world_size // self.replica_size

    def broadcast(self, value: T, src: int = 0) -> T:
        assert src == 0
        if self.global_rank == 0:
            self._tape.sent.append(pickle.dumps(value))
            return value
        self._num_received += 1
        return pickle.loads(self._tape.sent[self._num_received - 1])

    def all_gather(self, value: T) -> list[T]:
        if not isinstance(value, (tuple, torch.Tensor)):  # lengths, with the rank that has them; parts of a sum
            self._tape.known[self.global_rank].append(value)
        return [value] * self.world_size


def seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def in_turn(
    size: int, function: Callable[[TapedStrategy], T], *, seeds: list[int] | None = None, replica_size: int = 1
) -> list[T]:
    """Call a function on each rank, seeded by `seeds`; by default the first rank by 0 and others by other numbers."""
    tape = Tape()
    results = []
    for rank in range(size):
        seed_all(100 * rank if seeds is None else seeds[rank])
        strategy = TapedStrategy(rank, size, tape, replica_size)
        results.append(function(strategy))
        assert rank == 0 or strategy._num_received == len(tape.sent), "the ranks took part in other collectives"
        assert tape.known[rank] == tape.known[0], "the ranks gathered different things"
    return results

"""Two runs that take turns, so that whatever slows the machine for a while slows both."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from torch.utils.data import DataLoader, Dataset

from framework_overhead.workload import BATCH_SIZE, Batch

NUM_WARMUP = 60
NUM_SETTLING = 10
NUM_TAIL = 2

T = TypeVar("T")


Clock = Callable[[], float]
"""Returns seconds."""


class Turns:
    """Lets one of two threads run at a time; it runs until it passes on, or ends."""

    def __init__(self) -> None:
        self._permits = (threading.Semaphore(0), threading.Semaphore(0))
        self._has_ended = [False, False]

    def run(self, first: int, runs: Sequence[Callable[[], T]]) -> list[T]:
        """Run both, each in a thread of its own, and return what they returned.

        Args:
            first: index of the one that begins.
            runs: the two; each may call `pass_on` with its index.
        """

        def take_part(arm: int) -> T:
            self._permits[arm].acquire()
            try:
                return runs[arm]()
            finally:
                self._has_ended[arm] = True
                self._permits[1 - arm].release()

        with ThreadPoolExecutor(max_workers=2) as threads:
            futures = [threads.submit(take_part, arm) for arm in range(2)]
            self._permits[first].release()
            return [future.result() for future in futures]

    def pass_on(self, arm: int) -> None:
        """Let the other one run; return when it passes on or ends. Does nothing if it has ended."""
        if not self._has_ended[1 - arm]:
            self._permits[1 - arm].release()
            self._permits[arm].acquire()


@dataclass(frozen=True)
class Slices:
    """How a run is cut for timing.

    Args:
        num_slices: how many slices there are.
        steps_per_slice: timed steps of each.
        clock: what times them.
    """

    num_slices: int
    steps_per_slice: int
    clock: Clock = time.perf_counter

    @property
    def num_batches(self) -> int:
        """All batches of a run, timed or not."""
        return NUM_WARMUP + self.num_slices * (NUM_SETTLING + self.steps_per_slice) + NUM_TAIL


class SlicedBatches:
    """A cheap loader that times slices of the run which reads it, and gives way before each.

    Steps at the beginning, those just after the other run had its turn (which finds caches full of other things), and
    those at the end are not timed. Whoever reads less than the warm-up, as searches before training do, is not timed.

    Args:
        batches: prebuilt batches, handed out in turn.
        slices: how to cut.
        give_way: called before each slice.
        batch_size: what searches for a batch size read; batches keep theirs.
    """

    def __init__(
        self, batches: list[Any], slices: Slices, give_way: Callable[[], None], batch_size: int = BATCH_SIZE
    ) -> None:
        self._batches = batches
        self._slices = slices
        self._give_way = give_way
        self.batch_size = batch_size
        self.microseconds_per_step: list[float] = []

    def __len__(self) -> int:
        return self._slices.num_batches

    def __iter__(self) -> Iterator[Any]:
        source = itertools.cycle(self._batches)
        yield from itertools.islice(source, NUM_WARMUP)
        num_steps, clock = self._slices.steps_per_slice, self._slices.clock
        for _ in range(self._slices.num_slices):
            self._give_way()
            yield from itertools.islice(source, NUM_SETTLING)
            started = clock()
            yield from itertools.islice(source, num_steps)
            self.microseconds_per_step.append((clock() - started) / num_steps * 1e6)
        yield from itertools.islice(source, NUM_TAIL)


def indices_of(batches: list[Batch]) -> list[list[int]]:
    """Return the indices of the samples of prebuilt batches, as a batch sampler gives them."""
    return [[*range(BATCH_SIZE * idx, BATCH_SIZE * (idx + 1))] for idx in range(len(batches))]


def loader_by_indices(batches: list[Batch], order: SlicedBatches) -> DataLoader[Batch]:
    """Return a loader that reads prebuilt batches in an order of the indices of their samples."""
    return DataLoader(_Prebuilt(batches), batch_sampler=order, collate_fn=_as_it_is)  # type: ignore[arg-type]


class _Prebuilt(Dataset[Batch]):
    def __init__(self, batches: list[Batch]) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches) * BATCH_SIZE

    def __getitems__(self, indices: list[int]) -> Batch:
        return self._batches[indices[0] // BATCH_SIZE]


def _as_it_is(batch: Batch) -> Batch:
    return batch

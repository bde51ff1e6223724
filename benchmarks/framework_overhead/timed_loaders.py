"""Loaders that hold the clock, so that it is the same one for whoever iterates."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch.utils.data import DataLoader, Dataset

from .workload import BATCH_SIZE, SEED, Batch

LoaderKind = Literal["prebuilt", "shuffled", "in_order"]
"""Prebuilt batches in turn, or torch's `DataLoader` over single samples, shuffled or in order."""

NUM_TAIL = 2


class Clock:
    """Notes when the first timed batch is asked for, and when the first one after the timed ones is.

    Between the two lie exactly the timed batches of whoever iterates: start-up, the first (slower) steps and
    everything at the end of the epoch fall outside.

    Args:
        num_warmup: batches before the clock starts.
        num_timed: batches between the two marks.
    """

    def __init__(self, num_warmup: int, num_timed: int) -> None:
        self.num_warmup = num_warmup
        self.num_timed = num_timed
        # Those after the second mark keep the end of the epoch out of the measured time.
        self.num_batches = num_warmup + num_timed + NUM_TAIL
        self._started: float | None = None
        self._stopped: float | None = None

    def start(self) -> None:
        """Set the first mark. Raises RuntimeError if it is set: a clock is for one run."""
        if self._started is not None:
            raise RuntimeError("These batches were already timed. Build a loader for each run.")
        self._started = time.perf_counter()

    def stop(self) -> None:
        """Set the second mark."""
        self._stopped = time.perf_counter()

    @property
    def microseconds_per_batch(self) -> float:
        """Mean time of one timed batch. Raises RuntimeError if the batches were not used up."""
        if self._started is None or self._stopped is None:
            raise RuntimeError("The loop ended before it had asked for all the timed batches.")
        return (self._stopped - self._started) / self.num_timed * 1e6


class TimedBatches:
    """A cheap loader: it hands out prebuilt batches again and again, so that loading costs nearly nothing.

    Args:
        batches: prebuilt batches, handed out in turn.
        clock: started and stopped by whoever iterates.
    """

    def __init__(self, batches: list[Batch], clock: Clock) -> None:
        self._batches = batches
        self._clock = clock

    def __len__(self) -> int:
        return self._clock.num_batches

    def __iter__(self) -> Iterator[Batch]:
        source = itertools.cycle(self._batches)
        yield from itertools.islice(source, self._clock.num_warmup)
        self._clock.start()
        yield from itertools.islice(source, self._clock.num_timed)
        self._clock.stop()
        yield from itertools.islice(source, NUM_TAIL)


class StepTimes:
    """The same loader, which notes when each batch is asked for.

    Args:
        batches: prebuilt batches, handed out in turn.
        num_warmup: batches before the first that is timed.
        num_timed: batches that are timed.
    """

    def __init__(self, batches: list[Batch], num_warmup: int, num_timed: int) -> None:
        self._batches = batches
        self._num_warmup = num_warmup
        self._num_batches = num_warmup + num_timed + NUM_TAIL
        self._asked: list[float] = []

    def __len__(self) -> int:
        return self._num_batches

    def __iter__(self) -> Iterator[Batch]:
        note, clock = self._asked.append, time.perf_counter
        for batch in itertools.islice(itertools.cycle(self._batches), self._num_batches):
            note(clock())
            yield batch

    def microseconds(self) -> list[float]:
        """Return the time of each timed batch: from the moment it is asked for until the next one is."""
        if len(self._asked) != self._num_batches:
            raise RuntimeError("The loop must ask for all batches once, to be timed. Build a loader for each run.")
        timed = self._asked[self._num_warmup : 1 - NUM_TAIL]
        return [(end - begin) * 1e6 for begin, end in itertools.pairwise(timed)]


class TimedDataset(Dataset[Batch]):
    """The samples of prebuilt batches, again and again, for a `DataLoader` to index and collate.

    Args:
        batches: prebuilt batches.
        clock: started and stopped when the loader asks for the samples of a batch.
    """

    def __init__(self, batches: list[Batch], clock: Clock) -> None:
        self._samples: list[Batch] = [sample for batch in batches for sample in zip(*batch, strict=True)]
        self._clock = clock
        self._num_asked = 0

    def __len__(self) -> int:
        return self._clock.num_batches * BATCH_SIZE

    def __getitem__(self, index: int) -> Batch:
        return self._samples[index % len(self._samples)]

    def __getitems__(self, indices: list[int]) -> list[Batch]:
        """Return the samples of a batch. A `DataLoader` calls it in place of `__getitem__`, once for each batch."""
        if self._num_asked == self._clock.num_warmup:
            self._clock.start()
        elif self._num_asked == self._clock.num_warmup + self._clock.num_timed:
            self._clock.stop()
        self._num_asked += 1
        return [self[index] for index in indices]


Loader = TimedBatches | DataLoader[Batch]
"""What frameworks iterate over."""


@dataclass(frozen=True)
class Source:
    """Where the batches of a scenario come from.

    Args:
        kind: the kind of loader.
        build_batches: builds the batches, the same at each call.
        steps_per_batch: how many of the scenario's steps a batch has.
    """

    kind: LoaderKind
    build_batches: Callable[[], list[Batch]]
    steps_per_batch: int = 1

    def build(self, clock: Clock) -> Loader:
        """Return a loader for one run."""
        batches = self.build_batches()
        if self.kind == "prebuilt":
            return TimedBatches(batches, clock)
        # A generator of its own gives every run the same order, whatever else draws random numbers.
        generator = torch.Generator().manual_seed(SEED)
        dataset = TimedDataset(batches, clock)
        return DataLoader(dataset, batch_size=BATCH_SIZE, shuffle=self.kind == "shuffled", generator=generator)

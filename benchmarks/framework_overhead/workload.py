"""The work that the hand-written loop and every framework do: model, batches, constants, and the clock."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import torch
from torch import Tensor, nn

Batch = tuple[Tensor, Tensor]

NUM_FEATURES = 32
NUM_CLASSES = 2
BATCH_SIZE = 8
LEARNING_RATE = 0.01
MAX_GRAD_NORM = 1.0
LOG_EVERY_N_STEPS = 50
BAR_REFRESHES_PER_SECOND = 10
NUM_BUSY_CALLBACKS = 5
SCHEDULER_STEP_SIZE = 100
SEED = 20


def use_one_thread() -> None:
    """Keep torch from starting threads of its own in this process."""
    torch.set_num_threads(1)


def build_model() -> nn.Linear:
    """Return the same tiny model at each call."""
    torch.manual_seed(SEED)
    return nn.Linear(NUM_FEATURES, NUM_CLASSES)


def build_optimizer(model: nn.Module) -> torch.optim.SGD:
    """Return the plain SGD that every loop uses."""
    return torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)


def build_scheduler(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.StepLR:
    """Return the scheduler that every loop of the scenario "everything" steps once per batch."""
    return torch.optim.lr_scheduler.StepLR(optimizer, step_size=SCHEDULER_STEP_SIZE, gamma=0.9)


def build_batches(num_batches: int = 8) -> list[Batch]:
    """Return `num_batches` pairs of inputs (8, 32) float32 and classes (8,) int64, the same at each call."""
    generator = torch.Generator().manual_seed(SEED)
    return [
        (
            torch.randn(BATCH_SIZE, NUM_FEATURES, generator=generator),
            torch.randint(NUM_CLASSES, (BATCH_SIZE,), generator=generator),
        )
        for _ in range(num_batches)
    ]


def flat_weights(model: nn.Module) -> Tensor:
    """Return a copy of all parameters as one vector: proof of the training that was done."""
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).clone()


class TimedBatches:
    """A cheap loader that also holds the clock.

    It hands out prebuilt batches again and again, so that loading costs nearly nothing and the same for all.
    It notes the time when the first batch after the warm-up is asked for and, `num_timed` batches later, when
    the next one is. Between the two lie exactly `num_timed` whole steps of whoever iterates: start-up, the
    first (slower) steps and everything at the end of the epoch fall outside.

    Args:
        batches: prebuilt batches, handed out in turn.
        num_warmup: batches before the clock starts.
        num_timed: batches between the two marks.
        num_tail: batches after the second mark, so that the end of the epoch is not timed.
    """

    def __init__(self, batches: list[Batch], num_warmup: int, num_timed: int, num_tail: int = 2) -> None:
        self.num_warmup = num_warmup
        self.num_timed = num_timed
        self.num_tail = num_tail
        self._batches = batches
        self._started: float | None = None
        self._stopped: float | None = None

    def __len__(self) -> int:
        return self.num_warmup + self.num_timed + self.num_tail

    def __iter__(self) -> Iterator[Batch]:
        source = itertools.cycle(self._batches)
        yield from itertools.islice(source, self.num_warmup)
        if self._started is not None:
            raise RuntimeError("These batches were already timed. Build one TimedBatches for each run.")
        self._started = time.perf_counter()
        yield from itertools.islice(source, self.num_timed)
        self._stopped = time.perf_counter()
        yield from itertools.islice(source, self.num_tail)

    @property
    def microseconds_per_step(self) -> float:
        """Mean time of one timed step. Raises RuntimeError if the batches were not used up."""
        if self._started is None or self._stopped is None:
            raise RuntimeError("The loop ended before it had asked for all the timed batches.")
        return (self._stopped - self._started) / self.num_timed * 1e6

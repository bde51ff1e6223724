"""Paired, interleaved timing of one scenario at a time."""

from __future__ import annotations

import gc
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from .frameworks import Evidence, Framework
from .timed_loaders import Clock, Loader, Source

Run = Callable[[Framework, Loader, Path], Evidence]


class DifferentWorkError(RuntimeError):
    """A run left other results than the one that it is compared with, so their times cannot be."""


@dataclass(frozen=True)
class RunLength:
    """How many steps a timed run has.

    Args:
        num_warmup: steps before the clock starts.
        num_timed: steps under the clock.
    """

    num_warmup: int
    num_timed: int


@dataclass
class Comparison:
    """One framework in one scenario: a value by hand and one for the framework from each round.

    Args:
        framework: name of the framework.
        by_hand: the reference's values, one per round, in the scenario's unit.
        with_framework: the framework's values of the same rounds.
        is_unit_cost: True if both are already the cost of one thing (a callback), so that nothing is
            subtracted to get the cost that is shown.
    """

    framework: str
    is_unit_cost: bool = False
    by_hand: list[float] = field(default_factory=list)
    with_framework: list[float] = field(default_factory=list)

    def added(self) -> list[float]:
        """What the framework cost in each round, paired with the reference of that round."""
        if self.is_unit_cost:
            return self.with_framework
        return [ours - hand for ours, hand in zip(self.with_framework, self.by_hand, strict=True)]

    def ratio(self) -> float | None:
        """Median with the framework over median by hand; None where the work by hand is none."""
        by_hand = statistics.median(self.by_hand)
        return statistics.median(self.with_framework) / by_hand if by_hand > 0 else None


def quartiles(values: list[float]) -> tuple[float, float, float]:
    """Return lower quartile, median and upper quartile of two or more values."""
    lower, middle, upper = statistics.quantiles(values, n=4, method="inclusive")
    return lower, middle, upper


def time_run(framework: Framework, run: Run, length: RunLength, source: Source) -> tuple[float, Evidence]:
    """Run once over fresh batches and return microseconds per step and what the run left behind."""
    clock = Clock(length.num_warmup // source.steps_per_batch, length.num_timed // source.steps_per_batch)
    with tempfile.TemporaryDirectory() as folder, without_collector():
        evidence = run(framework, source.build(clock), Path(folder))
    return clock.microseconds_per_batch / source.steps_per_batch, evidence


def require_same_work(name: str, evidence: Evidence, reference: Evidence, of: str = "the hand-written loop") -> None:
    """Raise DifferentWorkError unless both runs left the same tensors.

    Args:
        name: whose evidence it is.
        evidence: what its run left.
        reference: what the other run left.
        of: whose the reference is.
    """
    for key, expected in reference.items():
        try:
            torch.testing.assert_close(evidence[key], expected, rtol=1e-4, atol=1e-5)
        except (AssertionError, KeyError) as error:
            raise DifferentWorkError(
                f"`{key}` of {name} must equal that of {of}, but differs: {error}. "
                "Correct the benchmark before reading any figure."
            ) from error


@contextmanager
def without_collector() -> Iterator[None]:
    """Collect garbage now, and not inside."""
    # A collection that falls into one run of a pair and not into the other would be most of the difference.
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()

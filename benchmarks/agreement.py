"""Measure what rounds of agreement cost a training step, with 2 to 16 ranks, and fit a model for 1,024.

    python benchmarks/agreement.py

Each rank (gloo, one thread) makes steps of 100 ms in which its core idles, as a host does while its GPU computes; each
step ends with a barrier, as with the reduction of gradients. What a rank spends in `Agreement` is timed: with rounds
that are under way while steps go on, as in a fit, and with rounds that each rank waits for. A line through these
times over the numbers of ranks gives those of 1,024 ranks.

waiting    a rank waits for the round, from its beginning to its outcome
under way  it takes the outcome where it begins the next round
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from camshaft.loops.fit.limits import Agreement, seconds_between_rounds
from camshaft.loops.state.progress import FitProgress
from camshaft.strategies import ParallelStrategy
from framework_overhead.measurement import quartiles
from framework_overhead.ranks import is_rank, values_of_ranks, write_as_rank
from framework_overhead.report import circumstances, publish

SECONDS = 0.1
NUM_WARMUP = 20
NUM_RANKS = (2, 4, 8, 16)
LARGE = 1024
AIM_PERCENT = 0.1
KINDS = ("waiting", "under way")


def measure(num_steps: int) -> dict[str, list[float]]:
    """Return this rank's microseconds in each round, waited for or not."""
    strategy: Any = ParallelStrategy(accelerator="cpu")
    strategy.connect()
    times: dict[str, list[float]] = {}
    for kind, waits in (("waiting", True), ("under way", False)):
        agreement = Agreement(strategy, FitProgress())
        of_rounds: list[float] = []
        for step in range(NUM_WARMUP + num_steps):
            time.sleep(SECONDS)
            strategy.barrier()
            begin = time.perf_counter()
            if agreement.is_due():
                agreement.hold(waits=waits)
                if step >= NUM_WARMUP:  # the first ones find out how long a step is
                    of_rounds.append((time.perf_counter() - begin) * 1e6)
        times[kind] = of_rounds
    return times


def line(values: Mapping[int, float]) -> tuple[float, float]:
    """Return intercept and slope of the line that fits values by number of ranks best."""
    slope, intercept = statistics.linear_regression(list(values), list(values.values()))
    return intercept, slope


def medians(report: Mapping[str, Any], kind: str) -> dict[int, float]:
    """Return the microseconds of a round by number of ranks: lower quartiles over rounds, medians over ranks."""
    return {
        int(number): statistics.median(quartiles(times[kind])[0] for times in of_ranks)
        for number, of_ranks in report["values"].items()
    }


def table_rows(report: Mapping[str, Any]) -> list[list[str]]:
    """Return the table of a report: its head, a line for each number of ranks, and one for the model."""
    rows = [["ranks", *(f"{kind} (µs/round)" for kind in KINDS), "rounds per second", "share of a step of 100 ms"]]
    columns = [medians(report, kind) for kind in KINDS]
    lines = [line(column) for column in columns]
    fitted = [max(0.0, intercept + LARGE * slope) for intercept, slope in lines]
    measured = [(str(number), number, [column[number] for column in columns]) for number in columns[0]]
    for name, number, values in [*measured, (f"{LARGE} (line)", LARGE, fitted)]:
        per_second = 1 / seconds_between_rounds(number)
        share = values[-1] * per_second / 1e4
        rows.append([name, *(f"{value:.0f}" for value in values), f"{per_second:.2f}", f"{share:.3f} %"])
    slopes = [f"{intercept:.0f} + {slope:.2f} n" for intercept, slope in lines]
    return [*rows, ["line", *slopes, "", f"aim: below {AIM_PERCENT} %"]]


def main(arguments: Sequence[str]) -> int:
    """Start the ranks, or be one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", nargs="+", type=int, default=NUM_RANKS, help="numbers of ranks, two or more")
    parser.add_argument("--steps", type=int, default=100, help="steps of each kind (default: 100)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every single value to FILE")
    options = parser.parse_args(arguments)
    if is_rank():
        write_as_rank(measure(options.steps))
        return 0
    before = circumstances()
    values = values_of_ranks(__file__, options.ranks, options.steps)
    report = {"conditions": before | {"num_timed_steps": options.steps}, "values": values}
    publish(report, table_rows(report), options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

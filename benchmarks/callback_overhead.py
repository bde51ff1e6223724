"""Measure what each stock callback adds to a training step, and what Lightning's same callback does.

    python benchmarks/callback_overhead.py --quick

`benchmarks/README.md` says what is measured and how to read the table.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from framework_overhead.frameworks import OURS, load_framework
from framework_overhead.lightning_shape import LightningShape
from framework_overhead.measurement import RunLength, quartiles
from framework_overhead.report import (
    Conditions,
    circumstances,
    condition_lines,
    markdown_table,
    number,
    signed,
    text_table,
    write_values,
)
from framework_overhead.workload import use_one_thread
from stock_callbacks.pairs import Cost, has_equivalent, measure_round, title_of
from stock_callbacks.rows import ROWS, Row
from stock_callbacks.taking_turns import NUM_SETTLING, NUM_WARMUP, Clock, Slices

FRAMEWORKS = (OURS, "lightning")
STEPS_PER_SLICE = 100
STEPS_OF_UNEVEN = 5
"""How many times longer a run is whose work does not recur in every slice."""

Results = dict[str, dict[str, Cost | str]]
"""For each row and framework its cost, or why there is none."""


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    """Return the checked options of the command line."""
    names = [row.name for row in ROWS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=names, default=names, help="rows")
    parser.add_argument("--frameworks", nargs="+", choices=FRAMEWORKS, default=list(FRAMEWORKS), help="columns")
    parser.add_argument("--rounds", type=int, help="paired rounds, 5 or more (default: 15; with --quick: 5)")
    parser.add_argument(
        "--steps",
        type=int,
        help=f"timed steps of one run, a multiple of {STEPS_PER_SLICE} (default: 1000; with --quick: 300)",
    )
    parser.add_argument("--quick", action="store_true", help="few and short rounds: a look, not a measurement")
    parser.add_argument(
        "--processor-time",
        action="store_true",
        help="count the processor's time in place of the clock's: for a machine that does other things meanwhile",
    )
    parser.add_argument("--markdown", action="store_true", help="print markdown instead of aligned text")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every single value to FILE")
    options = parser.parse_args(arguments)
    if options.rounds is None:
        options.rounds = 5 if options.quick else 15
    if options.steps is None:
        options.steps = 300 if options.quick else 1000
    if options.rounds < 5:
        parser.error(f"--rounds must be 5 or more, but got {options.rounds}.")
    if options.steps < STEPS_PER_SLICE or options.steps % STEPS_PER_SLICE != 0:
        parser.error(f"--steps must be a positive multiple of {STEPS_PER_SLICE}, but got {options.steps}.")
    return options


def load_installed(names: list[str]) -> tuple[list[LightningShape], dict[str, str]]:
    """Return the frameworks that can be imported, and the reason for each that cannot."""
    frameworks: list[LightningShape] = []
    skipped: dict[str, str] = {}
    for name in names:
        try:
            framework = load_framework(name)
        except ImportError as error:
            skipped[name] = f"cannot be imported ({error})"
        else:
            assert isinstance(framework, LightningShape)
            frameworks.append(framework)
    return frameworks, skipped


def slices_of(row: Row, num_steps: int, clock: Clock) -> Slices:
    """Return how a row's runs are cut."""
    if row.is_uneven:
        return Slices(1, STEPS_OF_UNEVEN * num_steps, clock)
    return Slices(num_steps // STEPS_PER_SLICE, STEPS_PER_SLICE, clock)


def use_one_core() -> None:
    """Keep the process on one core, where the system can: of two runs none is to have the busier core."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def measure(framework: LightningShape, row: Row, num_rounds: int, slices: Slices) -> Cost | str:
    """Return what a row costs, or why it cannot be measured, after one round that is thrown away."""
    cost = Cost(framework.name, title_of(framework, row))
    try:
        for round_idx in range(-1, num_rounds):
            measure_round(framework, row, round_idx, slices, cost)
    except ImportError as error:
        return f"cannot be imported ({error})"
    return cost


def table_rows(report: Mapping[str, Any]) -> list[list[str]]:
    """Return the table of a report of `as_json`: its head, and a line for each callback."""
    head, frameworks = ["adds to a step (µs)"], list(report["conditions"]["frameworks"])
    for framework in frameworks:
        head += [framework, "quartiles", "step without"]
    table = [head]
    for name, costs in report["callbacks"].items():
        line = [name]
        for framework in frameworks:
            line += _cells(costs.get(framework), name)
        table.append(line)
    return table


def _cells(cost: Mapping[str, Any] | None, name: str) -> list[str]:
    if cost is None or "skipped" in cost:
        return ["-" if cost is None else "n/a", "", ""]
    lower, middle, upper = cost["added_quartiles"]
    title = "" if cost["attached"] == name else f" ({cost['attached']})"
    return [
        f"{signed(middle)}{title}",
        f"[{signed(lower)} .. {signed(upper)}]",
        number(quartiles(cost["step_without"])[1]),
    ]


def as_json(conditions: Conditions, results: Results, is_processor_time: bool) -> dict[str, Any]:
    """Return conditions and every single value, for `json.dump`."""
    return {
        "conditions": conditions.as_dict() | {"is_processor_time": is_processor_time},
        "callbacks": {
            name: {
                framework: {"skipped": cost}
                if isinstance(cost, str)
                else {
                    "attached": cost.title,
                    "step_without": cost.without,
                    "added": cost.added,
                    "added_quartiles": quartiles(cost.added),
                }
                for framework, cost in costs.items()
            }
            for name, costs in results.items()
        },
    }


def main(arguments: list[str]) -> int:
    """Measure and print; return 1 if no framework is installed."""
    options, before = parse_arguments(arguments), circumstances()
    warnings.filterwarnings("ignore")
    use_one_thread()
    use_one_core()
    clock = time.process_time if options.processor_time else time.perf_counter
    frameworks, skipped = load_installed(options.frameworks)
    if not frameworks:
        print("None of the frameworks is installed, so there is nothing to measure.", file=sys.stderr)
        return 1
    rows = [row for row in ROWS if row.name in options.only]
    results: Results = {}
    for row in rows:
        print(f"measuring: {row.name}", file=sys.stderr)
        slices = slices_of(row, options.steps, clock)
        results[row.name] = {
            framework.name: measure(framework, row, options.rounds, slices)
            for framework in frameworks
            if has_equivalent(framework, row)
        }
    for name, costs in results.items():
        skipped |= {f"{name} of {framework}": why for framework, why in costs.items() if isinstance(why, str)}
    length = RunLength(num_warmup=NUM_WARMUP + NUM_SETTLING, num_timed=options.steps)
    conditions = Conditions(before, list(frameworks), skipped, options.rounds, length)
    report = as_json(conditions, results, options.processor_time)
    header = [
        *condition_lines(report["conditions"]),
        f"time of the {'processor' if options.processor_time else 'clock'}",
    ]
    table = (markdown_table if options.markdown else text_table)(table_rows(report))
    print("\n".join([*(f"- {line}" if options.markdown else line for line in header), "", *table]))
    write_values(report, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Measure what camshaft, Lightning, Fabric, Ignite and torchtnt add to a training loop written by hand.

    python benchmarks/overhead.py --quick

`benchmarks/README.md` says what is measured and how to read the table.
"""

from __future__ import annotations

import argparse
import math
import sys
import warnings
from pathlib import Path

from framework_overhead.frameworks import BY_HAND, FRAMEWORK_NAMES, Framework, load_framework
from framework_overhead.measurement import RunLength
from framework_overhead.recurrent import NUM_SPLITS
from framework_overhead.report import Conditions, Results, as_json, circumstances, render, write_values
from framework_overhead.scenarios import SCENARIOS
from framework_overhead.workload import ACCUMULATED_BATCHES, LOG_EVERY_N_STEPS, use_one_thread

STEPS_UNIT = math.lcm(LOG_EVERY_N_STEPS, ACCUMULATED_BATCHES, NUM_SPLITS)
SCENARIO_KEYS = tuple(scenario.key for scenario in SCENARIOS)


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    """Return the checked options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--frameworks", nargs="+", choices=FRAMEWORK_NAMES, default=list(FRAMEWORK_NAMES), help="columns"
    )
    parser.add_argument("--scenarios", nargs="+", choices=SCENARIO_KEYS, default=list(SCENARIO_KEYS), help="rows")
    parser.add_argument("--rounds", type=int, help="paired rounds, 5 or more (default: 15; with --quick: 5)")
    parser.add_argument(
        "--steps",
        type=int,
        help=f"timed steps of one run, a multiple of {STEPS_UNIT} (default: 1000; with --quick: 200)",
    )
    parser.add_argument("--quick", action="store_true", help="few and short rounds: a look, not a measurement")
    parser.add_argument("--markdown", action="store_true", help="print markdown instead of aligned text")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every single value to FILE")
    options = parser.parse_args(arguments)
    if options.rounds is None:
        options.rounds = 5 if options.quick else 15
    if options.steps is None:
        options.steps = 200 if options.quick else 1000
    if options.rounds < 5:
        parser.error(f"--rounds must be 5 or more, but got {options.rounds}.")
    if options.steps < STEPS_UNIT or options.steps % STEPS_UNIT != 0:
        parser.error(
            f"--steps must be a positive multiple of {STEPS_UNIT}, which holds whole logging intervals, accumulation "
            f"windows and split batches, but got {options.steps}."
        )
    return options


def load_installed(names: list[str]) -> tuple[list[Framework], dict[str, str]]:
    """Return the frameworks that can be imported, and the reason for each that cannot."""
    frameworks: list[Framework] = []
    skipped: dict[str, str] = {}
    for name in names:
        try:
            frameworks.append(load_framework(name))
        except ImportError as error:
            skipped[name] = f"cannot be imported ({error})"
            print(f"skipping {name}: {skipped[name]}", file=sys.stderr)
    return frameworks, skipped


def main(arguments: list[str]) -> int:
    """Measure and print; return 1 if no framework is installed."""
    options, before = parse_arguments(arguments), circumstances()
    warnings.filterwarnings("ignore")
    use_one_thread()
    by_hand = load_framework(BY_HAND)
    frameworks, skipped = load_installed(options.frameworks)
    if not frameworks:
        print("None of the frameworks is installed, so there is nothing to measure.", file=sys.stderr)
        return 1
    length = RunLength(num_warmup=LOG_EVERY_N_STEPS, num_timed=options.steps)
    scenarios = [scenario for scenario in SCENARIOS if scenario.key in options.scenarios]
    results: Results = {}
    for scenario in scenarios:
        print(f"measuring: {scenario.title}", file=sys.stderr)
        results[scenario.key] = scenario.compare(by_hand, frameworks, options.rounds, length)
    conditions = Conditions(before, frameworks, skipped, options.rounds, length)
    report = as_json(conditions, scenarios, results)
    print(render(report, options.markdown))
    write_values(report, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

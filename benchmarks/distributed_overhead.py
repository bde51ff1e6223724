"""Measure what camshaft, Lightning, Fabric and Accelerate add to a hand-written step of DDP and FSDP2.

    python benchmarks/distributed_overhead.py --quick

It starts two ranks on this machine (gloo, one thread each). `benchmarks/README.md` says how to read the table.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from distributed_training.contenders import CONTENDERS, Train
from framework_overhead.measurement import Comparison, quartiles, require_same_work, without_collector
from framework_overhead.report import circumstances, circumstances_lines, text_table, timing_rows, write_values
from framework_overhead.timed_loaders import StepTimes
from framework_overhead.workload import build_batches, use_one_thread

BY_HAND = "by hand"
CONTROL = "by hand again"
NUM_RANKS = 2
NUM_WARMUP = 50
AIM_MICROSECONDS = 10


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    """Return the checked options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=list(CONTENDERS), default=list(CONTENDERS), help="rows")
    parser.add_argument("--rounds", type=int, help="paired rounds, 5 or more (default: 60; with --quick: 5)")
    parser.add_argument("--steps", type=int, help="timed steps of one run (default: 300; with --quick: 200)")
    parser.add_argument("--quick", action="store_true", help="few and short rounds: a look, not a measurement")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every single value to FILE")
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or (5 if options.quick else 60)
    options.steps = options.steps or (200 if options.quick else 300)
    if options.rounds < 5:
        parser.error(f"--rounds must be 5 or more, but got {options.rounds}.")
    if options.steps < 4:
        parser.error(f"--steps must be at least 4, so that it has quartiles, but got {options.steps}.")
    return options


def time_run(train: Train, num_steps: int) -> tuple[float, torch.Tensor]:
    """Train once. Returns the lower quartile of this rank's steps, in microseconds, and the weights."""
    batches = build_batches()
    rank = torch.distributed.get_rank()
    steps = StepTimes(batches[rank:] + batches[:rank], NUM_WARMUP, num_steps)
    torch.distributed.barrier()
    with without_collector():
        weights = train(steps)
    return quartiles(steps.microseconds())[0], weights


def measure(kind: str, num_rounds: int, num_steps: int) -> dict[str, list[float]]:
    """Time every contender in every round. Returns microseconds per step by name; a first round is thrown away."""
    times: dict[str, list[float]] = {}
    contenders = [*CONTENDERS[kind].items(), (CONTROL, CONTENDERS[kind][BY_HAND])]
    for round_idx in range(-1, num_rounds):
        reference: torch.Tensor | None = None
        begin = round_idx % len(contenders)
        order = contenders[begin:] + contenders[:begin]  # each contender follows another one in each round
        for name, train in order if round_idx % 2 else reversed(order):
            microseconds, weights = time_run(train, num_steps)
            reference = weights if reference is None else reference
            require_same_work(name, {"weights": weights}, {"weights": reference})
            if round_idx >= 0:
                times.setdefault(name, []).append(microseconds)
    return times


def run_rank(options: argparse.Namespace, path: Path) -> None:
    """Measure on this rank; the first one writes the values."""
    warnings.filterwarnings("ignore")
    use_one_thread()
    torch.distributed.init_process_group("gloo")
    values = {kind: measure(kind, options.rounds, options.steps) for kind in options.kinds}
    if torch.distributed.get_rank() == 0:
        path.write_text(json.dumps(values))
    torch.distributed.destroy_process_group()


def as_json(
    before: dict[str, Any], values: dict[str, dict[str, list[float]]], options: argparse.Namespace
) -> dict[str, Any]:
    """Return conditions and every single value, for `json.dump`."""
    settings = {"num_ranks": NUM_RANKS, "num_rounds": options.rounds, "num_timed_steps": options.steps}
    return {"conditions": before | settings, "values": values}


def table_rows(report: Mapping[str, Any]) -> list[list[str]]:
    """Return the table of a report of `as_json`: its head, and a line for each kind and framework."""
    comparisons = [
        (kind, Comparison(name, False, times[BY_HAND], times[name]))
        for kind, times in report["values"].items()
        for name in sorted(times, key=[*CONTENDERS[kind], CONTROL].index)
        if name != BY_HAND
    ]
    return timing_rows(comparisons)


def render(report: Mapping[str, Any]) -> str:
    """Return a report as text."""
    facts = report["conditions"]
    header = [
        *circumstances_lines(facts),
        f"{facts['num_ranks']} ranks on gloo, one thread each; {facts['num_timed_steps']} timed steps a run after "
        f"{NUM_WARMUP}; lower quartile of a run's steps; medians of {facts['num_rounds']} paired rounds; "
        f"microseconds per step; camshaft is to add at most {AIM_MICROSECONDS}",
    ]
    return "\n".join([*header, "", *text_table(table_rows(report))])


def main(arguments: list[str]) -> int:
    """Start the ranks, or be one of them."""
    options = parse_arguments(arguments)
    given = os.environ.get("DISTRIBUTED_OVERHEAD_FILE")
    if given:
        run_rank(options, Path(given))
        return 0
    before = circumstances()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "values.json")
        launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={NUM_RANKS}"]
        environment = os.environ | {"DISTRIBUTED_OVERHEAD_FILE": str(path), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, *launch, __file__, *arguments]
        if subprocess.run(command, env=environment).returncode:
            return 1
        values = json.loads(path.read_text())
    report = as_json(before, values, options)
    print(render(report))
    write_values(report, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Measure saving and loading a sharded checkpoint beside `torch.distributed.checkpoint` (DCP).

    python benchmarks/sharded_checkpoints.py --ranks 2 4

The model has 1,000 parameters of 256 x 128 (131 MB), sharded by `fully_shard` over ranks on gloo. Each round saves and
loads both ways, in an order that changes, so that a drift of the machine meets both. A figure is the time until all
ranks are done. DCP flushes its files as camshaft does, but verifies no checksums.

first save   the first of a process, in which saves are planned
save         later ones
load         until the parameters have the values; of files that the operating system holds in memory
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import nn

from camshaft.strategies import ShardedStrategy
from framework_overhead.report import circumstances, publish

NUM_TENSORS, SHAPE = 1000, (256, 128)
AIM_RATIO = 1.2
WAYS = ("dcp", "camshaft")
PHASES = ("first save", "save", "load")


class Module(nn.Module):
    """A module of many parameters, as large models have."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.randn(SHAPE) for _ in range(NUM_TENSORS))


def measure(num_rounds: int, folder: Path) -> dict[str, dict[str, list[float]]]:
    """Save and load both ways; times in seconds. Collective."""
    torch.manual_seed(0)
    strategy, module = ShardedStrategy(accelerator="cpu"), Module()
    strategy.connect()
    strategy.setup_module(module)
    expected = [parameter.detach().to_local().clone() for parameter in module.weights]  # type: ignore[attr-defined]
    times: dict[str, dict[str, list[float]]] = {way: {phase: [] for phase in PHASES} for way in WAYS}

    def load() -> None:
        strategy.load_module_state(module, strategy.load_checkpoint(str(folder / "camshaft"))["state_dict"])

    calls: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "dcp": (
            lambda: dcp.save(module.state_dict(), checkpoint_id=folder / "dcp"),  # type: ignore[attr-defined]
            lambda: dcp.load(module.state_dict(), checkpoint_id=folder / "dcp"),  # type: ignore[attr-defined]
        ),
        "camshaft": (
            lambda: strategy.save_checkpoint({"state_dict": module.state_dict()}, str(folder / "camshaft")),
            load,
        ),
    }
    for round_idx in range(num_rounds):
        for way in WAYS if round_idx % 2 == 0 else WAYS[::-1]:
            for number, call in enumerate(calls[way]):
                if number == 1:
                    with torch.no_grad():
                        for parameter in module.parameters():
                            parameter.zero_()
                elif strategy.global_rank == 0:
                    shutil.rmtree(folder / way, ignore_errors=True)
                    os.sync()  # nobody pays for what was left over
                strategy.barrier()
                start = time.perf_counter()
                call()
                strategy.barrier()
                phase = "load" if number == 1 else "save" if round_idx else "first save"
                times[way][phase].append(time.perf_counter() - start)
            same = map(torch.equal, (parameter.to_local() for parameter in module.weights), expected)  # type: ignore[attr-defined]
            assert all(same), f"{way} loaded other values"
    return times if strategy.global_rank == 0 else {}


def table_rows(report: Mapping[str, Any]) -> list[list[str]]:
    """Return the table of a report: its head, and a line for each number of ranks and phase."""
    rows = [["ranks", "phase", "dcp (s)", "camshaft (s)", "ratio", "times"]]
    for num_ranks, times in report["values"].items():
        for phase in PHASES:
            theirs, ours = (statistics.median(times[way][phase]) for way in WAYS)
            number = str(len(times["dcp"][phase]))
            rows.append([num_ranks, phase, f"{theirs:.2f}", f"{ours:.2f}", f"{ours / theirs:.2f}x", number])
    return rows


def main(arguments: list[str]) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", nargs="+", type=int, default=[2, 4, 8], help="numbers of ranks (default: 2 4 8)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, 2 or more (default: 5)")
    parser.add_argument("--folder", type=Path, help="where to save (default: a temporary folder)")
    parser.add_argument("--markdown", action="store_true", help="print markdown instead of aligned text")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every single value to FILE")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.measure:
        times = measure(options.rounds, options.folder)
        if times:
            options.measure.write_text(json.dumps(times))
        return 0
    if options.rounds < 2:
        parser.error(f"--rounds must be 2 or more, but got {options.rounds}.")
    report: dict[str, Any] = {"conditions": circumstances(), "values": {}}
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for num_ranks in options.ranks:
            answer = Path(folder, "times.json")
            launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_ranks), __file__]
            own = ["--measure", str(answer), "--folder", folder, "--rounds", str(options.rounds)]
            subprocess.run([sys.executable, *launch, *own], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
            report["values"][str(num_ranks)] = json.loads(answer.read_text())
    aim = f"Aim: loading at most {AIM_RATIO} times as long as DCP."
    publish(report, table_rows(report), options.json, markdown=options.markdown, aim=aim)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Measure how long saving a checkpoint blocks the training loop, and how long it takes until the checkpoint is whole.

    python benchmarks/checkpoint_blocking.py --markdown

The model has 50 million parameters in 12 layers and an Adam with its state: 604 MB. Each way of saving runs in
processes of its own, several times in turn, so that a drift of the machine meets all of them. The first save of a
process is not counted: it also pays for memory that later ones find in place. Between saves the loop trains another,
tiny model, whose step is the more disturbed the longer a writing thread holds Python's lock or keeps a core busy.

blocked   from the call until the loop goes on, with the state gathered from model and optimizer
complete  from the call until the checkpoint is whole; "synced" says whether it is flushed to disk by then
step      a step of the tiny model while a checkpoint is written, and its ratio to a step at other times
first     the blocking of a process's first save
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
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from framework_overhead.measurement import quartiles
from framework_overhead.report import circumstances, circumstances_lines, markdown_table, text_table, write_values

NUM_LAYERS, WIDTH = 12, 2044
AIM_MS = 65.0
AIM_RATIO = 1.5
KEPT = "dcp.async_save, staging kept"
OURS = "camshaft, asynchronous"

Save = Callable[[str], Callable[[], None]]
"""Saves to a path and returns what waits until the checkpoint is whole; the loop goes on in between."""


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {"state_dict": model.state_dict(), "optimizer_states": [optimizer.state_dict()]}


def _nothing() -> None:
    """What waits for a checkpoint that is whole."""


def with_camshaft(model: nn.Module, optimizer: torch.optim.Optimizer, asynchronous: bool) -> Save:
    from camshaft.strategies import SingleDeviceStrategy

    strategy = SingleDeviceStrategy("cpu", save_asynchronously=asynchronous)

    def save(path: str) -> Callable[[], None]:
        pending = strategy.save_checkpoint(state_of(model, optimizer), path)
        return _nothing if pending is None else pending.wait

    return save


def with_torch_save(model: nn.Module, optimizer: torch.optim.Optimizer) -> Save:
    def save(path: str) -> Callable[[], None]:
        torch.save(state_of(model, optimizer), path)
        return _nothing

    return save


def with_dcp(model: nn.Module, optimizer: torch.optim.Optimizer, asynchronous: bool, keep_staging: bool) -> Save:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

    options: dict[str, Any] = {}
    if keep_staging:
        options["async_stager"] = DefaultStager(StagingOptions(False, False, False, False))

    def save(path: str) -> Callable[[], None]:
        if not asynchronous:
            dcp.save(state_of(model, optimizer), checkpoint_id=path)  # type: ignore[attr-defined]
            return _nothing
        future: Any = dcp.async_save(state_of(model, optimizer), checkpoint_id=path, **options)  # type: ignore[attr-defined]
        return future.result  # type: ignore[no-any-return]

    return save


def with_lightning(model: nn.Module, optimizer: torch.optim.Optimizer, asynchronous: bool) -> Save:
    import logging

    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.plugins.io import AsyncCheckpointIO

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

    trainer = Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        plugins=[AsyncCheckpointIO()] if asynchronous else [],
    )
    trainer.strategy.connect(Module())
    trainer.strategy.optimizers = [optimizer]

    def save(path: str) -> Callable[[], None]:
        trainer.save_checkpoint(path)

        def wait() -> None:
            while not os.path.exists(path):  # it appears by a rename
                time.sleep(0.005)

        return wait

    return save


WAYS: dict[str, tuple[Callable[[nn.Module, torch.optim.Optimizer], Save], str]] = {
    "torch.save": (with_torch_save, "no"),
    "dcp.save": (lambda model, optimizer: with_dcp(model, optimizer, False, False), "yes"),
    "dcp.async_save": (lambda model, optimizer: with_dcp(model, optimizer, True, False), "yes"),
    KEPT: (lambda model, optimizer: with_dcp(model, optimizer, True, True), "yes"),
    "lightning": (lambda model, optimizer: with_lightning(model, optimizer, False), "no"),
    "lightning, AsyncCheckpointIO": (lambda model, optimizer: with_lightning(model, optimizer, True), "no"),
    "camshaft": (lambda model, optimizer: with_camshaft(model, optimizer, False), "yes, and renamed"),
    OURS: (lambda model, optimizer: with_camshaft(model, optimizer, True), "yes, and renamed"),
}


def measure(way: str, num_saves: int, folder: Path) -> dict[str, list[float]]:
    """Save several times, training in between; times in milliseconds."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(NUM_LAYERS)))
    optimizer = torch.optim.Adam(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    save = WAYS[way][0](model, optimizer)
    tiny = nn.Sequential(*(nn.Linear(64, 64) for _ in range(20)))
    tiny_optimizer = torch.optim.SGD(tiny.parameters(), lr=0.01)
    inputs = torch.randn(32, 64)

    def step() -> float:
        start = time.perf_counter()
        tiny(inputs).square().mean().backward()
        tiny_optimizer.step()
        tiny_optimizer.zero_grad()
        return (time.perf_counter() - start) * 1e3

    times: dict[str, list[float]] = {"blocked": [], "complete": [], "step_idle": [], "step_writing": []}
    for save_idx in range(num_saves):
        os.sync()  # nobody pays for what was left over
        idle = [step() for _ in range(300)]
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1e-6)  # the caches hold what an update leaves in them
        path = folder / f"{save_idx}.ckpt"
        start = time.perf_counter()
        wait = save(str(path))
        blocked = (time.perf_counter() - start) * 1e3
        end: list[float] = []
        waiter = threading.Thread(target=lambda wait=wait, end=end: (wait(), end.append(time.perf_counter())))
        waiter.start()
        writing = []
        while waiter.is_alive() and wait is not _nothing:
            writing.append(step())
        waiter.join()
        times["blocked"].append(blocked)
        times["complete"].append(max(blocked, (end[0] - start) * 1e3))
        times["step_idle"].append(statistics.mean(idle))
        if writing:
            times["step_writing"].append(statistics.mean(writing))
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return times


def collect(ways: list[str], num_saves: int, num_rounds: int, folder: Path) -> dict[str, dict[str, list[float]]]:
    """Run each way in processes of its own, in turn. The first save of each goes into `first`."""
    results: dict[str, dict[str, list[float]]] = {}
    per_round = -(-num_saves // num_rounds) + 1
    for round_idx in range(num_rounds):
        for way in ways if round_idx % 2 == 0 else reversed(ways):
            print(f"round {round_idx + 1} of {num_rounds}: {way}", file=sys.stderr)
            command = [sys.executable, __file__, "--measure", way, "--saves", str(per_round), "--folder", str(folder)]
            answer = subprocess.run(command, capture_output=True, text=True, check=False)
            if answer.returncode != 0:
                print(f"skipping {way}: {answer.stderr.strip().splitlines()[-1]}", file=sys.stderr)
                continue
            times = json.loads(answer.stdout.splitlines()[-1])
            result = results.setdefault(way, {"first": []})
            result["first"].append(times["blocked"][0])
            for name, values in times.items():
                result.setdefault(name, []).extend(values[1:])
    return results


def table_rows(report: Mapping[str, Any]) -> list[list[str]]:
    """Return the table of a report, as it is written by `--json`: its head, and a line for each way of saving."""
    rows = [
        ["way of saving", "blocked (ms)", "complete (ms)", "synced", "step (ms)", "step ratio", "first (ms)", "saves"]
    ]
    for way, times in report["values"].items():
        idle = statistics.median(times["step_idle"])
        writing = statistics.median(times["step_writing"]) if times["step_writing"] else None
        rows.append(
            [
                way,
                _with_quartiles(times["blocked"]),
                _with_quartiles(times["complete"]),
                WAYS[way][1],
                "-" if writing is None else f"{writing:.2f}",
                "-" if writing is None else f"{writing / idle:.2f}x",
                f"{statistics.median(times['first']):.0f}",
                str(len(times["blocked"])),
            ]
        )
    return rows


def render(report: Mapping[str, Any], conditions: list[str], markdown: bool) -> str:
    """The table, and whether the aims are met."""
    results, rows = report["values"], table_rows(report)
    lines = [*((f"- {line}" for line in conditions) if markdown else conditions), ""]
    lines += markdown_table(rows) if markdown else text_table(rows)
    if OURS in results:
        blocked = statistics.median(results[OURS]["blocked"])
        lines += ["", f"{OURS}: blocked {blocked:.0f} ms, aim at most {AIM_MS:.0f}."]
        if "dcp.async_save" in results:
            ours = statistics.median(results[OURS]["complete"])
            theirs = statistics.median(results["dcp.async_save"]["complete"])
            lines += [f"complete within {ours / theirs:.2f} times of dcp.async_save, aim at most {AIM_RATIO}."]
    return "\n".join(lines)


def _with_quartiles(values: list[float]) -> str:
    lower, middle, upper = quartiles(values)
    return f"{middle:.0f} [{lower:.0f} .. {upper:.0f}]"


def _conditions(facts: Mapping[str, Any], folder: Path) -> list[str]:
    return [
        *circumstances_lines(facts),
        f"one process; files in {folder}; medians [quartiles] over the saves of a process from its second on",
    ]


def main(arguments: list[str]) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", nargs="+", choices=tuple(WAYS), default=list(WAYS), help="rows")
    parser.add_argument("--saves", type=int, default=9, help="counted saves of each way, 7 or more (default: 9)")
    parser.add_argument("--rounds", type=int, default=3, help="processes that they are spread over (default: 3)")
    parser.add_argument("--folder", type=Path, help="where to save (default: a temporary folder)")
    parser.add_argument("--markdown", action="store_true", help="print markdown instead of aligned text")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every single value to FILE")
    parser.add_argument("--measure", choices=tuple(WAYS), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    warnings.filterwarnings("ignore")
    if options.measure:
        print(json.dumps(measure(options.measure, options.saves, options.folder)))
        return 0
    if options.saves < 7:
        parser.error(f"--saves must be 7 or more, but got {options.saves}.")
    before = circumstances()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        results = collect(options.ways, options.saves, options.rounds, Path(folder))
        report = {"conditions": before, "values": results}
        print(render(report, _conditions(report["conditions"], Path(folder)), options.markdown))
    write_values(report, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

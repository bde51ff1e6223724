"""Measure in one process what grows with the number of ranks, up to 1,024: mesh, start of a fit, plans, watch, states.

    python benchmarks/scale.py

One rank is played on torch's fake process group, so no time is spent in communication: what is left is what a rank
computes by itself. The last column is the exponent by which a row grows from the last but one number of ranks.

mesh            forming the device mesh of a hybrid-sharded strategy, with groups of 8 ranks
start           from `fit` to the first batch, with that strategy and a small model of 20 layers
plan of a save  what rank 0 computes for a first sharded save of 100 tensors (later ones reuse it)
plan of a load  what each rank computes to read its parts of 100 tensors that so many ranks have saved
watch, a round  one look of a rank's failure watch at a real store of torch, once a second on each rank
watch, share    of a core of the process that holds the store, for the looks of all ranks
positions       reading where all ranks are, once after a collective timed out
states          bytes that each rank gets in a save, of the states that ranks have of their own
"""

from __future__ import annotations

import argparse
import math
import pickle
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import metadata, planner
from torch.distributed.checkpoint.default_planner import create_default_global_save_plan, create_default_local_load_plan
from torch.utils.data import DataLoader, TensorDataset

from camshaft.hooks_core import Callback
from camshaft.loops.state.random_state import random_state
from camshaft.strategies import ShardedStrategy
from camshaft.strategies.launch import peers
from camshaft.strategies.launch.failures import FailureWatch
from camshaft.trainer import Trainer, TrainingModule
from camshaft.trainer.preflight import simulated_world
from framework_overhead.report import circumstances, publish

NUM_RANKS = (8, 64, 256, 1024)
NUM_TENSORS, NUM_LAYERS, NUM_LOOKS = 100, 20, 50


class Net(TrainingModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(64, 64) for _ in range(NUM_LAYERS)])

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x = batch[0]
        for layer in self.layers:
            x = layer(x)
        return x.sum()

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters())


class FirstBatch(Callback):
    """Notes when the first batch begins."""

    time = math.nan

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        self.time = time.perf_counter()


def seconds(function: Callable[[], object]) -> float:
    """Return how long a call takes."""
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def measure_start(num_ranks: int) -> dict[str, float]:
    """Return the seconds of mesh and start of a fit."""
    first = FirstBatch()
    with simulated_world(num_ranks), tempfile.TemporaryDirectory() as folder:
        strategy = ShardedStrategy(accelerator="cpu", data_parallel_replicas=num_ranks // 8)
        quiet: dict[str, Any] = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar"), False)
        trainer = Trainer(strategy=strategy, callbacks=[first], max_steps=1, default_root_dir=folder, **quiet)
        mesh = seconds(strategy.connect)
        begin = time.perf_counter()
        trainer.fit(Net(), DataLoader(TensorDataset(torch.ones(num_ranks, 64))))
    return {"mesh (s)": mesh, "start (s)": first.time - begin}


def save_plan(rank: int, num_ranks: int) -> planner.SavePlan:
    """Return a rank's plan to save its rows of each tensor."""
    size, properties = torch.Size([4 * num_ranks, 8]), metadata.TensorProperties()
    offset = torch.Size([4 * rank, 0])
    data = planner.TensorWriteData(metadata.ChunkStorageMetadata(offset, torch.Size([4, 8])), properties, size)
    return planner.SavePlan(
        [
            planner.WriteItem(metadata.MetadataIndex(f"w{idx}", offset), planner.WriteItemType.SHARD, tensor_data=data)
            for idx in range(NUM_TENSORS)
        ]
    )


def measure_plans(num_ranks: int) -> dict[str, float]:
    """Return the seconds of the global plan of a save, and of a rank's plan of a load."""
    plans = [save_plan(rank, num_ranks) for rank in range(num_ranks)]
    found: list[metadata.Metadata] = []
    of_save = seconds(lambda: found.append(create_default_global_save_plan(plans)[1]))
    with simulated_world(num_ranks):
        mesh = dist.init_device_mesh("cpu", (num_ranks,))  # type: ignore[attr-defined]
        placements = [torch.distributed.tensor.Shard(0)]
        parts = {
            f"w{idx}": torch.distributed.tensor.DTensor.from_local(torch.ones(4, 8), mesh, placements, run_check=False)
            for idx in range(NUM_TENSORS)
        }
        of_load = seconds(lambda: create_default_local_load_plan(parts, found[0]))
    return {"plan of a save (s)": of_save, "plan of a load (s)": of_load}


def measure_watch(num_ranks: int) -> dict[str, float]:
    """Return the seconds of a look of the failure watch, of a read of all positions, and the share of a core."""
    store = dist.TCPStore("localhost", 0, is_master=True, timeout=timedelta(seconds=60))  # type: ignore[attr-defined]
    watch = FailureWatch(store, 1, num_ranks, timedelta(minutes=10))
    position = peers.to_stored(peers.ProcessPosition("fit, epoch 0, batch 12", "training_step", line="model.py:22"))
    for rank in range(num_ranks):
        store.set(peers.position_key(rank), position)
    before = time.process_time()
    look = seconds(lambda: [watch._look(store) for _ in range(NUM_LOOKS)]) / NUM_LOOKS
    used = (time.process_time() - before) / NUM_LOOKS  # of client and server together: both are here
    positions = seconds(lambda: watch._positions(store))
    return {"watch, a round (s)": look, "watch, share of a core": used * num_ranks, "positions (s)": positions}


def measure(num_ranks: int) -> dict[str, float]:
    """Return every figure for a number of ranks."""
    states = len(pickle.dumps(random_state())) * num_ranks
    values = {**measure_start(num_ranks), **measure_plans(num_ranks), **measure_watch(num_ranks)}
    return {**values, "states (MB)": states / 1e6}


def table_rows(report: Mapping[str, Any]) -> list[list[str]]:
    """Return the table of a report: its head, and a line for each figure."""
    numbers = list(report["values"])
    rows = [["figure", *(f"{number} ranks" for number in numbers), "grows as n to the"]]
    for name in report["values"][numbers[0]]:
        values = [report["values"][number][name] for number in numbers]
        exponent = math.log(values[-1] / values[-2]) / math.log(int(numbers[-1]) / int(numbers[-2]))
        rows.append([name, *(f"{value:.3g}" for value in values), f"{exponent:.1f}"])
    return rows


def main(arguments: Sequence[str]) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", nargs="+", type=int, default=NUM_RANKS, help="numbers of ranks, multiples of 8")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every single value to FILE")
    options = parser.parse_args(arguments)
    before = circumstances()
    measure(options.ranks[0])  # what is imported or compiled once
    report = {"conditions": before, "values": {str(number): measure(number) for number in options.ranks}}
    publish(report, table_rows(report), options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Measure what sums along the tree of logical ranks add to a step of DDP, whose own all-reduce sums along a ring.

    python benchmarks/logical_ranks.py

Each rank (gloo, one thread) plays one logical rank. Steps of `DDPStrategy` with and without `logical_ranks` alternate
in one run, on models of the same shape, and each pair is compared. Both broadcast buffers at each step.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from camshaft.strategies import DDPStrategy
from framework_overhead.measurement import quartiles, without_collector
from framework_overhead.ranks import is_rank, values_of_ranks, write_as_rank
from framework_overhead.report import circumstances, publish

NUM_WARMUP = 8
NUM_RANKS = (2, 4)
AIM_PERCENT = 10


class Transformer(nn.Module):
    """Four layers of width 256: 3.3 million parameters, 13 MB of gradients."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.1, batch_first=True)
        self.embedding = nn.Embedding(512, 256)
        self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(256, 512)

    def training_step(self, batch: Tensor) -> Tensor:
        tokens = batch.flatten(1).mul(99).long().remainder(512)
        return cross_entropy(self.head(self.layers(self.embedding(tokens))).mT, tokens)


class ConvNet(nn.Module):
    """Eight convolutions of 64 channels with batch normalisation: 0.3 million parameters, 24 buffers."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for idx in range(8):
            layers += [nn.Conv2d(64 if idx else 1, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()]
        self.net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))

    def training_step(self, batch: Tensor) -> Tensor:
        return cross_entropy(self.net(batch[:, None]), batch[:, 0, 0].abs().long().clamp(max=9))


MODELS: dict[str, Callable[[], Any]] = {"transformer": Transformer, "convolutions": ConvNet}


def stepper(model: Any, logical_ranks: int | None) -> Callable[[Tensor], None]:
    """Return a function that makes one training step of a model."""
    strategy = DDPStrategy(accelerator="cpu", logical_ranks=logical_ranks)
    strategy.connect()
    step = strategy.wrap_step(model.training_step)
    strategy.setup_module(model)
    (optimizer,) = strategy.setup_optimizers([torch.optim.SGD(model.parameters(), lr=0.01)])

    def train(batch: Tensor) -> None:
        if logical_ranks is not None:
            strategy.enter_logical_rank(strategy.global_rank)
        loss = step(batch)
        optimizer.zero_grad()
        strategy.backward(loss)
        if logical_ranks is not None:
            strategy.leave_logical_ranks()
        strategy.optimizer_step(optimizer)

    return train


def measure(num_steps: int) -> dict[str, dict[str, list[float]]]:
    """Return this rank's milliseconds of each step, without and with logical ranks, by model."""
    torch.set_num_threads(1)
    values: dict[str, dict[str, list[float]]] = {}
    for name, make in MODELS.items():
        trains = [("DDP", stepper(make(), None)), ("tree", stepper(make(), int(os.environ["WORLD_SIZE"])))]
        times: dict[str, list[float]] = {"DDP": [], "tree": []}
        batch = torch.randn(8, 8, 8)
        with without_collector():
            for step in range(NUM_WARMUP + num_steps):
                for kind, train in trains if step % 2 else trains[::-1]:
                    torch.distributed.barrier()
                    begin = time.perf_counter()
                    train(batch)
                    times[kind] += [(time.perf_counter() - begin) * 1e3] if step >= NUM_WARMUP else []
        values[name] = times
    return values


def table_rows(report: Mapping[str, Any]) -> list[list[str]]:
    """Return the table of a report: its head, and a line for each number of ranks and model."""
    rows = [["ranks", "model", "DDP (ms/step)", "tree adds (ms/step)", "quartiles", "share of a step"]]
    for number, of_ranks in report["values"].items():
        for name in MODELS:
            # a step ends for all ranks with the last
            steps = {kind: list(map(max, *(one[name][kind] for one in of_ranks))) for kind in ("DDP", "tree")}
            added = [tree - ddp for ddp, tree in zip(steps["DDP"], steps["tree"], strict=True)]
            lower, middle, upper = quartiles(added)
            step = statistics.median(steps["DDP"])
            figures = [f"{step:.2f}", f"{middle:.2f}", f"{lower:.2f} to {upper:.2f}", f"{100 * middle / step:.1f} %"]
            rows.append([number, name, *figures])
    return rows


def main(arguments: Sequence[str]) -> int:
    """Start the ranks, or be one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", nargs="+", type=int, default=NUM_RANKS, help="numbers of ranks, powers of two")
    parser.add_argument("--steps", type=int, default=60, help="pairs of steps of each model (default: 60)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every single value to FILE")
    options = parser.parse_args(arguments)
    if is_rank():
        write_as_rank(measure(options.steps))
        return 0
    before = circumstances()
    values = values_of_ranks(__file__, options.ranks, options.steps)
    report = {"conditions": before | {"num_timed_steps": options.steps}, "values": values}
    publish(report, table_rows(report), options.json, aim=f"aim: at most {AIM_PERCENT} % of a step")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

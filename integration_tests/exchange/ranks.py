"""Trains an epoch and saves, or goes on from a checkpoint and trains another one.

    ranks.py save STRATEGY,... PATH...     a path for each strategy
    ranks.py resume STRATEGY,... PATH...   each strategy from each path

Reports, for each strategy and path, the weights and the optimizer's state, whole, before and after what it trained.
"""

from __future__ import annotations

import itertools
import os
import sys
import warnings
from pathlib import Path
from typing import Any

from launching import report
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader

from camshaft.hooks_core import Callback
from camshaft.strategies import DDPStrategy, ShardedStrategy, SingleDeviceStrategy
from camshaft.trainer import Trainer

sys.path.insert(0, str(Path(__file__).parents[1]))

from matrix.ranks import GLOBAL_BATCH_SIZE, Block, Net, make_dataset


def make_strategy(name: str) -> Any:
    size = int(os.environ.get("WORLD_SIZE", 1))
    kind, _, option = name.partition("-")
    if kind == "single":
        return SingleDeviceStrategy("cpu")
    if kind == "ddp":
        return DDPStrategy(accelerator="cpu", devices=size, save_asynchronously=option == "asynchronous")
    options: dict[str, Any] = {
        "": {},
        "asynchronous": {"save_asynchronously": True},
        "replicated": {"data_parallel_replicas": 2},
        "parallel": {"tensor_parallel": 2},
    }[option]
    return ShardedStrategy(accelerator="cpu", devices=size, policy={Block}, **options)


class Look(Callback):
    """Reports weights and optimizer state where training begins and where it ends."""

    def on_train_start(self, trainer: Any, module: Any) -> None:
        report(("start", state_of(trainer, module)))

    def on_train_end(self, trainer: Any, module: Any) -> None:
        report(("end", state_of(trainer, module)))


def state_of(trainer: Any, module: Any) -> dict[str, Tensor]:
    found = {name: whole(parameter) for name, parameter in module.named_parameters()}
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    for parameter, state in trainer.optimizers[0].state.items():
        found |= {f"{names[id(parameter)]}.{key}": whole(value) for key, value in state.items()}
    return found


def whole(value: Tensor) -> Tensor:
    tensor = value.detach()
    return tensor.full_tensor().clone() if isinstance(tensor, DTensor) else tensor.clone()


def main(verb: str, names: str, *paths: str) -> None:
    warnings.simplefilter("ignore")
    strategies = names.split(",")
    pairs = zip(strategies, paths, strict=True) if verb == "save" else itertools.product(strategies, paths)
    for name, path in pairs:
        train(verb, name, path)


def train(verb: str, name: str, path: str) -> None:
    strategy = make_strategy(name)
    loader = DataLoader(make_dataset(), batch_size=GLOBAL_BATCH_SIZE // strategy.num_data_ranks)
    trainer = Trainer(
        strategy=strategy,
        max_epochs=1 if verb == "save" else 2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        callbacks=[Look()],
        default_root_dir=os.path.dirname(path),
    )
    trainer.fit(Net(), loader, ckpt_path=None if verb == "save" else path)
    if verb == "save":
        trainer.save_checkpoint(path)


if __name__ == "__main__":
    main(*sys.argv[1:])

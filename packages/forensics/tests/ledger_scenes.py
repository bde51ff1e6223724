"""What two processes do that keep a ledger, while one of them is killed now and then.

torchrun --nproc-per-node 2 --max-restarts 3 ledger_scenes.py FOLDER STRATEGY DROPOUT SEED

SEED draws when a process is killed; "none" kills none.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from trainer_parts import Regression, dataset

from camshaft.callbacks import ModelCheckpoint
from camshaft.forensics import RunLedger
from camshaft.hooks_core import Callback
from camshaft.trainer import Trainer, seed_everything

NUM_KILLS = 3
NUM_EPOCHS = 4
NUM_SAMPLES = 60


class Layers(Regression):
    """Builds its layers in the hook, so that they can be sharded, and draws random numbers."""

    def configure_sharded_model(self) -> None:
        if not hasattr(self, "blocks"):
            self.blocks = nn.Sequential(nn.Linear(3, 15), nn.Tanh(), nn.Linear(15, 3))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(self.dropout(self.blocks(inputs)))
        return outputs

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=0.02)


class Killed(Callback):
    """Kills its process some batches later, at a moment that does not depend on what it does."""

    def __init__(self, moments: random.Random) -> None:
        self.num_batches = moments.randint(3, 12)
        self.seconds = moments.uniform(0.0, 0.05)

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        self.num_batches -= 1
        if self.num_batches == 0:
            threading.Timer(self.seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()


def fit(folder: Path, batch_size: int, dropout: float, callbacks: list[Any], **arguments: Any) -> None:
    """Train, keeping a ledger and a checkpoint of every update."""
    seed_everything(3)
    loader = DataLoader(dataset(NUM_SAMPLES), batch_size, shuffle=True, num_workers=1, drop_last=True)
    trainer = Trainer(
        default_root_dir=folder,
        accelerator="cpu",
        max_epochs=NUM_EPOCHS,
        accumulate_grad_batches=2,
        callbacks=[RunLedger(folder, weights_every_n_steps=3), *callbacks],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **arguments,
    )
    trainer.fit(Layers(dropout=dropout), loader)


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    folder, (strategy, dropout, seed) = Path(sys.argv[1]), sys.argv[2:]
    callbacks: list[Any] = [ModelCheckpoint(folder / "kept", save_last=True, every_n_train_steps=1)]
    num_restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
    if seed != "none" and num_restarts < NUM_KILLS:
        moments = random.Random(f"{seed} {num_restarts}")
        if moments.randrange(2) == int(os.environ["RANK"]):
            callbacks.append(Killed(moments))
    fit(folder, 3, float(dropout), callbacks, strategy=strategy, devices=2)


if __name__ == "__main__":
    main()

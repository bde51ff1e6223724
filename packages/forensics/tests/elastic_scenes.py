"""A run on as many processes as there are, which keeps a ledger and goes on from the last checkpoint; maybe killed.

elastic_scenes.py FOLDER KILLED_AFTER NUM_WORKERS ACCUMULATE

KILLED_AFTER is the number of batches after which all processes are killed; 0 kills none.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader
from trainer_parts import Regression, dataset

from camshaft.callbacks import ModelCheckpoint
from camshaft.forensics import RunLedger
from camshaft.hooks_core import Callback
from camshaft.trainer import Trainer, seed_everything

NUM_EPOCHS = 2
NUM_SAMPLES = 47


class Killed(Callback):
    """Kills its process some batches later."""

    def __init__(self, num_batches: int) -> None:
        self.num_batches = num_batches

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        self.num_batches -= 1
        if self.num_batches < 0:
            os.kill(os.getpid(), signal.SIGKILL)


def fit(folder: Path, killed_after: int = 0, num_workers: int = 0, accumulate: int = 1) -> None:
    """Train, or go on, keeping a ledger and a checkpoint of every third batch."""
    seed_everything(3)
    generator = torch.Generator().manual_seed(1)
    loader = DataLoader(dataset(NUM_SAMPLES), 2, shuffle=True, num_workers=num_workers, generator=generator)
    num_ranks = int(os.environ.get("WORLD_SIZE", 1))
    checkpoints = ModelCheckpoint(folder / "kept", save_last=True, every_n_train_steps=1)
    trainer = Trainer(
        default_root_dir=folder,
        accelerator="cpu",
        strategy="ddp" if num_ranks > 1 else "auto",
        devices=num_ranks,
        max_epochs=NUM_EPOCHS,
        accumulate_grad_batches=accumulate,
        callbacks=[RunLedger(folder), checkpoints, *([Killed(killed_after)] if killed_after else [])],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Regression(dropout=0.1), loader, ckpt_path="last" if (folder / "kept" / "last.ckpt").exists() else None)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    fit(Path(sys.argv[1]), *map(int, sys.argv[2:]))

"""Trains a small transformer on four logical ranks, and tells what the run gave; for any number of processes.

moved_runs.py FOLDER [--kill-at STEP]... A folder with a checkpoint is gone on with.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
from pathlib import Path
from typing import Any

import torch
from launching import report
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from camshaft.callbacks import CSVLogger, ModelCheckpoint
from camshaft.forensics import RunLedger
from camshaft.hooks_core import Callback
from camshaft.trainer import Trainer, TrainingModule, seed_everything

NUM_RANKS = 4


class Transformer(TrainingModule):
    """Tells the sum of a sequence of numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(16, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)
        self.head = nn.Linear(8, 1)

    def loss(self, batch: list[Tensor]) -> Tensor:
        tokens, sums = batch
        return nn.functional.mse_loss(self.head(self.layer(self.embedding(tokens)).mean(dim=1)).squeeze(1), sums)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch), sync_dist=True)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma=0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class Killed(Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == self.step and trainer.logical_rank == trainer.strategy.logical_ranks[-1]:
            trainer.strategy.barrier()
            os.kill(os.getpid(), signal.SIGKILL)


def hashed(values: dict[str, Any]) -> str:
    leaves = sorted((name, value) for name, value in values.items() if isinstance(value, Tensor))
    return hashlib.sha256(b"".join(value.numpy().tobytes() for _, value in leaves)).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kill-at", type=int)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--precision", default="32-true")
    parser.add_argument("--accumulate", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    seed_everything(3)
    tokens = torch.randint(16, (70, 5), generator=torch.Generator().manual_seed(1))
    data = TensorDataset(tokens, tokens.float().mean(dim=1))
    module = Transformer()
    checkpoints = ModelCheckpoint(given.folder / "checkpoints", save_last=True, every_n_train_steps=1, save_top_k=0)
    callbacks: list[Any] = [RunLedger(given.folder, weights_every_n_steps=2), checkpoints]
    trainer = Trainer(
        strategy="ddp" if int(os.environ.get("WORLD_SIZE", 1)) > 1 else "auto",
        accelerator="cpu",
        precision=given.precision,
        logical_ranks=NUM_RANKS,
        max_epochs=3,
        accumulate_grad_batches=given.accumulate,
        gradient_clip_val=0.7,
        log_every_n_steps=1,
        logger=CSVLogger(given.folder, name="", version="logs"),
        callbacks=[*callbacks, *([] if given.kill_at is None else [Killed(given.kill_at)])],
        enable_progress_bar=False,
    )
    last = given.folder / "checkpoints" / "last.ckpt"
    loaders = (DataLoader(data, 4, shuffle=True, num_workers=given.workers), DataLoader(data, 8))
    trainer.fit(module, *loaders, ckpt_path=last if last.exists() else None)
    if trainer.global_rank == 0:
        states = trainer.optimizers[0].state_dict()["state"]
        moments = {f"{key}.{name}": value for key, state in states.items() for name, value in state.items()}
        logged = {name: value.item().hex() for name, value in sorted(trainer.callback_metrics.items())}
        lines = (given.folder / "ledger.jsonl").read_text().splitlines()
        rows = (given.folder / "logs" / "metrics.csv").read_text().splitlines()
        report([hashed(module.state_dict()), hashed(moments), logged, lines, rows])


if __name__ == "__main__":
    main()

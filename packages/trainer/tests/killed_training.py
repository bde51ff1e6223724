"""A training process that the test beside it kills: resumes from "last" and ends by saving its weights.

python killed_training.py FOLDER NUM_EPOCHS
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from trainer_parts import Regression, loader

from camshaft.callbacks import ModelCheckpoint
from camshaft.trainer import Trainer, seed_everything


class Slow(Regression):
    """Takes its time in each batch, so that kills land anywhere, and says when training begins."""

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        time.sleep(0.004)
        return super().training_step(batch, batch_idx)

    def on_train_start(self) -> None:
        print(f"training from epoch {self.current_epoch}", flush=True)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 5, gamma=0.9)]


def main(folder: Path, num_epochs: int) -> None:
    seed_everything(0)
    module = Slow(dropout=0.3)
    checkpoint = ModelCheckpoint(folder / "checkpoints", save_top_k=2, monitor="val_loss", save_last=True)
    trainer = Trainer(
        max_epochs=num_epochs,
        callbacks=checkpoint,
        default_root_dir=folder,
        enable_progress_bar=False,
        accelerator="cpu",
    )
    trainer.fit(module, loader(5, shuffle=True), loader(1), ckpt_path="last")
    trainer.save_checkpoint(folder / "final.ckpt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))

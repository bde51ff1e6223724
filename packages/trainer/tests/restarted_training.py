"""Training in two processes that the script starts itself; one of them is killed once, and all start again.

python restarted_training.py FOLDER kill|undisturbed
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from launching import report
from torch import Tensor
from trainer_parts import Regression, loader, weights

from camshaft.callbacks import ModelCheckpoint
from camshaft.strategies import DDPStrategy, restart_count
from camshaft.trainer import Trainer, seed_everything


class Killed(Regression):
    """Rank 1 is killed in the midst of the third epoch, if it was not started again."""

    is_to_be_killed = False

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        is_the_moment = (self.current_epoch, batch_idx, self.global_rank) == (2, 1, 1)
        if self.is_to_be_killed and is_the_moment and restart_count() == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().training_step(batch, batch_idx)

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def main(folder: Path, kind: str) -> None:
    print("the script runs", flush=True)
    strategy: Any = "ddp"
    if kind == "kill":
        strategy = DDPStrategy(accelerator="cpu", devices=2, max_restarts=1, timeout=60)
    trainer = Trainer(
        strategy=strategy,
        accelerator="cpu",
        devices=2,
        max_epochs=4,
        default_root_dir=folder,
        enable_progress_bar=False,
        callbacks=ModelCheckpoint(every_n_train_steps=1, save_last=True),
    )
    seed_everything(0)
    first = Killed(dropout=0.3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(first, loader(4, shuffle=True), loader(1))
        seed_everything(1)
        second = Killed(dropout=0.3)
        second.is_to_be_killed = kind == "kill"
        again = Trainer(
            strategy=trainer.strategy,
            max_epochs=4,
            default_root_dir=folder / "second",
            enable_progress_bar=False,
            callbacks=ModelCheckpoint(every_n_train_steps=1, save_last=True),
        )
        again.fit(second, loader(4, shuffle=True), loader(1))
    told = [str(warning.message) for warning in caught if "restarted" in str(warning.message)]
    report("trained", (weights(first), weights(second), again.global_step))
    report("restarts", (restart_count(), told))
    report("results", again.validate(second, loader(1)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])

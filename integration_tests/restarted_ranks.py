"""A training whose ranks may be killed: restarted by its agent, it goes on from its last checkpoint by itself.

    restarted_ranks.py FOLDER [RANK MOMENT]

MOMENT is a number of updates, or of seconds with an "s" after it, after which RANK kills itself, the first time.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import Any

import torch
from launching import report
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from camshaft.callbacks import ModelCheckpoint
from camshaft.hooks_core import Callback
from camshaft.strategies import DDPStrategy, restart_count
from camshaft.trainer import Trainer, TrainingModule


class Net(TrainingModule):
    """Draws random numbers in training, so that only an exact resume ends with the same weights."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Dropout(0.3), nn.Linear(12, 1))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x).squeeze(1), y)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.01)


class KillItself(Callback):
    """Ends this process as an operating system does that has no memory left."""

    def __init__(self, rank: int, moment: str) -> None:
        self.rank, self.moment = rank, moment

    def on_train_start(self, trainer: Any, module: Any) -> None:
        if self.moment.endswith("s") and self._is_meant(trainer):
            threading.Timer(float(self.moment[:-1]), kill).start()

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        time.sleep(0.01)
        if self._is_meant(trainer) and str(trainer.global_step) == self.moment:
            kill()

    def _is_meant(self, trainer: Any) -> bool:
        return restart_count() == 0 and trainer.strategy.global_rank == self.rank


def make_loader() -> DataLoader[Any]:
    """Loads the data; random numbers stand where they always do then."""
    torch.manual_seed(2)
    x = torch.randn(64, 6)
    return DataLoader(TensorDataset(x, x.sum(1).tanh()), batch_size=4, shuffle=True)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main(folder: str, *killed: str) -> None:
    loader = make_loader()
    callbacks: list[Any] = [ModelCheckpoint(every_n_train_steps=3, save_top_k=-1)]
    if killed:
        callbacks.append(KillItself(int(killed[0]), killed[1]))
    trainer = Trainer(
        strategy=DDPStrategy(accelerator="cpu", devices=2, max_restarts=1, timeout=60),
        max_epochs=5,
        callbacks=callbacks,
        enable_progress_bar=False,
        default_root_dir=folder,
    )
    module = Net()
    trainer.fit(module, loader)
    weights = torch.cat([parameter.detach().flatten() for parameter in module.parameters()])
    report((restart_count(), trainer.global_step, weights))


if __name__ == "__main__":
    main(*sys.argv[1:])

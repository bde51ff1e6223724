"""Trainings whose callbacks could get into each other's way.

conflicting_callbacks.py FOLDER    (two processes)
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from launching import report
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from camshaft.callbacks import EarlyStopping, EMAWeightAveraging, MLFlowLogger, ModelCheckpoint
from camshaft.trainer import Trainer, TrainingModule

NUM_EPOCHS = 5


class Net(TrainingModule):
    """Draws random numbers in training, so that only an exact resume ends with the same weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 1))

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.layers(x)
        return outputs.squeeze(1)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return nn.functional.mse_loss(self(batch[0]), batch[1])

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        error = self(batch[0]) - batch[1]
        self.log_dict({"val_loss": error.square().mean(), "largest": error.abs().mean()}, sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.05)


class Worse(Net):
    """Its metric gets better from epoch to epoch on the first process, and worse on the others."""

    def __init__(self, sync_dist: bool) -> None:
        super().__init__()
        self.sync_dist = sync_dist

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        slope = -1.0 if self.trainer.global_rank == 0 else 5.0
        self.log("val_loss", slope * self.current_epoch, sync_dist=self.sync_dist)


def loader(seed: int, batch_size: int = 8, *, shuffle: bool = False) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(48, 4, generator=generator)
    return DataLoader(TensorDataset(x, x.sum(1).tanh()), batch_size, shuffle=shuffle)


def fit(
    folder: Path, callbacks: list[Any], ckpt_path: Any = None, module: Net | None = None, **arguments: Any
) -> tuple[Trainer, Net]:
    torch.manual_seed(3)
    module = module or Net()
    arguments = {
        "max_epochs": NUM_EPOCHS,
        "num_sanity_val_steps": 0,
        "accelerator": "cpu",
        "logger": False,
        **arguments,
    }
    trainer = Trainer(callbacks=callbacks, enable_progress_bar=False, default_root_dir=folder, **arguments)
    trainer.fit(module, loader(0, shuffle=True), loader(1), ckpt_path=ckpt_path)
    return trainer, module


def weights(module: Net) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def averaging(folder: Path) -> list[Any]:
    """An average, a stop and two kinds of checkpoints, whose decisions come from the average."""
    return [
        EMAWeightAveraging(decay=0.8),
        EarlyStopping("val_loss", patience=1, min_delta=0.02),
        ModelCheckpoint(folder, "best-{step}", "val_loss", save_last=True),
        ModelCheckpoint(folder / "all", "{step}", every_n_train_steps=2, save_top_k=-1),
    ]


def facts(trainer: Trainer, module: Net) -> dict[str, Any]:
    stop = next(one for one in trainer.callbacks if isinstance(one, EarlyStopping))
    best = next(one for one in trainer.callbacks if isinstance(one, ModelCheckpoint) and one.monitor)
    assert best.best_model_score is not None
    return {
        "weights": weights(module),
        "step": trainer.global_step,
        "stopped_epoch": stop.stopped_epoch,
        "best_score": float(best.best_model_score),
        "best_name": Path(best.best_model_path).name,
    }


def _ranks(folder: Path) -> None:
    arguments: dict[str, Any] = {"strategy": "ddp", "devices": 2}
    stops = {}
    for sync_dist in (False, True):
        callbacks = [EarlyStopping("val_loss", patience=2), ModelCheckpoint(folder / f"stop{sync_dist}")]
        trainer, _ = fit(folder, callbacks, module=Worse(sync_dist), **arguments)
        stops[sync_dist] = trainer.current_epoch, trainer.global_step, callbacks[0].stopped_epoch
    report(stops)
    logger = MLFlowLogger(save_dir=folder / "runs", log_model="all")
    whole = fit(folder / "whole", averaging(folder / "whole"), logger=logger, **arguments)
    report(facts(*whole))
    saved = folder / "whole" / "all" / "step=4.ckpt"
    report(facts(*fit(folder / "resumed", averaging(folder / "resumed"), saved, **arguments)))


if __name__ == "__main__":
    _ranks(Path(sys.argv[1]))

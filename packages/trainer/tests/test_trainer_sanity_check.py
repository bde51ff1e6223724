"""Through the trainer, a fit after a sanity check is the fit without one."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset
from trainer_parts import Regression, assert_same, weights

from camshaft.callbacks import CSVLogger, EarlyStopping, ModelCheckpoint
from camshaft.hooks_core import Callback
from camshaft.strategies import read_checkpoint
from camshaft.trainer import DataModule, Trainer, seed_everything

torchmetrics = pytest.importorskip("torchmetrics")


class Counting(Callback):
    """A memory of the validation batches, and of what stood in the metrics when training began."""

    def __init__(self) -> None:
        self.num_batches = 0
        self.last_output: list[float] = []
        self.metrics_before_training: list[dict[str, Any]] = []

    def on_validation_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self.num_batches += 1
        self.last_output.append(float(batch[0].sum()))

    def on_train_start(self, trainer: Any, module: Any) -> None:
        told = (trainer.callback_metrics, trainer.logged_metrics, trainer.progress_bar_metrics)
        self.metrics_before_training = [dict(metrics) for metrics in told]

    def state_dict(self) -> dict[str, Any]:
        return {"num_batches": self.num_batches, "last_output": self.last_output}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.num_batches, self.last_output = state_dict["num_batches"], list(state_dict["last_output"])


class Measured(Regression):
    """Draws random numbers everywhere, and measures with metrics, logged or not."""

    def __init__(self) -> None:
        super().__init__(dropout=0.3)
        self.error = torchmetrics.MeanSquaredError()
        self.unlogged = torchmetrics.MeanMetric()
        self.collection = torchmetrics.MetricCollection([torchmetrics.MeanAbsoluteError(), torchmetrics.R2Score()])
        self.num_sanity_batches = 0
        self.seen: dict[str, list[Any]] = {"train": [], "validate": [], "drawn": [], "unlogged": []}

    def draw(self) -> float:
        return random.random() + np.random.normal() + float(torch.rand(()))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        self.seen["train"].append(batch[0].clone())
        self.seen["drawn"].append(self.draw())
        self.log("unlogged_so_far", self.unlogged.update_count)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        if self.trainer.sanity_checking:
            self.num_sanity_batches += 1
            self.draw()
        else:
            self.seen["validate"].append(batch[0].clone())
            self.seen["drawn"].append(self.draw())
        outputs = self(batch[0])
        self.unlogged.update(outputs)
        self.error.update(outputs, batch[1])
        self.collection.update(outputs, batch[1])
        self.log("val_error", self.error)
        self.log_dict(self.collection)
        self.log("val_loss", self.loss(batch), on_step=True, on_epoch=True, prog_bar=True)
        self.log("val_batches", 1.0, reduce_fx="sum")

    def on_validation_end(self) -> None:
        if not self.trainer.sanity_checking:
            self.seen["unlogged"].append((self.unlogged.update_count, self.unlogged.compute()))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.05)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "val_loss"}}


class Shuffled(DataModule):
    """Loaders that draw their order from generators of their own, and a count that is kept."""

    def __init__(self, num_val_batches: int) -> None:
        self.num_val_batches = num_val_batches
        self.num_moved = 0

    def loader(self, num_batches: int, seed: int) -> DataLoader[Any]:
        generator = torch.Generator().manual_seed(seed)
        inputs = torch.randn(num_batches, 3, generator=torch.Generator().manual_seed(seed))
        targets = inputs.sum(dim=1, keepdim=True)
        return DataLoader(TensorDataset(inputs, targets), shuffle=True, generator=generator)

    def train_dataloader(self) -> Any:
        return self.loader(6, 1)

    def val_dataloader(self) -> Any:
        return self.loader(self.num_val_batches, 2)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        self.num_moved += 1
        return batch

    def state_dict(self) -> dict[str, Any]:
        return {"num_moved": self.num_moved}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.num_moved = state_dict["num_moved"]


def without_folder(value: Any, folder: Path) -> Any:
    if isinstance(value, dict):
        return {without_folder(key, folder): without_folder(item, folder) for key, item in value.items()}
    return value.replace(str(folder), "FOLDER") if isinstance(value, str) else value


def train(folder: Path, num_sanity_val_steps: int, num_val_batches: int, **arguments: Any) -> dict[str, Any]:
    """Train and return everything that a trace could be left in."""
    seed_everything(3)
    module, data, counting = Measured(), Shuffled(num_val_batches), Counting()
    best = ModelCheckpoint(folder, monitor="val_loss_epoch", save_top_k=2, save_last=True)
    stopping = EarlyStopping("val_loss_epoch", patience=5)
    trainer = Trainer(
        max_epochs=2,
        callbacks=[counting, stopping, best],
        logger=CSVLogger(folder, name="", version="logs"),
        log_every_n_steps=1,
        num_sanity_val_steps=num_sanity_val_steps,
        val_check_interval=3,
        enable_progress_bar=False,
        default_root_dir=folder,
        accelerator="cpu",
        **arguments,
    )
    trainer.fit(module, datamodule=data)
    expected = num_val_batches if num_sanity_val_steps == -1 else min(num_sanity_val_steps, num_val_batches)
    assert module.num_sanity_batches == expected
    trainer.save_checkpoint(folder / "end.ckpt")
    checkpoint = read_checkpoint(folder / "end.ckpt")
    assert checkpoint["loops"]["fit"].pop("elapsed_seconds") > 0
    assert checkpoint.pop("fit_idx") >= 0  # counts the fits of this process
    return {
        "metrics before training": counting.metrics_before_training,
        "weights": weights(module),
        "seen": module.seen,
        "memory": (counting.state_dict(), stopping.state_dict(), without_folder(best.state_dict(), folder)),
        "data": data.state_dict(),
        "metrics": dict(trainer.callback_metrics),
        "checkpoint": without_folder(checkpoint, folder),
        "rows": (folder / "logs/metrics.csv").read_text(),
        "random": (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()),
        "files": sorted(path.name for path in folder.iterdir()),
    }


@pytest.mark.parametrize("num_sanity_val_steps", [2, -1])
@pytest.mark.parametrize("num_val_batches", [4, 70])
def test_a_sanity_check_leaves_no_trace(num_sanity_val_steps: int, num_val_batches: int, tmp_path: Path) -> None:
    without = train(tmp_path / "without", 0, num_val_batches)
    assert without["metrics before training"] == [{}, {}, {}]
    assert len(without["seen"]["validate"]) == 4 * num_val_batches
    checked = train(tmp_path / "checked", num_sanity_val_steps, num_val_batches)
    for part, expected in without.items():
        assert_same(checked[part], expected, part)

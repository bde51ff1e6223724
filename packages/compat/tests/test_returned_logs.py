"""What modules of earlier eras return to be logged."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from compat_parts import Regression
from metric_log_parts import RecordingLogger
from trainer_parts import loader

from camshaft.callbacks import EarlyStopping, ModelCheckpoint
from camshaft.compat import Trainer


class Dictionaries(Regression):
    """A module of 0.8: all that it logs it returns."""

    hook_era = "0.8"

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        return {"loss": loss, "log": {"train_loss": loss}, "progress_bar": {"train_loss": loss}}

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        return {"val_loss": self.loss(batch)}

    def validation_epoch_end(self, outputs: list[Any]) -> Any:
        val_loss = torch.stack([one["val_loss"] for one in outputs]).mean()
        return {"val_loss": val_loss, "log": {"val_mean": val_loss}, "progress_bar": {"val_bar": val_loss}}

    def training_epoch_end(self, outputs: list[Any]) -> Any:
        return {"log": {"train_loss": torch.stack([one["loss"] for one in outputs]).mean()}}

    def test_step(self, batch: Any, batch_idx: int) -> Any:
        return {"test_loss": self.loss(batch)}

    def test_epoch_end(self, outputs: list[Any]) -> Any:
        mean = torch.stack([one["test_loss"] for one in outputs]).mean()
        return {"avg_test_loss": mean, "log": {"test_loss": mean}}

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=1e9)
        return [optimizer], [plateau]


@pytest.fixture
def trained(tmp_path: Any) -> Trainer:
    trainer = Trainer(
        max_epochs=3,
        default_root_dir=str(tmp_path),
        logger=RecordingLogger(),
        log_every_n_steps=2,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[
            ModelCheckpoint(monitor="val_loss", dirpath=str(tmp_path)),
            EarlyStopping(monitor="val_loss", patience=5),
        ],
    )
    trainer.fit(Dictionaries(), loader(4), loader(2))
    return trainer


def test_checkpoints_stopping_and_plateaus_monitor_what_validation_returned(trained: Trainer) -> None:
    metrics = trained.callback_metrics
    assert {"loss", "train_loss", "val_loss", "val_mean", "val_bar"} <= set(metrics)
    assert metrics["val_loss"] == metrics["val_mean"] == metrics["val_bar"]
    assert (
        trained.checkpoint_callback is not None and trained.checkpoint_callback.best_model_score == metrics["val_loss"]
    )
    assert (
        trained.early_stopping_callback is not None
        and trained.early_stopping_callback.best_score == metrics["val_loss"]
    )
    assert trained.fit_loop.optimization.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.1 * 0.5**3)


def test_loggers_get_what_was_returned_for_them_and_bars_what_was_for_them(trained: Trainer) -> None:
    names = [sorted(set(row) - {"epoch"}) for _, row in trained.logger.rows]
    assert names == [["train_loss"], ["train_loss"], ["val_mean"], ["train_loss"]] * 3
    assert set(trained.progress_bar_metrics) == {"val_bar"}


def test_a_test_shows_what_its_end_returned(trained: Trainer) -> None:
    (result,) = trained.test(Dictionaries(), loader(2), verbose=False)
    assert result.keys() == {"avg_test_loss", "test_loss"}  # also what it does not log

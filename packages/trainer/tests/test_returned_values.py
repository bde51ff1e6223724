from __future__ import annotations

from typing import Any

import pytest
import torch
from metric_log_parts import Rig
from trainer_parts import Regression, loader

from camshaft.callbacks import EarlyStopping, ModelCheckpoint
from camshaft.trainer import Trainer


def test_what_a_training_step_returned_is_sent_at_the_logging_interval() -> None:
    rig = Rig(log_every_n_steps=2)
    rig.start_training()
    for value in (1.0, 2.0, 3.0, 4.0):
        rig.batch()
        rig.metrics.log_returned({"loss": torch.tensor(value)}, logger=True, prog_bar=False)
        rig.end_batch()
    assert rig.logger.rows == [(1, {"loss": 2.0, "epoch": 0}), (3, {"loss": 4.0, "epoch": 0})]


def test_readers_of_a_name_are_those_of_all_that_was_returned_for_it() -> None:
    rig = Rig(log_every_n_steps=1)
    rig.start_training()
    for logger, prog_bar in ((False, False), (True, False), (False, True), (False, False)):
        rig.metrics.log_returned({"loss": 1.5}, logger=logger, prog_bar=prog_bar)
    assert rig.metrics.progress_bar_metrics == {"loss": 1.5} and rig.metrics.callback_metrics["loss"] == 1.5
    rig.end_batch()
    assert rig.logger.rows == [(0, {"loss": 1.5, "epoch": 0})]


def test_an_epochs_end_may_return_a_name_that_steps_returned() -> None:
    rig = Rig(log_every_n_steps=1)
    rig.start_training()
    rig.metrics.log_returned({"loss": 1.0}, logger=True, prog_bar=True)
    rig.end_batch()
    rig.metrics.moment = "epoch"
    rig.metrics.log_returned({"loss": 3.0, "step": 7}, logger=True, prog_bar=False)
    rig.end_epoch()
    assert rig.logger.rows == [(0, {"loss": 1.0, "epoch": 0}), (7, {"loss": 3.0})]
    assert rig.metrics.callback_metrics["loss"] == 3.0


def test_what_the_module_logs_itself_for_an_epoch_is_not_mixed_with_what_its_end_returns() -> None:
    rig = Rig()
    rig.start_evaluation()
    for value in (1.0, 2.0):
        rig.batch(torch.ones(2))
        rig.log("val_loss", value)
    rig.metrics.moment = "epoch"
    rig.metrics.log_returned({"val_loss": 10.0, "other": 1.0}, logger=True, prog_bar=True)
    assert rig.end_epoch() == [{"val_loss": 1.5, "other": 1.0}]


def test_what_evaluation_steps_return_is_averaged_over_the_batches() -> None:
    rig = Rig()
    rig.start_evaluation()
    for size, value, readers in ((1, 1.0, (True, False)), (3, 2.0, (False, True))):
        rig.batch(torch.ones(size))
        rig.metrics.log_returned({"acc": value}, logger=readers[0], prog_bar=readers[1])
    assert rig.end_epoch() == [{"acc": 1.5}]


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
        return {"log": {"test_loss": torch.stack([one["test_loss"] for one in outputs]).mean()}}

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=1e9)
        return [optimizer], [plateau]


@pytest.fixture
def trained(tmp_path: Any) -> Trainer:
    from metric_log_parts import RecordingLogger

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
    assert list(result) == ["test_loss"]

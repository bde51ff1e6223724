"""`fast_dev_run`: a few batches of everything, and nothing left behind."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from trainer_parts import ListLogger, Regression, RegressionData

from camshaft.callbacks import CSVLogger, EarlyStopping, ModelCheckpoint
from camshaft.hooks_core import Callback
from camshaft.trainer import Trainer
from camshaft.trainer.loggers import SilentLogger


class Counting(Callback):
    """How many batches of each stage ran, and whether the sanity check did."""

    def __init__(self) -> None:
        self.num_batches = {"train": 0, "validate": 0, "test": 0, "predict": 0}
        self.epochs = 0
        self.sanity_checked = False

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.num_batches["train"] += 1

    def on_validation_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
        self.num_batches["validate"] += 1

    def on_test_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
        self.num_batches["test"] += 1

    def on_predict_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
        self.num_batches["predict"] += 1

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        self.epochs += 1

    def on_sanity_check_start(self, trainer: Any, module: Any) -> None:
        self.sanity_checked = True


@pytest.mark.parametrize(("fast_dev_run", "expected"), [(True, 1), (1, 1), (2, 2), (10, 10)])
def test_a_trial_takes_so_many_batches_of_every_loader_once(
    fast_dev_run: bool | int, expected: int, tmp_path: Path
) -> None:
    counting = Counting()
    trainer = Trainer(
        fast_dev_run=fast_dev_run,
        callbacks=counting,
        max_epochs=50,
        max_steps=1,
        min_epochs=3,
        limit_train_batches=0.5,
        limit_val_batches=0.0,
        limit_test_batches=0,
        val_check_interval=0.5,
        check_val_every_n_epoch=7,
        num_sanity_val_steps=-1,
        default_root_dir=tmp_path,
    )
    module, data = Regression(), RegressionData()
    trainer.fit(module, datamodule=data)
    assert counting.num_batches == {
        "train": min(4, expected), "validate": min(2, expected), "test": 0, "predict": 0
    }  # fmt: skip
    trainer.test(module, datamodule=data, verbose=False)
    assert len(trainer.predict(module, datamodule=data)) == 1
    assert counting.num_batches["test"] == min(3, expected)
    assert (counting.epochs, counting.sanity_checked) == (1, False)


@pytest.mark.parametrize("fast_dev_run", [False, 0])
def test_without_a_trial_all_is_as_it_was(fast_dev_run: bool | int, tmp_path: Path) -> None:
    counting = Counting()
    trainer = Trainer(fast_dev_run=fast_dev_run, callbacks=counting, max_epochs=2, default_root_dir=tmp_path)
    trainer.fit(Regression(), datamodule=RegressionData())
    assert trainer.fast_dev_run is False
    assert counting.num_batches["train"] == 8
    assert list(tmp_path.rglob("*.ckpt"))


def test_a_trial_leaves_no_file_and_no_row_behind(tmp_path: Path) -> None:
    class Drawing(Regression):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            super().validation_step(batch, batch_idx)
            self.logger.experiment.add_image("batch", batch[0], self.global_step)
            with torch.no_grad():
                self.loggers[1].log_image(key="samples", images=[batch[0]])
            for _ in self.logger.experiment["samples"]:
                raise AssertionError("there is nothing in it")

    own = ListLogger()
    trainer = Trainer(
        fast_dev_run=2,
        logger=[CSVLogger(tmp_path), own],
        callbacks=[ModelCheckpoint(every_n_train_steps=1, save_last=True)],
        log_every_n_steps=1,
        default_root_dir=tmp_path,
    )
    module = Drawing()
    trainer.fit(module, datamodule=RegressionData())
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert own.rows == own.hparams == own.statuses == []
    assert trainer.log_dir == str(tmp_path)
    assert trainer.callback_metrics["val_loss"] > 0
    (results,) = trainer.test(module, datamodule=RegressionData(), verbose=False)
    assert results["test_loss"] > 0


def test_early_stopping_lets_a_trial_run_though_its_value_is_missing(tmp_path: Path) -> None:
    stopping = EarlyStopping(monitor="no such value")
    trainer = Trainer(fast_dev_run=True, callbacks=stopping, default_root_dir=tmp_path)
    trainer.fit(Regression(), datamodule=RegressionData())
    assert trainer.global_step == 1


def test_a_silent_logger_can_be_copied() -> None:
    assert isinstance(copy.deepcopy(SilentLogger()), SilentLogger)


@pytest.mark.parametrize(
    ("fast_dev_run", "error", "message"),
    [
        (-1, ValueError, r"`fast_dev_run` must be at least 0, but got -1 \(int\) in Trainer"),
        (0.5, TypeError, r"`fast_dev_run` must be a bool or an int, but got 0.5 \(float\) in Trainer"),
        ("yes", TypeError, r"`fast_dev_run` must be a bool or an int, but got 'yes' \(str\)"),
    ],
)
def test_what_is_no_number_of_batches_is_refused(fast_dev_run: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Trainer(fast_dev_run=fast_dev_run)

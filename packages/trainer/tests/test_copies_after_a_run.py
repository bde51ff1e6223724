"""Trainer, callbacks, loggers and module are pickled and copied after a run, and work."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from trainer_parts import Regression, assert_same, loader, quiet_trainer, weights

import camshaft.callbacks as stock

COPIES: list[Callable[[Any], Any]] = [lambda owner: pickle.loads(pickle.dumps(owner)), copy.deepcopy]


def fitted(folder: Path) -> Any:
    callbacks = [
        stock.EarlyStopping("val_loss"),
        stock.LearningRateMonitor(),
        stock.ModelCheckpoint(monitor="val_loss", save_last=True),
        stock.Timer(),
        stock.DeviceStatsMonitor(),
        stock.GradientAccumulationScheduler({0: 1}),
        stock.StochasticWeightAveraging(0.1, swa_epoch_start=1),
        stock.OnExceptionCheckpoint(folder),
        stock.ThroughputMonitor(batch_size_fn=len),
        stock.TQDMProgressBar(),
        stock.ModelSummary(),
    ]
    settings = {"enable_progress_bar": True, "enable_model_summary": True, "enable_checkpointing": True}
    trainer = quiet_trainer(folder, max_epochs=2, callbacks=callbacks, logger=True, **settings)
    trainer.fit(Regression(), loader(3), loader(2))
    return trainer


@pytest.mark.parametrize("copied", COPIES, ids=["pickle", "deepcopy"])
def test_each_part_of_a_run_is_copied(tmp_path: Path, copied: Callable[[Any], Any]) -> None:
    trainer = fitted(tmp_path)
    for part in (*trainer.callbacks, *trainer.loggers, trainer.model, trainer.strategy, trainer.fit_loop):
        assert type(copied(part)) is type(part)
    kept = copied(trainer.checkpoint_callback)
    assert kept.best_model_path == trainer.checkpoint_callback.best_model_path != ""
    assert_same(kept.state_dict(), trainer.checkpoint_callback.state_dict())


@pytest.mark.parametrize("copied", COPIES, ids=["pickle", "deepcopy"])
def test_a_copied_trainer_knows_its_run_and_trains_on(tmp_path: Path, copied: Callable[[Any], Any]) -> None:
    trainer = fitted(tmp_path)
    other = copied(trainer)
    assert (other.current_epoch, other.global_step, other.state) == (2, 6, trainer.state)
    assert_same(dict(other.callback_metrics), dict(trainer.callback_metrics))
    assert_same(weights(other.model), weights(trainer.model))
    assert other.model is not trainer.model and other.optimizers[0] is not trainer.optimizers[0]
    other.save_checkpoint(tmp_path / "copied.ckpt")
    other.max_epochs = 3
    other.fit(other.model, loader(3), loader(2))
    assert (other.current_epoch, trainer.current_epoch) == (3, 2)
    other.fit(Regression(), loader(3), loader(2), ckpt_path=tmp_path / "copied.ckpt")
    assert other.current_epoch == 3

"""Checkpoints that are ranked by how far training is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from recording_trainer import RecordingTrainer

from camshaft.callbacks import EarlyStopping, ModelCheckpoint
from camshaft.callbacks.arguments import MissingMetricError
from camshaft.callbacks.monitoring import read_metric


@pytest.mark.parametrize("name", ["epoch", "step"])
def test_epoch_and_step_rank_checkpoints(tmp_path: Path, name: str) -> None:
    checkpoint = ModelCheckpoint(tmp_path, monitor=name, mode="max", save_top_k=2)
    trainer = RecordingTrainer(str(tmp_path), callbacks=[checkpoint])
    trainer.begin()
    for _ in range(3):
        trainer.train_batch()
        trainer.end_epoch(loss=1.0)
    assert checkpoint.best_model_score == (2 if name == "epoch" else 3)
    assert len(checkpoint.best_k_models) == 2


def test_a_value_that_is_logged_under_these_names_counts() -> None:
    trainer = RecordingTrainer(".", callback_metrics={"epoch": torch.tensor(7.0)})
    assert ModelCheckpoint(monitor="epoch")._monitor_candidates(trainer)["epoch"] == 7


def test_early_stopping_watches_logged_values_alone() -> None:
    trainer = RecordingTrainer(".")
    stopping = EarlyStopping("epoch", mode="max")
    with pytest.raises(MissingMetricError, match="'epoch'"):
        read_metric(trainer, stopping.monitor, "EarlyStopping")

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from recording_trainer import RecordingTrainer

from camshaft.callbacks.arguments import InvalidArgumentError
from camshaft.callbacks.checkpoints.model_checkpoint import ModelCheckpoint
from camshaft.callbacks.loggers.checkpoint_log import CheckpointLogger, LoggedCheckpoint


class NotingLogger(CheckpointLogger):
    """Notes the checkpoints that it is to log."""

    name = version = "noting"

    def __init__(self, log_model: Any) -> None:
        super().__init__(log_model)
        self.found: list[LoggedCheckpoint] = []

    @property
    def noted(self) -> list[tuple[str, tuple[str, ...]]]:
        return [(one.name, one.aliases[1:]) for one in self.found]

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Take no metrics."""

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Take no hyperparameters."""

    def _log_checkpoint(self, checkpoint: LoggedCheckpoint) -> None:
        self.found.append(checkpoint)

    def finalize(self, status: str) -> None:
        self._log_kept()


def train(folder: Path, logger: Any, losses: list[float], **arguments: Any) -> ModelCheckpoint:
    """An epoch for each loss."""
    callback = ModelCheckpoint(folder / "saved", monitor="loss", save_on_train_epoch_end=True, **arguments)
    trainer = RecordingTrainer(str(folder), callbacks=[callback], loggers=[object(), logger])
    trainer.begin()
    for loss in losses:
        trainer.train_batch()
        trainer.end_epoch(loss=loss)
    trainer.end()
    return callback


def test_what_is_kept_is_logged_at_the_end_and_only_once(tmp_path: Path) -> None:
    logger = NotingLogger(True)
    train(tmp_path, logger, [3.0, 1.0, 2.0, 4.0], save_top_k=2)
    assert logger.noted == []
    logger.finalize("success")
    logger.finalize("success")
    assert logger.noted == [("epoch=1-step=2", ("best",)), ("epoch=2-step=3", ())]


def test_all_are_logged_as_they_are_saved(tmp_path: Path) -> None:
    logger = NotingLogger("all")
    train(tmp_path, logger, [3.0, 1.0, 2.0], save_last=True, filename="{epoch}")
    expected = [("epoch=0", ("best", "last")), ("epoch=1", ("best", "last")), ("last", ("last",))]
    assert logger.noted == expected
    logger.finalize("success")
    assert logger.noted == expected, "the best and the last one were logged already"


def test_a_callback_that_keeps_all_has_all_of_them_logged_as_they_are_saved(tmp_path: Path) -> None:
    logger = NotingLogger(True)
    train(tmp_path, logger, [3.0, 1.0], save_top_k=-1, filename="of/{epoch}")
    assert logger.noted == [("of/epoch=0", ("best",)), ("of/epoch=1", ("best",))]


def test_a_name_that_is_written_again_is_logged_again(tmp_path: Path) -> None:
    logger = NotingLogger("all")
    train(tmp_path, logger, [3.0, 2.0], filename="same")
    assert logger.noted == [("same", ("best",))] * 2


def test_nothing_is_logged_without_being_asked_for_or_saved(tmp_path: Path) -> None:
    for log_model, losses in ((False, [1.0]), (True, []), ("all", [])):
        logger = NotingLogger(log_model)
        train(tmp_path / str(log_model), logger, losses)
        logger.finalize("success")
        assert logger.noted == []


def test_loggers_are_told_once_a_checkpoint_is_durable_and_on_the_first_process_alone(tmp_path: Path) -> None:
    for is_global_zero in (True, False):
        logger = NotingLogger("all")
        callback = ModelCheckpoint(tmp_path / str(is_global_zero), every_n_train_steps=1)
        trainer = RecordingTrainer(str(tmp_path), callbacks=[callback], loggers=[logger], is_global_zero=is_global_zero)
        trainer.begin()
        trainer.train_batch()
        assert logger.noted == [] and callback.saved_path == ""
        trainer.save_point()
        assert logger.noted == ([("epoch=0-step=1", ())] if is_global_zero else [])
        assert callback.saved_path == str(callback.dirpath) + f"{os.sep}epoch=0-step=1.ckpt"


def test_one_that_was_displaced_before_it_was_durable_is_not_logged(tmp_path: Path) -> None:
    logger = NotingLogger("all")
    callback = ModelCheckpoint(tmp_path, every_n_train_steps=1)
    trainer = RecordingTrainer(str(tmp_path), callbacks=[callback], loggers=[logger])
    trainer.begin()
    trainer.train_batch()
    trainer.train_batch()
    trainer.save_point(order=[1, 0])
    assert logger.noted == [("epoch=0-step=2", ())]


def test_the_metadata_are_plain_values(tmp_path: Path) -> None:
    logger = NotingLogger(True)
    train(tmp_path, logger, [0.5], mode="max", save_last="link")
    logger.finalize("success")
    (found,) = logger.found
    assert found.path.is_file() and found.aliases == ("latest", "best", "last")
    assert found.metadata == {
        "score": 0.5,
        "original_filename": "epoch=0-step=1.ckpt",
        "ModelCheckpoint": {
            "monitor": "loss",
            "mode": "max",
            "save_last": "link",
            "save_top_k": 1,
            "save_weights_only": False,
            "every_n_train_steps": 0,
            "every_n_epochs": 1,
        },
    }


def test_a_copy_has_no_callbacks(tmp_path: Path) -> None:
    logger = NotingLogger(True)
    train(tmp_path, logger, [0.5])
    for one, expected in ((pickle.loads(pickle.dumps(logger)), 0), (logger, 1)):
        one.finalize("success")
        assert len(one.found) == expected


def test_another_value_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="`log_model` must be True, False or 'all', but got 'best'"):
        NotingLogger("best")


def test_a_logger_that_fails_is_heard(tmp_path: Path) -> None:
    class Full:
        def after_save_checkpoint(self, checkpoint_callback: ModelCheckpoint) -> None:
            raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        train(tmp_path, Full(), [1.0])
    assert torch.load(next((tmp_path / "saved").iterdir()), weights_only=True)["global_step"] == 1

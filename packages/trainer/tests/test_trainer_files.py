"""What a trainer attaches by default, and which files a run leaves where."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from trainer_parts import ListLogger, Regression, RegressionData, files_below, loader

from camshaft.callbacks import CSVLogger, EarlyStopping, ModelCheckpoint, ModelSummary, RichProgressBar
from camshaft.trainer import Trainer


def test_a_default_run_logs_saves_and_shows_progress(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = Trainer(max_epochs=2, default_root_dir=tmp_path, log_every_n_steps=2)
    assert [type(callback) for callback in trainer.callbacks] == [RichProgressBar, ModelSummary, ModelCheckpoint]
    assert [type(logger) for logger in trainer.loggers] == [CSVLogger]

    trainer.fit(Regression(), loader(), loader(2))

    assert files_below(tmp_path) == [
        "camshaft_logs/version_0/checkpoints/epoch=1-step=8.ckpt",
        "camshaft_logs/version_0/hparams.json",
        "camshaft_logs/version_0/metrics.csv",
    ]
    run = tmp_path / "camshaft_logs/version_0"
    assert trainer.log_dir == str(run)
    assert json.loads((run / "hparams.json").read_text()) == {"learning_rate": 0.1, "dropout": 0.0}
    with (run / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["step"], row["epoch"], bool(row["train_loss"]), bool(row["val_loss"])) for row in rows] == [
        ("1", "0", True, False),
        ("3", "0", True, False),
        ("3", "0", False, True),
        ("5", "1", True, False),
        ("7", "1", True, False),
        ("7", "1", False, True),
    ]
    printed = capsys.readouterr().out
    assert "Epoch 1/1: 4 batches" in printed and "val_loss" in printed and "train_loss" in printed


def test_every_new_run_has_a_folder_of_its_own(tmp_path: Path) -> None:
    for _ in range(2):
        Trainer(max_epochs=1, default_root_dir=tmp_path).fit(Regression(), loader(1), loader(1))
    assert sorted(path.name for path in (tmp_path / "camshaft_logs").iterdir()) == ["version_0", "version_1"]


def test_nothing_is_written_before_a_verb(tmp_path: Path) -> None:
    Trainer(default_root_dir=tmp_path)
    assert files_below(tmp_path) == []


def test_evaluation_alone_leaves_no_checkpoint(tmp_path: Path) -> None:
    Trainer(default_root_dir=tmp_path).validate(Regression(), loader())
    assert files_below(tmp_path) == ["camshaft_logs/version_0/hparams.json", "camshaft_logs/version_0/metrics.csv"]


@pytest.mark.parametrize(
    ("arguments", "kinds", "files"),
    [
        ({"logger": False}, [RichProgressBar, ModelSummary, ModelCheckpoint], ["checkpoints/epoch=0-step=4.ckpt"]),
        (
            {"enable_checkpointing": False, "logger": True},
            [RichProgressBar, ModelSummary],
            ["camshaft_logs/version_0/hparams.json", "camshaft_logs/version_0/metrics.csv"],
        ),
        ({"enable_progress_bar": False, "enable_checkpointing": False, "logger": False}, [], []),
        (
            {"callbacks": [ModelCheckpoint(filename="mine"), EarlyStopping("val_loss")], "logger": False},
            [ModelCheckpoint, EarlyStopping, RichProgressBar, ModelSummary],
            ["checkpoints/mine.ckpt"],
        ),
    ],
    ids=["no logger", "no checkpoints", "nothing", "passed"],
)
def test_what_is_disabled_or_passed_is_not_added(
    arguments: dict[str, Any], kinds: list[type], files: list[str], tmp_path: Path
) -> None:
    trainer = Trainer(max_epochs=1, default_root_dir=tmp_path, **arguments)
    assert [type(callback) for callback in trainer.callbacks] == kinds
    trainer.fit(Regression(), loader(), loader())
    assert files_below(tmp_path) == files


def test_nothing_is_printed_without_a_progress_bar(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = Trainer(max_epochs=1, default_root_dir=tmp_path, enable_progress_bar=False)
    trainer.fit(Regression(), loader(), loader())
    trainer.validate(Regression(), loader(), verbose=False)
    assert capsys.readouterr().out == ""


def test_callbacks_of_a_kind_are_found_by_it(tmp_path: Path) -> None:
    first, second = ModelCheckpoint(), ModelCheckpoint(monitor="val_loss")
    stopping = EarlyStopping("val_loss")
    trainer = Trainer(callbacks=[first, stopping, second], default_root_dir=tmp_path)
    assert trainer.checkpoint_callback is first
    assert trainer.checkpoint_callbacks == [first, second]
    assert trainer.early_stopping_callback is stopping
    assert trainer.early_stopping_callbacks == [stopping]
    assert isinstance(trainer.progress_bar_callback, RichProgressBar)


def test_several_loggers_get_the_same(tmp_path: Path) -> None:
    first, second = ListLogger(), ListLogger()
    trainer = Trainer(max_epochs=1, default_root_dir=tmp_path, logger=[first, second], log_every_n_steps=1)
    trainer.fit(Regression(), loader(), loader())
    assert trainer.logger is first and trainer.loggers == [first, second]
    assert first.rows == second.rows and len(first.rows) == 5
    assert first.hparams == second.hparams == [{"learning_rate": 0.1, "dropout": 0.0}]
    assert first.statuses == second.statuses == ["success"]


def test_a_logger_without_a_folder_leaves_checkpoints_in_the_default_one(tmp_path: Path) -> None:
    Trainer(max_epochs=1, default_root_dir=tmp_path, logger=ListLogger()).fit(Regression(), loader(), loader())
    assert files_below(tmp_path) == ["checkpoints/epoch=0-step=4.ckpt"]


def test_hyperparameters_of_the_data_module_are_logged_with_those_of_the_module(tmp_path: Path) -> None:
    class Sized(RegressionData):
        def __init__(self, num_batches: int, learning_rate: float = 0.1) -> None:
            super().__init__()
            self.save_hyperparameters()

    logger = ListLogger()
    trainer = Trainer(max_epochs=1, default_root_dir=tmp_path, logger=logger, enable_checkpointing=False)
    trainer.fit(Regression(), datamodule=Sized(2))
    assert logger.hparams == [{"num_batches": 2, "learning_rate": 0.1, "dropout": 0.0}]

    trainer = Trainer(max_epochs=1, default_root_dir=tmp_path, logger=logger, enable_checkpointing=False)
    rule = r"`hparams\['learning_rate'\]` must be the same in module and data module \(0.1 in Regression\), but got 0.5"
    with pytest.raises(ValueError, match=rule):
        trainer.fit(Regression(), datamodule=Sized(2, learning_rate=0.5))
    assert logger.statuses == ["success", "failed"]


def test_the_home_directory_can_be_written_as_a_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert Trainer(default_root_dir="~/runs").default_root_dir == str(tmp_path / "runs")


def test_the_working_directory_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Trainer(max_epochs=1).fit(Regression(), loader(1), loader(1))
    assert (tmp_path / "camshaft_logs/version_0/metrics.csv").is_file()


class TestBarebones:
    def test_attaches_nothing_and_writes_nothing(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        module = Regression()
        trainer = Trainer(max_epochs=2, barebones=True, default_root_dir=tmp_path)
        assert trainer.callbacks == [] and trainer.loggers == [] and trainer.logger is None

        trainer.fit(module, loader(), loader())

        assert files_below(tmp_path) == [] and capsys.readouterr().out == ""
        assert trainer.callback_metrics == trainer.logged_metrics == trainer.progress_bar_metrics == {}
        assert trainer.global_step == 8
        assert trainer.log_every_n_steps == 0

    def test_runs_no_sanity_check(self, tmp_path: Path) -> None:
        stages = []

        class Watching(Regression):
            def on_sanity_check_start(self) -> None:
                raise AssertionError("not meant to run")

            def on_validation_start(self) -> None:
                stages.append(self.trainer.global_step)

        Trainer(max_epochs=1, barebones=True, default_root_dir=tmp_path).fit(Watching(), loader(), loader())
        assert stages == [4]

    def test_keeps_what_is_logged_in_the_module(self, tmp_path: Path) -> None:
        module = Regression()
        assert Trainer(barebones=True, default_root_dir=tmp_path).validate(module, loader()) == [{}]
        assert list(module.logged_metrics) == ["val_loss"]

    def test_takes_callbacks_that_need_nothing(self, tmp_path: Path) -> None:
        calls = []

        class Counting:
            def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
                calls.append(batch_idx)

        trainer = Trainer(max_epochs=1, barebones=True, callbacks=Counting(), default_root_dir=tmp_path)
        trainer.fit(Regression(), loader(), loader())
        assert calls == [0, 1, 2, 3]

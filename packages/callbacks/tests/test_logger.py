"""The base class of loggers of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from camshaft.callbacks import CSVLogger, Logger, TensorBoardLogger, rank_zero_experiment
from camshaft.hooks_core.protocols import Logger as LoggerProtocol


class Own(Logger):
    saved = 0

    @property
    def name(self) -> str:
        return "own"

    @property
    def version(self) -> int:
        return 3

    @property
    @rank_zero_experiment
    def experiment(self) -> str:
        return "the experiment"

    def log_metrics(self, metrics: Any, step: int | None = None) -> None: ...

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None: ...

    def save(self) -> None:
        self.saved += 1


def test_the_rest_need_not_be_defined() -> None:
    logger: LoggerProtocol = Own()
    assert isinstance(logger, Own)
    assert (logger.save_dir, logger.root_dir, logger.log_dir, logger.group_separator) == (None, None, None, "/")
    logger.finalize("success")
    logger.after_save_checkpoint(None)  # type: ignore[arg-type]
    assert logger.saved == 1


def test_what_has_to_be_defined_is_named() -> None:
    with pytest.raises(TypeError, match="abstract method"):
        type("Empty", (Logger,), {})()


def test_other_ranks_have_an_experiment_that_takes_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    logger = Own()
    assert logger.experiment == "the experiment"
    monkeypatch.setenv("RANK", "1")
    silent: Any = logger.experiment
    assert silent.add_scalar("loss", 1.0) is None
    silent["loss"] = 1.0
    assert silent[0].anything() is None


def test_all_loggers_are_loggers(tmp_path: Path) -> None:
    assert issubclass(CSVLogger, Logger) and issubclass(TensorBoardLogger, Logger)


def test_the_experiment_of_a_csv_logger_writes_rows(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path)
    logger.experiment.log_metrics({"loss": 0.5}, 3)
    logger.experiment.log_metrics({"loss": 0.25})
    assert logger.experiment.metrics == [{"step": 3, "loss": 0.5}, {"step": 1, "loss": 0.25}]
    logger.save()
    assert Path(logger.experiment.metrics_file_path).read_text() == "step,loss\n3,0.5\n1,0.25\n"
    assert (logger.experiment.log_dir, logger.experiment.metrics_keys) == (logger.log_dir, ["step", "loss"])


def test_hyperparameters_may_be_none(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path)
    logger.log_hyperparams()
    assert Path(logger.log_dir, "hparams.json").read_text() == "{}\n"


def test_a_prefix_is_joined_by_the_loggers_own_character(tmp_path: Path) -> None:
    class Grouped(CSVLogger):
        LOGGER_JOIN_CHAR = "/"

    logger = Grouped(tmp_path, prefix="run")
    logger.log_metrics({"loss": 0.5}, 0)
    logger.save()
    assert Path(logger.experiment.metrics_file_path).read_text() == "step,run/loss\n0,0.5\n"

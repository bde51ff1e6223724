from __future__ import annotations

import os
import warnings
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import yaml
from compat_parts import Regression, quiet_trainer
from trainer_parts import NO_VALIDATION, loader

import camshaft.callbacks as ours
from camshaft.compat import Trainer
from camshaft.compat.names.trainer.loggers import (
    CSVLogger,
    DummyExperiment,
    DummyLogger,
    FabricCSVLogger,
    FabricLogger,
    LightningLoggerBase,
    MLFlowLogger,
    TensorBoardLogger,
    TestTubeLogger,
    WandbLogger,
    merge_dicts,
    rank_zero_experiment,
)
from camshaft.compat.names.utilities import functions
from camshaft.compat.names.utilities.functions import rank_zero_only


class Recorder(LightningLoggerBase):
    """A logger as releases 0.7 to 1.5 had them."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[int | None, dict[str, float]]] = []
        self.hparams: Any = None
        self.status: str | None = None

    @property
    def name(self) -> str:
        return "recorder"

    @property
    def version(self) -> int:
        return 0

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        return self.rows

    @rank_zero_only
    def log_hyperparams(self, params: Any) -> None:
        self.hparams = self._sanitize_params(self._flatten_dict(self._convert_params(params)))

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.rows.append((step, metrics))

    @rank_zero_only
    def finalize(self, status: str) -> None:
        self.status = status


@pytest.mark.filterwarnings(NO_VALIDATION)
def test_a_logger_of_ones_own_gets_what_is_logged(tmp_path: Path) -> None:
    logger = Recorder()
    trainer = Trainer(
        logger=logger,
        max_epochs=1,
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_checkpointing=False,
        default_root_dir=tmp_path,
    )
    trainer.fit(Regression(), loader())
    assert [step for step, row in logger.rows if "train_loss" in row] == [0, 1, 2, 3]
    assert logger.hparams == {"learning_rate": 0.1, "dropout": 0.0}
    assert logger.status == "success"
    assert logger.experiment is logger.rows


def test_loggers_of_ours_are_loggers_of_the_earlier_base(tmp_path: Path) -> None:
    assert isinstance(ours.CSVLogger(tmp_path), LightningLoggerBase)
    assert isinstance(Recorder(), LightningLoggerBase)
    assert not isinstance(ours.CSVLogger(tmp_path), Recorder)
    assert not isinstance(Regression(), LightningLoggerBase)


def test_a_logger_that_overrides_what_is_not_called_warns_once_in_use() -> None:
    own = type("Own", (LightningLoggerBase,), {"agg_and_log_metrics": lambda self, metrics, step: None})
    with pytest.warns(UserWarning, match=r"Own\.agg_and_log_metrics: this method is not called.*`log_metrics`"):
        own()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        own()


def test_a_logger_may_be_one_of_the_trainer_and_an_own_one_of_fabric(tmp_path: Path) -> None:
    class OfFabric(FabricLogger):
        name = version = "own"

        def log_metrics(self, metrics: Any, step: int | None = None) -> None:
            rows.append((step, dict(metrics)))

        def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
            pass

    class Both(LightningLoggerBase, OfFabric):
        pass

    class CSV(LightningLoggerBase, FabricCSVLogger):
        pass

    rows: list[Any] = []
    quiet_trainer(tmp_path, max_epochs=1, logger=Both(), log_every_n_steps=1).fit(Regression(), loader(2))
    assert [step for step, row in rows if "train_loss" in row] == [0, 1]
    logger = CSV(tmp_path)
    quiet_trainer(tmp_path, max_epochs=1, logger=logger, log_every_n_steps=1).fit(Regression(), loader(2))
    assert (Path(logger.log_dir) / "metrics.csv").is_file()
    assert isinstance(logger, FabricLogger) and issubclass(LightningLoggerBase, FabricLogger)


def test_a_logger_without_its_methods_says_so() -> None:
    with pytest.raises(NotImplementedError, match="LightningLoggerBase does not define `log_metrics`"):
        LightningLoggerBase().log_metrics({})


def test_the_experiment_of_other_processes_takes_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "RANK": "1",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "1",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(rank_zero_only, "rank", functions.get_rank())  # as when the process begins
    logger = Recorder()
    assert isinstance(logger.experiment, DummyExperiment)
    assert logger.experiment.add_scalar("loss", 1.0) is None
    logger.log_metrics({"loss": 1.0}, 0)
    assert not logger.rows


def test_a_dummy_logger_takes_everything() -> None:
    logger = DummyLogger()
    logger.log_metrics({"loss": 1.0}, 0)
    logger.log_hyperparams({})
    assert logger.experiment[0].anything(1) is None


def test_parameters_are_flattened_and_made_plain() -> None:
    flat = LightningLoggerBase._flatten_dict(Namespace(a=1, b={"c": [2]}))
    assert flat == {"a": 1, "b/c": [2]}
    assert LightningLoggerBase._sanitize_params(flat) == {"a": 1, "b/c": "[2]"}


def test_dictionaries_are_merged_by_mean_or_by_functions() -> None:
    dicts = [{"a": 1.0, "b": 1.0, "c": {"d": 4.0}}, {"a": 3.0, "b": 5.0, "c": {"d": 2.0}}]
    assert merge_dicts(dicts) == {"a": 2.0, "b": 3.0, "c": {"d": 3.0}}
    assert merge_dicts(dicts, {"b": max, "c": {"d": min}}) == {"a": 2.0, "b": 5.0, "c": {"d": 2.0}}


def test_the_csv_logger_has_the_earlier_folder(tmp_path: Path) -> None:
    assert CSVLogger(tmp_path).log_dir == os.path.join(tmp_path, "lightning_logs", "version_0")
    assert CSVLogger(tmp_path, "mine", version=3).log_dir == os.path.join(tmp_path, "mine", "version_3")
    assert isinstance(ours.CSVLogger(tmp_path), CSVLogger)


def test_the_tensorboard_logger_takes_its_arguments_in_the_earlier_order(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    logger = TensorBoardLogger(str(tmp_path), "mine", 2, False, True, "net")
    assert (logger.name, logger.version, logger.prefix) == ("mine", 2, "net")
    assert TensorBoardLogger(tmp_path).name == "lightning_logs"
    TensorBoardLogger(tmp_path).log_graph(Regression())  # writes none, and says nothing
    with pytest.warns(UserWarning, match="Could not log computational graph to TensorBoard"):
        TensorBoardLogger(tmp_path, log_graph=True).log_graph(Regression())
    with pytest.raises(TypeError, match="agg_key_funcs"):
        TensorBoardLogger(tmp_path, agg_key_funcs={})


def test_the_logger_of_test_tube_writes_for_tensorboard_to_the_earlier_folder(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    with pytest.warns(UserWarning, match="`description` is not written"):
        logger = TestTubeLogger(str(tmp_path), "default", "some words", version=3)
    logger.experiment.add_scalar("loss", 1.0, 0)
    logger.save()
    assert [path.name[:6] for path in (tmp_path / "default" / "version_3").glob("events*")] == ["events"]


@pytest.mark.parametrize("given", ["debug", "create_git_tag"])
def test_what_the_logger_of_test_tube_did_beside_logging_is_refused(given: str) -> None:
    with pytest.raises(ValueError, match=f"`{given}` must be left out"):
        TestTubeLogger("logs", **{given: True})  # type: ignore[arg-type]


def test_the_wandb_logger_takes_its_arguments_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    logger = WandbLogger("run", str(tmp_path), offline=True, project="research", tags=["a"], entity=None, group="g")
    assert (logger.name, logger.save_dir) == ("research", str(tmp_path))
    assert WandbLogger(offline=True).name == "lightning_logs"
    with pytest.raises(TypeError, match="positional"):
        WandbLogger("run", str(tmp_path), True)  # type: ignore[misc]
    with pytest.raises(ValueError, match="`sync_step` must be left out, since steps are always the trainer's"):
        WandbLogger(sync_step=True)


def test_the_mlflow_logger_takes_its_arguments_by_name(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    uri = f"sqlite:///{tmp_path / 'runs.db'}"
    try:
        logger = MLFlowLogger("research", tracking_uri=uri, tags={"a": 1})
    except ModuleNotFoundError:
        logger = MLFlowLogger("research", tracking_uri=tmp_path.as_uri(), tags={"a": 1})
    assert logger.name == logger.experiment_id and logger.tags == {"a": "1"}
    with pytest.raises(TypeError, match="positional"):
        MLFlowLogger("research", uri)  # type: ignore[misc]


@pytest.mark.filterwarnings(NO_VALIDATION)
def test_the_default_logger_writes_where_libraries_look(tmp_path: Path) -> None:
    trainer = Trainer(max_epochs=1, default_root_dir=tmp_path, enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(Regression(), loader())
    assert isinstance(trainer.logger, TensorBoardLogger)
    assert trainer.log_dir == str(tmp_path / "lightning_logs" / "version_0")
    assert (tmp_path / "lightning_logs/version_0/checkpoints/epoch=0-step=4.ckpt").is_file()
    hparams = yaml.safe_load((tmp_path / "lightning_logs/version_0/hparams.yaml").read_text())
    assert hparams == {"learning_rate": 0.1, "dropout": 0.0}


def test_a_run_that_logs_nothing_has_its_files_too(tmp_path: Path) -> None:
    class Own(TensorBoardLogger):
        def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
            raise AssertionError("there are none")

    logger = Own(tmp_path)
    logger.begin_fit(Regression())
    assert yaml.safe_load(Path(logger.log_dir, "hparams.yaml").read_text()) == {}
    assert list(Path(logger.log_dir).glob("events.out.tfevents.*"))


def test_the_logger_of_a_trial_is_a_dummy(tmp_path: Path) -> None:
    trainer = Trainer(fast_dev_run=True, default_root_dir=tmp_path, enable_progress_bar=False)
    assert isinstance(trainer.logger, DummyLogger)
    assert not isinstance(CSVLogger(tmp_path), DummyLogger)


def test_a_csv_logger_has_the_experiment_and_the_files_of_lightning(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path, "mine", version="first")
    logger.log_hyperparams({"lr": 1e-05, "net": {"depth": 2}})
    logger.experiment.log_metrics({"loss": 0.5}, 0)
    logger.save()
    folder = tmp_path / "mine" / "first"
    assert yaml.safe_load((folder / logger.experiment.NAME_HPARAMS_FILE).read_text()) == logger.hparams
    assert (folder / logger.experiment.NAME_METRICS_FILE).read_text() == "step,loss\n0,0.5\n"
    with pytest.warns(UserWarning, match=r"metrics\.csv of an earlier run is replaced"):
        CSVLogger(tmp_path, "mine", version="first").log_metrics({"loss": 0.25}, 0)


def test_loggers_of_fabric_write_below_their_root_dir(tmp_path: Path) -> None:
    from camshaft.compat.names.trainer.loggers import FabricCSVLogger, FabricTensorBoardLogger

    logger = FabricCSVLogger(root_dir=tmp_path, version=3, flush_logs_every_n_steps=1)
    logger.log_metrics({"loss": 0.5}, 0)
    logger.save()
    assert (tmp_path / "lightning_logs" / "version_3" / "metrics.csv").is_file()
    pytest.importorskip("tensorboard")
    board = FabricTensorBoardLogger(tmp_path, "board", sub_dir="inner")
    assert Path(board.log_dir) == tmp_path / "board" / "version_0" / "inner"

from __future__ import annotations

import copy
import math
import os
import pickle
import random
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from recording_trainer import RecordingTrainer

os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"

from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from camshaft.callbacks.arguments import InvalidArgumentError
from camshaft.callbacks.checkpoints.model_checkpoint import ModelCheckpoint
from camshaft.callbacks.loggers import mlflow_logger
from camshaft.callbacks.loggers.mlflow_logger import MLFlowLogger
from camshaft.hooks_core.protocols import Logger


@pytest.fixture(autouse=True)
def _no_tracking_uri(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)


def client_of(folder: Path) -> MlflowClient:
    return MlflowClient(folder.as_uri())


def points(logger: MLFlowLogger, name: str) -> list[tuple[int, float]]:
    history = MlflowClient(logger.tracking_uri).get_metric_history(logger.run_id, name)
    return [(metric.step, metric.value) for metric in history]


def test_is_a_logger_and_makes_nothing_before_it_writes(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    logger: Logger = MLFlowLogger(save_dir=folder)
    assert (logger.name, logger.save_dir) == ("camshaft_logs", str(folder))
    logger.log_metrics({}, step=0)
    logger.save()
    logger.finalize("success")
    assert not folder.exists()
    logger.log_metrics({"loss": 1.0}, step=0)
    logger.save()
    run = client_of(folder).get_run(str(logger.version))
    assert logger.log_dir == str(folder / run.info.experiment_id / run.info.run_id)
    assert os.path.isfile(os.path.join(logger.log_dir, "meta.yaml"))


def test_metrics_are_read_back_whatever_they_are(tmp_path: Path) -> None:
    logger = MLFlowLogger("mine", "first", save_dir=tmp_path, prefix="fold1", tags={"team": 7})
    value = torch.tensor(0.5)
    for step, number in ((0, value), (4, 2), (8, math.nan), (12, math.inf), (16, -math.inf)):
        logger.log_metrics({"loss": number, "epoch": 0}, step)  # type: ignore[dict-item]
    value.fill_(9.0)
    logger.log_metrics({"loss": 7.0})  # belongs to the newest step
    logger.finalize("success")
    assert str(points(logger, "fold1-loss")) == "[(0, 0.5), (4, 2.0), (8, nan), (12, inf), (16, -inf), (16, 7.0)]"
    run = client_of(tmp_path).get_run(logger.run_id)
    assert (run.info.run_name, run.info.status, run.data.tags["team"]) == ("first", "FINISHED", "7")
    assert client_of(tmp_path).get_experiment(logger.experiment_id).name == "mine"
    with pytest.raises(InvalidArgumentError, match=r"`metrics\['name'\]` must be a number, but got 'x'"):
        logger.log_metrics({"name": "x"})  # type: ignore[dict-item]


def test_rows_are_sent_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logger = MLFlowLogger(save_dir=tmp_path)
    sent: list[int] = []
    real = logger.experiment.log_batch

    def counted(run_id: str, metrics: Any = (), **entries: Any) -> Any:
        sent.append(len(metrics))
        return real(run_id, metrics=metrics, **entries)

    monkeypatch.setattr(logger.experiment, "log_batch", counted)
    monkeypatch.setattr(mlflow_logger, "_MAX_BUFFER_SECONDS", math.inf)
    for step in range(1250):
        logger.log_metrics({"loss": step, "accuracy": 0.5}, step)
    assert sent == [1000, 1000]
    monkeypatch.setattr(mlflow_logger, "_MAX_BUFFER_SECONDS", 0.0)
    logger.log_metrics({"loss": 1250}, 1250)
    assert sent == [1000, 1000, 501], "old ones are sent, too"
    logger.save()
    assert points(logger, "loss") == [(step, step) for step in range(1251)]


def test_a_thread_sends_them_if_wanted_and_save_waits_for_it(tmp_path: Path) -> None:
    logger = MLFlowLogger(save_dir=tmp_path, synchronous=False)
    logger.log_hyperparams({"lr": 0.1})
    for step in range(50):
        logger.log_metrics({"loss": step}, step)
    logger.finalize("success")
    assert sorted(points(logger, "loss")) == [(step, step) for step in range(50)]
    assert client_of(tmp_path).get_run(logger.run_id).data.params == {"lr": "0.1"}
    assert logger.log_dir is not None
    metrics = Path(logger.log_dir, "metrics")
    shutil.rmtree(metrics)
    metrics.touch()
    logger.log_metrics({"loss": 1.0}, 50)
    with pytest.raises(MlflowException, match=r"not found|Not a directory"):
        logger.save()


def test_a_run_is_continued_by_its_id_with_the_steps_that_it_had(tmp_path: Path) -> None:
    first = MLFlowLogger("mine", save_dir=tmp_path)
    first.log_hyperparams({"lr": 0.1})
    for step in range(4):
        first.log_metrics({"loss": step / 2}, step)
    first.finalize("failed")
    reader = client_of(tmp_path)
    assert reader.get_run(first.run_id).info.status == "FAILED"
    again = MLFlowLogger(save_dir=tmp_path, run_id=first.run_id, tags={"resumed": True})
    with pytest.warns(UserWarning, match="'lr' stays '0.1' in the MLflow run .*; '0.5' is not written"):
        again.log_hyperparams({"lr": 0.5, "epochs": 2})
    again.log_metrics({"loss": 2.0}, 4)
    again.save()
    run = reader.get_run(first.run_id)
    assert run.data.params == {"lr": "0.1", "epochs": "2"}
    assert (run.info.status, run.data.tags["resumed"]) == ("RUNNING", "True")
    again.finalize("success")
    assert points(again, "loss") == [(step, step / 2) for step in range(5)]
    assert (again.name, again.version) == ("mine", first.run_id)
    assert reader.get_run(first.run_id).info.status == "FINISHED"
    again.log_metrics({"test_loss": 1.0}, 5)
    again.save()
    assert reader.get_run(first.run_id).info.status == "RUNNING"
    with pytest.raises(MlflowException, match="not found"):
        _ = MLFlowLogger(save_dir=tmp_path, run_id="0" * 32).experiment


def test_hyperparameters_are_flat_and_too_long_ones_are_cut_with_a_warning(tmp_path: Path) -> None:
    logger = MLFlowLogger(save_dir=tmp_path)
    params = {"net": {"depth": 2, "act": torch.nn.functional.relu}, "lrs": [0.1, 0.2], "text": "x" * 7000, "why?": None}
    with pytest.warns(UserWarning) as warned:
        logger.log_hyperparams({**params, **{f"p{idx}": idx for idx in range(150)}})
    messages = " ".join(str(each.message) for each in warned)
    assert "Parameter 'text' is cut from 7000 to 6000 characters." in messages
    assert "'why?' is called 'why_' in MLflow" in messages
    found = client_of(tmp_path).get_run(logger.run_id).data.params
    assert found["net/depth"] == "2" and found["net/act"] == "torch.nn.functional.relu" and found["why_"] == "None"
    assert found["lrs"] == "[0.1, 0.2]" and found["text"] == "x" * 6000 and found["p149"] == "149"


def test_names_that_mlflow_does_not_take_are_changed_with_one_warning(tmp_path: Path) -> None:
    logger = MLFlowLogger(save_dir=tmp_path)
    with pytest.warns(UserWarning, match="'/top@1' is called 'top_1'") as warned:
        for step in range(2):
            logger.log_metrics({"/top@1": 1.0, "val/loss x": 2.0}, step)
    assert len(warned) == 1
    logger.save()
    assert points(logger, "top_1") == [(0, 1.0), (1, 1.0)] and len(points(logger, "val/loss x")) == 2


def test_a_metric_whose_name_is_the_path_above_anothers_has_another_name_also_when_the_run_goes_on(
    tmp_path: Path,
) -> None:
    def log(names: list[str], step: int, run_id: str | None = None) -> MLFlowLogger:
        logger = MLFlowLogger(save_dir=tmp_path, run_id=run_id)
        for name in names:
            logger.log_metrics({name: 1.0}, step)
        logger.finalize("success")
        return logger

    with pytest.warns(UserWarning) as warned:
        logger = log(["lr", "lr/group", "a/b", "a"], 0)
    assert [str(one.message).partition(" in MLflow")[0] for one in warned] == [
        "'lr/group' is called 'lr-group'",
        "'a' is called 'a-'",
    ]
    with pytest.warns(UserWarning, match="'lr/group' is called 'lr-group'"):
        log(["lr/group", "lr"], 1, logger.run_id)
    assert points(logger, "lr-group") == points(logger, "lr") == [(0, 1.0), (1, 1.0)]
    assert points(logger, "a-") == points(logger, "a/b") == [(0, 1.0)]


def test_artifacts_are_kept_beside_the_run(tmp_path: Path) -> None:
    logger = MLFlowLogger(save_dir=tmp_path)
    logger.experiment.log_text(logger.run_id, "hello", "note.txt")
    assert Path(logger.log_dir or "", "artifacts", "note.txt").read_text(encoding="utf-8") == "hello"
    elsewhere = (tmp_path / "elsewhere").as_uri()
    with pytest.warns(UserWarning, match=r"keeps artifacts in .*, not in artifact_location='file:"):
        _ = MLFlowLogger(save_dir=tmp_path, artifact_location=elsewhere).experiment
    other = MLFlowLogger("other", save_dir=tmp_path, artifact_location=elsewhere)
    assert other.log_dir == str(tmp_path / "elsewhere" / other.run_id)


def files_of(logger: MLFlowLogger) -> list[str]:
    """All artifacts, as MLflow lists them."""
    client, found, folders = MlflowClient(logger.tracking_uri), [], [""]
    while folders:
        for entry in client.list_artifacts(logger.run_id, folders.pop()):
            (folders if entry.is_dir else found).append(entry.path)
    return sorted(found)


@pytest.mark.parametrize("log_model", [True, "all"])
def test_checkpoints_become_artifacts_and_tags_tell_the_best_and_the_last(tmp_path: Path, log_model: Any) -> None:
    logger = MLFlowLogger(save_dir=tmp_path / "runs", log_model=log_model)
    callback = ModelCheckpoint(
        tmp_path / "saved", "of/{epoch}", "loss", save_on_train_epoch_end=True, save_top_k=2, save_last=True
    )
    trainer = RecordingTrainer(str(tmp_path), callbacks=[callback], loggers=[logger])
    trainer.begin()
    for epoch, loss in enumerate((3.0, 1.0, 2.0)):
        trainer.train_batch()
        trainer.end_epoch(loss=loss)
        tags = {} if log_model is True else client_of(tmp_path / "runs").get_run(logger.run_id).data.tags
        assert tags.get("last_checkpoint") == (None if log_model is True else f"of/epoch={epoch}/epoch={epoch}.ckpt")
    random_state = random.getstate()
    logger.finalize("success")
    assert random.getstate() == random_state
    kept = [1, 2] if log_model is True else [0, 1, 2]
    expected = [f"of/epoch={idx}/{name}" for idx in kept for name in (f"epoch={idx}.ckpt", "metadata.yaml")]
    assert files_of(logger) == expected
    run = client_of(tmp_path / "runs").get_run(logger.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.tags["best_checkpoint"] == "of/epoch=1/epoch=1.ckpt"
    assert run.data.tags["last_checkpoint"] == "of/epoch=2/epoch=2.ckpt"
    folder, _, name = run.data.tags["best_checkpoint"].rpartition("/")
    best = Path(client_of(tmp_path / "runs").download_artifacts(logger.run_id, folder, str(tmp_path)))
    assert torch.load(best / name, weights_only=True)["global_step"] == 2
    metadata = (best / "metadata.yaml").read_text(encoding="utf-8")
    assert yaml.safe_load(metadata)["score"] == 1.0


def test_a_checkpoint_that_is_a_folder_becomes_one(tmp_path: Path) -> None:
    class Folders(RecordingTrainer):
        def write(self, path: str) -> None:
            Path(path).mkdir(parents=True)
            Path(path, "0.distcp").write_bytes(b"part")

    logger = MLFlowLogger(save_dir=tmp_path / "runs", log_model=True)
    trainer = Folders(str(tmp_path), callbacks=[ModelCheckpoint(tmp_path / "saved")], loggers=[logger])
    trainer.begin()
    trainer.train_batch()
    trainer.end_epoch()
    logger.finalize("failed")
    assert files_of(logger)[0] == "epoch=0-step=1/epoch=0-step=1.ckpt/0.distcp"
    assert client_of(tmp_path / "runs").get_run(logger.run_id).info.status == "FAILED"


def test_starting_a_run_leaves_random_numbers_alone_and_names_runs_of_one_seed_apart(tmp_path: Path) -> None:
    names = []
    for _ in range(2):
        random.seed(3)
        state = random.getstate()
        logger = MLFlowLogger(save_dir=tmp_path)
        names.append(logger.experiment.get_run(logger.run_id).info.run_name)
        assert random.getstate() == state
    assert names[0] != names[1]


def test_a_logger_can_be_pickled_before_and_after_its_first_use(tmp_path: Path) -> None:
    logger = pickle.loads(pickle.dumps(MLFlowLogger(save_dir=tmp_path)))
    logger.log_metrics({"loss": 1.0}, 1)
    logger.save()
    copied = copy.deepcopy(logger)
    copied.log_metrics({"loss": 2.0}, 2)
    copied.save()
    assert copied.run_id == logger.run_id and points(logger, "loss") == [(1, 1.0), (2, 2.0)]


def test_the_environment_names_the_store_unless_the_constructor_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "shared").as_uri())
    assert MLFlowLogger(save_dir=tmp_path / "own").save_dir == str(tmp_path / "shared")
    assert MLFlowLogger(tracking_uri=str(tmp_path / "named")).save_dir == str(tmp_path / "named")
    assert MLFlowLogger(tracking_uri="http://server:5000").save_dir is None


@pytest.mark.skipif(find_spec("sqlalchemy") is not None, reason="sqlalchemy is installed")
def test_a_database_without_sqlalchemy_is_refused_at_once() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"tracking_uri='sqlite:///x.db'\) needs `sqlalchemy`.*pip install"):
        MLFlowLogger(tracking_uri="sqlite:///x.db")


@pytest.mark.skipif(find_spec("sqlalchemy") is None, reason="needs sqlalchemy, which mlflow-skinny leaves out")
def test_a_run_is_kept_in_a_database(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    logger = MLFlowLogger(tracking_uri=uri, artifact_location=str(tmp_path / "artifacts"))
    assert logger.save_dir is None
    logger.log_hyperparams({"lr": 0.1})
    logger.log_metrics({"loss": 1.0}, 4)
    logger.finalize("success")
    again = MLFlowLogger(tracking_uri=uri, run_id=logger.run_id)
    again.log_metrics({"loss": 0.5}, 8)
    again.finalize("success")
    assert points(again, "loss") == [(4, 1.0), (8, 0.5)]
    assert again.log_dir == str(tmp_path / "artifacts" / logger.run_id)

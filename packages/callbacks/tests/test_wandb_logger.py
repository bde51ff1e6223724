from __future__ import annotations

import json
import math
import os
import pickle
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import wandb
from recording_trainer import RecordingTrainer
from torch import nn
from wandb_file import WandbRun, finished, wandb_files

from camshaft.callbacks.arguments import InvalidArgumentError
from camshaft.callbacks.checkpoints.model_checkpoint import ModelCheckpoint
from camshaft.callbacks.loggers.wandb_logger import WandbLogger
from camshaft.hooks_core.protocols import Logger


@pytest.fixture(autouse=True)
def _quiet_and_finished(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("WANDB_MODE", "WANDB_PROJECT", "WANDB_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_SILENT", "true")
    yield
    while wandb.run is not None:
        wandb.run.finish()


def offline(folder: Path, **arguments: Any) -> WandbLogger:
    return WandbLogger(save_dir=folder, offline=True, **arguments)


def read(folder: Path) -> WandbRun:
    (path,) = wandb_files(folder)
    return finished(path)


def test_is_a_logger_and_makes_nothing_before_it_writes(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    logger: Logger = offline(folder)
    assert (logger.name, logger.save_dir) == ("camshaft_logs", str(folder))
    assert logger.log_dir == str(folder / "camshaft_logs" / str(logger.version))
    logger.log_metrics({}, step=0)
    logger.save()
    logger.finalize("success")
    logger.finalize("failed")
    assert wandb.run is None and not folder.exists()


def test_a_run_is_read_back_whatever_was_logged(tmp_path: Path) -> None:
    logger = offline(tmp_path, name="first", project="mine", version="abc", prefix="fold1", tags=["x"])
    logger.log_hyperparams({"lr": 0.1, "net": {"depth": 2, "act": nn.ReLU}, "path": Path("x")})
    logger.log_hyperparams({"lr": 0.2})
    value = torch.tensor(0.5)
    for step, number in ((0, value), (4, 2), (8, math.nan), (12, math.inf)):
        logger.log_metrics({"loss": number}, step)  # type: ignore[dict-item]
    value.fill_(9.0)
    logger.log_metrics({"loss": 7.0})  # belongs to the newest step
    logger.log_image("picture", [torch.rand(3, 4, 4), torch.rand(3, 4, 4)], step=16, caption=["a", "b"])
    logger.log_text("words", columns=["text"], data=[["hello"]])
    with pytest.raises(InvalidArgumentError, match=r"`metrics\['name'\]` must be a number, but got 'x'"):
        logger.log_metrics({"name": "x"})  # type: ignore[dict-item]
    with pytest.raises(InvalidArgumentError, match="`caption` must be a list of 1, one for each image"):
        logger.log_image("picture", [torch.rand(3, 4, 4)], caption=["a", "b"])
    with pytest.raises(InvalidArgumentError, match="`images` must be a list of images"):
        logger.log_image("picture", torch.rand(3, 4, 4))  # type: ignore[arg-type]
    assert (logger.name, logger.version) == ("mine", "abc")
    assert logger.experiment.settings.mode == "offline" and list(logger.experiment.tags or ()) == ["x"]
    logger.finalize("success")
    logger.log_metrics({"test_loss": 1.0}, 20)  # the run is still open
    logger.experiment.finish()
    run = read(tmp_path)
    assert (run.id, run.project, run.name, run.exit_code) == ("abc", "mine", "first", 0)
    assert run.config == {"lr": 0.2, "net": {"depth": 2, "act": "torch.nn.modules.activation.ReLU"}, "path": "x"}
    assert run.step_metrics.pop("trainer/global_step") == ("", False)
    assert run.step_metrics.pop("*") == ("trainer/global_step", True)
    assert set(run.step_metrics.values()) <= {("trainer/global_step", True)}  # some versions write each name's out
    found = run.points("fold1-loss")
    assert [step for step, _ in found] == [0, 4, 8, 12, 12]
    assert [float(number) for _, number in found][:2] == [0.5, 2.0] and math.isnan(float(found[2][1]))
    assert math.isinf(float(found[3][1])) and found[4][1] == 7.0
    ((step, picture),) = run.points("fold1-picture")
    assert (step, picture["count"], picture["captions"]) == (16, 2, ["a", "b"])
    assert [table["_type"] for _, table in run.points("fold1-words")] == ["table-file"]
    assert run.points("fold1-test_loss") == [(20, 1.0)]


def save_checkpoints(folder: Path, logger: WandbLogger, **arguments: Any) -> RecordingTrainer:
    callback = ModelCheckpoint(folder / "saved", monitor="loss", save_on_train_epoch_end=True, **arguments)
    trainer = RecordingTrainer(str(folder), callbacks=[callback], loggers=[logger])
    trainer.begin()
    for loss in (3.0, 1.0, 2.0):
        trainer.train_batch()
        trainer.end_epoch(loss=loss)
    return trainer


@pytest.fixture
def _own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_DATA_DIR", "WANDB_CACHE_DIR"):  # where W&B keeps copies of what is to be uploaded
        monkeypatch.setenv(name, str(tmp_path / name.lower()))


@pytest.mark.usefixtures("_own_data")
@pytest.mark.parametrize("status", ["success", "failed"])
def test_checkpoints_that_are_kept_are_logged_at_the_end(tmp_path: Path, status: str) -> None:
    logger = offline(tmp_path, log_model=True, version="abc")
    trainer = save_checkpoints(tmp_path, logger, save_top_k=2)
    assert not wandb_files(tmp_path)
    random_state = random.getstate()
    logger.finalize(status)
    assert random.getstate() == random_state
    logger.finalize("success")  # of a test that follows
    if status == "success":
        logger.experiment.finish()
    first, second = read(tmp_path).artifacts
    assert {(one.type, one.name) for one in (first, second)} == {("model", "model-abc")}
    assert (set(first.aliases), set(second.aliases)) == ({"latest", "best"}, {"latest"})
    assert json.loads(first.metadata)["score"] == 1.0 and json.loads(second.metadata)["score"] == 2.0
    (file,) = first.manifest.contents
    assert file.path == "model.ckpt"
    best = Path(trainer.callbacks[0].best_model_path)
    assert Path(file.local_path) != best and Path(file.local_path).read_bytes() == best.read_bytes()


@pytest.mark.usefixtures("_own_data")
def test_all_checkpoints_are_logged_before_they_are_removed(tmp_path: Path) -> None:
    logger = offline(tmp_path, log_model="all", checkpoint_name="mine")
    trainer = save_checkpoints(tmp_path, logger, save_last=True)
    logger.finalize("success")
    logger.experiment.finish()
    artifacts = read(tmp_path).artifacts
    assert [set(one.aliases) for one in artifacts] == [{"latest", "best", "last"}] * 2 + [{"latest", "last"}]
    assert {one.name for one in artifacts} == {"mine"}
    copies = [torch.load(one.manifest.contents[0].local_path, weights_only=True) for one in artifacts]
    assert [copy["global_step"] for copy in copies] == [1, 2, 3]
    assert json.loads(artifacts[0].metadata)["original_filename"] == "epoch=0-step=1.ckpt"
    assert not Path(trainer.saved[0][0]).exists()


@pytest.mark.usefixtures("_own_data")
def test_a_checkpoint_that_is_a_folder_is_logged_as_one_and_may_stay_where_it_is(tmp_path: Path) -> None:
    class Folders(RecordingTrainer):
        def write(self, path: str) -> None:
            Path(path).mkdir(parents=True)
            Path(path, "0.distcp").write_bytes(b"part")

    logger = offline(tmp_path, log_model="all", add_file_policy="immutable")
    callback = ModelCheckpoint(tmp_path / "saved", every_n_train_steps=1, save_top_k=-1)
    trainer = Folders(str(tmp_path), callbacks=[callback], loggers=[logger])
    trainer.begin()
    trainer.train_batch()
    trainer.save_point()
    logger.experiment.finish()
    (artifact,) = read(tmp_path).artifacts
    (file,) = artifact.manifest.contents
    assert (file.path, file.local_path) == ("model.ckpt/0.distcp", f"{callback.saved_path}{os.sep}0.distcp")


def test_an_artifact_of_the_server_cannot_be_used_offline(tmp_path: Path) -> None:
    logger = offline(tmp_path)
    with pytest.raises(TypeError, match="Cannot use artifact when in offline mode"):
        logger.use_artifact("model-abc:best")
    with pytest.raises(TypeError, match="Cannot use artifact when in offline mode"):
        WandbLogger.download_artifact("model-abc:best", tmp_path)


def test_an_artifact_is_downloaded_to_the_folder_and_noted_by_the_run_if_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact, asked = wandb.Artifact("model-abc", "model"), []

    def find(by: str, name: str, type: str | None) -> wandb.Artifact:
        asked.append((by, name, type))
        return artifact

    class Server:
        artifact = staticmethod(partial(find, "server"))

    monkeypatch.setattr(wandb, "Api", Server)
    monkeypatch.setattr(wandb.Artifact, "download", lambda artifact, root: root or "chosen by W&B")
    monkeypatch.setattr(wandb.Run, "use_artifact", lambda run, name, type: find("run", name, type))
    assert WandbLogger.download_artifact("model-abc:best") == "chosen by W&B"
    logger = offline(tmp_path)
    assert logger.use_artifact("data:v1", "dataset") is artifact
    assert WandbLogger.download_artifact("model-abc:v0", tmp_path, "model") == str(tmp_path)
    assert WandbLogger.download_artifact("model-abc:v0", use_artifact=False) == "chosen by W&B"
    assert asked == [
        ("server", "model-abc:best", None),
        ("run", "data:v1", "dataset"),
        ("run", "model-abc:v0", "model"),
        ("server", "model-abc:v0", None),
    ]


def test_a_failure_ends_the_run_and_what_comes_after_it_continues_it(tmp_path: Path) -> None:
    logger = offline(tmp_path)
    logger.log_metrics({"loss": 1.0}, 3)
    logger.finalize("failed")
    assert wandb.run is None and read(tmp_path).exit_code == 1
    first, version = wandb_files(tmp_path), logger.version
    logger.log_metrics({"loss": 0.5}, 4)
    logger.experiment.finish()
    (second,) = set(wandb_files(tmp_path)) - set(first)
    assert finished(second).points("loss") == [(4, 0.5)]
    assert finished(second).id == finished(first[0]).id == version


def test_two_loggers_have_a_run_each_and_a_run_of_the_script_is_used(tmp_path: Path) -> None:
    first, second = offline(tmp_path / "1"), offline(tmp_path / "2", project="other")
    for step, logger in enumerate((first, second)):
        logger.log_metrics({"loss": float(step)}, step)
    assert first.version != second.version
    for logger in (first, second):
        logger.experiment.finish()
    assert read(tmp_path / "1").points("loss") == [(0, 0.0)] and read(tmp_path / "2").points("loss") == [(1, 1.0)]
    script = wandb.init(mode="offline", dir=tmp_path, project="script")
    adopted, named = offline(tmp_path / "3"), offline(tmp_path / "4", version="named")
    assert (adopted.version, adopted.name, named.version) == (script.id, "script", "named")
    adopted.log_metrics({"loss": 2.0}, 2)
    assert adopted.experiment is script and named.experiment is not script
    adopted.finalize("failed")
    given = WandbLogger(experiment=script)
    given.log_metrics({"loss": 3.0}, 3)  # the script ends its run itself
    named.experiment.finish()
    script.finish()
    assert adopted.experiment is script, "it does not begin a run of its own unnoticed"
    assert read(tmp_path).points("loss") == [(2, 2.0), (3, 3.0)] and not (tmp_path / "3").exists()


def test_gradients_that_are_watched_have_the_updates_as_their_axis(tmp_path: Path) -> None:
    logger, model = offline(tmp_path), nn.Linear(2, 1)
    logger.watch(model, log="gradients", log_freq=2)
    for step in range(6):
        model(torch.ones(4, 2)).sum().backward()
        logger.log_metrics({"loss": 1.0}, step)
    logger.experiment.finish()
    found = read(tmp_path).points("gradients/weight")
    assert len(found) >= 2 and all(histogram["_type"] == "histogram" for _, histogram in found)
    assert len({step for step, _ in found}) == len(found) and all(step in range(6) for step, _ in found)


def test_starting_a_run_leaves_random_numbers_alone(tmp_path: Path) -> None:
    states = random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    offline(tmp_path).log_metrics({"loss": 1.0}, 0)
    assert states == (random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist())


def test_a_logger_can_be_pickled_before_its_first_use(tmp_path: Path) -> None:
    logger = pickle.loads(pickle.dumps(offline(tmp_path, version="abc")))
    logger.log_metrics({"loss": 1.0}, 1)
    logger.experiment.finish()
    assert read(tmp_path).id == "abc" and read(tmp_path).points("loss") == [(1, 1.0)]


def test_the_environment_names_the_project_unless_the_constructor_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_PROJECT", "from-outside")
    assert (WandbLogger().name, WandbLogger(project="mine").name) == ("from-outside", "mine")
    assert WandbLogger(dir="x", id="y").log_dir == os.path.join("x", "from-outside", "y")


def test_contradicting_and_unknown_arguments_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="`id` must be left out, or the same as version='a', but got 'b'"):
        WandbLogger(version="a", id="b")
    with pytest.raises(InvalidArgumentError, match=r"`mode` must be left out.*but got 'online'"):
        WandbLogger(offline=True, mode="online")
    with pytest.raises(InvalidArgumentError, match="`add_file_policy` must be 'mutable' or 'immutable'"):
        WandbLogger(add_file_policy="linked")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"`kwargs` must be further arguments of `init` .*entity.*\['log_mode'\]"):
        WandbLogger(log_mode=True)

"""Loggers of tracking libraries under the real trainer, read back with the libraries' own readers."""

from __future__ import annotations

import csv
import json
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import wandb
from launching import run_ranks
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn
from trainer_parts import (
    NO_VALIDATION,
    ListLogger,
    Regression,
    assert_same,
    files_below,
    loader,
    quiet_trainer,
    weights,
)
from wandb.proto import wandb_internal_pb2

from camshaft.callbacks import (
    CSVLogger,
    DeviceStatsMonitor,
    LearningRateMonitor,
    MLFlowLogger,
    ModelCheckpoint,
    TensorBoardLogger,
    WandbLogger,
)
from camshaft.trainer import seed_everything

pytestmark = pytest.mark.filterwarnings(NO_VALIDATION)

Points = list[tuple[int, float]]


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("WANDB_MODE", "WANDB_PROJECT", "WANDB_DIR", "MLFLOW_TRACKING_URI", "MLFLOW_ALLOW_FILE_STORE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    yield
    while wandb.run is not None:
        wandb.run.finish()


def all_loggers(root: Path, version: int | None = None, run_id: str | None = None) -> list[Any]:
    return [
        CSVLogger(root / "csv", version=version),
        TensorBoardLogger(root / "tb", version=version, default_hp_metric=False),
        MLFlowLogger(save_dir=root / "ml", run_id=run_id),
        WandbLogger(save_dir=root / "wb", offline=True, version="abc"),
    ]


def events(logger: TensorBoardLogger) -> EventAccumulator:
    return EventAccumulator(logger.log_dir, {"scalars": 0, "histograms": 0}).Reload()


def wandb_records(folder: Path) -> Iterator[Any]:
    """Records of runs that were finished; each file is smaller than a block, so that records are whole."""
    for path in sorted(folder.glob("wandb/offline-run-*/run-*.wandb")):
        deadline, found = time.monotonic() + 60, list[Any]()
        while not found or found[-1].WhichOneof("record_type") not in ("exit", "final", "footer"):
            assert time.monotonic() < deadline, f"{path} was never finished"
            time.sleep(0.05)
            found = list(_whole_records(path.read_bytes()))
        yield from found


def _whole_records(content: bytes) -> Iterator[Any]:
    assert content[:4] == b":W&B" and len(content) < 32768
    position = 7
    while position + 7 <= len(content):
        _, length, kind = struct.unpack("<IHB", content[position : position + 7])
        assert kind == 1
        record = wandb_internal_pb2.Record()
        record.ParseFromString(content[position + 7 : position + 7 + length])
        yield record
        position += 7 + length


def read_all(loggers: list[Any]) -> list[dict[str, Points]]:
    """What each of the four has on disk: points by the metric's name."""
    of_csv, of_tb, of_mlflow, of_wandb = loggers
    found: list[dict[str, Points]] = [{}, {}, {}, {}]
    with open(os.path.join(of_csv.log_dir, "metrics.csv"), newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            step = int(row.pop("step"))
            for name, cell in row.items():
                if cell:
                    found[0].setdefault(name, []).append((step, float(cell)))
    scalars = events(of_tb)
    found[1] = {name: [(each.step, each.value) for each in scalars.Scalars(name)] for name in scalars.Tags()["scalars"]}
    run = of_mlflow.experiment.get_run(of_mlflow.run_id)
    for name in run.data.metrics:
        history = of_mlflow.experiment.get_metric_history(of_mlflow.run_id, name)
        found[2][name] = [(each.step, each.value) for each in history]
    for record in wandb_records(Path(of_wandb.save_dir)):
        if record.WhichOneof("record_type") == "history":
            values = {"/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            step = values.pop("trainer/global_step")
            for name, value in values.items():
                if not name.startswith("_"):
                    found[3].setdefault(name, []).append((step, value))
    return found


def assert_agree(found: list[dict[str, Points]]) -> None:
    first = found[0]
    for other in found[1:]:
        assert other.keys() == first.keys()
        for name, points in first.items():
            assert [step for step, _ in other[name]] == [step for step, _ in points], name
            expected = pytest.approx([value for _, value in points], rel=1e-6)
            assert [value for _, value in other[name]] == expected, name


class Logging(Regression):
    """Logs steps and epochs, of training and validation."""

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        return loss


def test_a_trainer_that_never_runs_and_a_trial_leave_nothing(tmp_path: Path) -> None:
    trainer = quiet_trainer(tmp_path, logger=all_loggers(tmp_path), fast_dev_run=True)
    assert list(tmp_path.iterdir()) == []
    trainer.fit(Logging(), loader())
    assert files_below(tmp_path) == [] and wandb.run is None


@pytest.mark.exhaustive
def test_step_axes_agree_under_accumulation_and_the_run_is_the_same_as_without_loggers(tmp_path: Path) -> None:
    results = []
    for logger in (False, all_loggers(tmp_path)):
        seed_everything(5)
        module = Logging(dropout=0.3)
        trainer = quiet_trainer(tmp_path, logger=logger, max_epochs=2, accumulate_grad_batches=4, log_every_n_steps=1)
        trainer.fit(module, loader(8, shuffle=True), loader(2))
        results.append(weights(module))
    loggers = trainer.loggers
    trainer.test(module, loader(1), verbose=False)
    loggers[3].experiment.finish()
    assert_same(results[1], results[0])
    found = read_all(loggers)
    assert_agree(found)
    assert [step for step, _ in found[0]["train_loss_step"]] == [0, 1, 2, 3]
    assert [step for step, _ in found[0]["train_loss_epoch"]] == [1, 3]
    assert [step for step, _ in found[0]["val_loss"]] == [1, 3], "nothing of the sanity check"
    assert [step for step, _ in found[0]["test_loss"]] == [4]
    assert trainer.log_dir == loggers[0].log_dir
    hparams = json.loads(Path(loggers[1].log_dir, "hparams.json").read_text(encoding="utf-8"))
    run = loggers[2].experiment.get_run(loggers[2].run_id)
    (config,) = (each.run.config for each in wandb_records(tmp_path / "wb") if each.WhichOneof("record_type") == "run")
    updates = [each.config for each in wandb_records(tmp_path / "wb") if each.WhichOneof("record_type") == "config"]
    sent = {item.key: json.loads(item.value_json) for each in (config, *updates) for item in each.update}
    assert hparams == {"learning_rate": 0.1, "dropout": 0.3}
    assert run.data.params == {"learning_rate": "0.1", "dropout": "0.3"} and run.info.status == "FINISHED"
    assert {name: sent[name] for name in hparams} == hparams


def test_a_resumed_run_appends_with_the_right_steps(tmp_path: Path) -> None:
    def fit(loggers: list[Any], max_epochs: int, **arguments: Any) -> Any:
        seed_everything(5)
        trainer = quiet_trainer(tmp_path, logger=loggers, max_epochs=max_epochs, log_every_n_steps=1)
        trainer.fit(Logging(), loader(8), **arguments)
        return trainer

    whole = all_loggers(tmp_path / "whole")
    fit(whole, 2)
    whole[3].experiment.finish()
    first = all_loggers(tmp_path / "parts")
    trainer = fit(first, 1)
    trainer.save_checkpoint(tmp_path / "one.ckpt")
    first[3].experiment.finish()
    second = all_loggers(tmp_path / "parts", version=0, run_id=first[2].run_id)
    fit(second, 2, ckpt_path=tmp_path / "one.ckpt")
    second[3].experiment.finish()
    expected, found = read_all(whole), read_all(second)
    assert_agree(expected)
    assert found == expected and len(found[0]["train_loss_step"]) == 16
    assert events(second[1]).Tags().keys() == events(whole[1]).Tags().keys()


@pytest.mark.filterwarnings("ignore:There is no checkpoint to resume from yet")
@pytest.mark.new_feature("callbacks")
@pytest.mark.parametrize("fails_at", [2, 6, 8])  # before the first checkpoint, inside an epoch, at its end
def test_a_run_that_failed_and_resumes_logs_each_row_once(tmp_path: Path, fails_at: int) -> None:
    class Failing(Logging):
        def on_train_batch_end(self, *args: Any) -> None:
            if self.trainer.global_step == fails_at:
                raise RuntimeError("out of luck")

    def fit(module_class: Any, name: str) -> str:
        seed_everything(5)
        module = module_class()
        saving = ModelCheckpoint(tmp_path / name, save_last=True)
        arguments = {"logger": CSVLogger(tmp_path, name, "logs"), "callbacks": [saving], "enable_checkpointing": True}
        trainer = quiet_trainer(tmp_path, max_epochs=3, log_every_n_steps=1, **arguments)
        trainer.fit(module, loader(4), loader(2), ckpt_path="last")
        return (tmp_path / name / "logs" / "metrics.csv").read_text()

    whole = fit(Logging, "whole")
    with pytest.raises(RuntimeError, match="out of luck"):
        fit(Failing, "resumed")
    assert fit(Logging, "resumed") == whole


def test_a_failed_fit_is_told_to_all(tmp_path: Path) -> None:
    class Failing(Logging):
        def on_train_epoch_end(self) -> None:
            raise RuntimeError("out of luck")

    loggers = all_loggers(tmp_path)
    with pytest.raises(RuntimeError, match="out of luck"):
        quiet_trainer(tmp_path, logger=loggers, log_every_n_steps=1).fit(Failing(), loader())
    assert_agree(read_all(loggers))
    assert loggers[2].experiment.get_run(loggers[2].run_id).info.status == "FAILED"
    codes = [each.exit.exit_code for each in wandb_records(tmp_path / "wb") if each.WhichOneof("record_type") == "exit"]
    assert codes == [1]


@pytest.mark.parametrize("idx", [1, 2, 3])
def test_checkpoints_go_where_the_first_logger_writes(tmp_path: Path, idx: int) -> None:
    logger = all_loggers(tmp_path)[idx]
    trainer = quiet_trainer(tmp_path / "root", logger=logger, callbacks=ModelCheckpoint(), enable_checkpointing=True)
    trainer.fit(Logging(), loader())
    assert trainer.log_dir == logger.log_dir
    assert Path(logger.log_dir, "checkpoints", os.path.basename(trainer.checkpoint_callback.best_model_path)).exists()
    assert not (tmp_path / "root").exists()


class FirstRecipe(Regression):
    """As the documentation of the oldest hooks has it."""

    def on_after_backward(self):
        # example to inspect gradient information in tensorboard
        if self.trainer.global_step % 25 == 0:  # don't make the tf file huge
            params = self.state_dict()
            for k, v in params.items():
                grads = v
                name = k
                self.logger.experiment.add_histogram(tag=name, values=grads, global_step=self.trainer.global_step)


class LatestRecipe(Regression):
    """As the documentation of the newest hooks has it."""

    def on_before_optimizer_step(self, optimizer):
        # example to inspect gradient information in tensorboard
        if self.trainer.global_step % 25 == 0:  # don't make the tf file huge
            for k, v in self.named_parameters():
                self.logger.experiment.add_histogram(tag=k, values=v.grad, global_step=self.trainer.global_step)


@pytest.mark.parametrize("recipe", [FirstRecipe, LatestRecipe])
def test_the_recipes_that_write_histograms_run_as_they_were_written(tmp_path: Path, recipe: type[Regression]) -> None:
    logger = TensorBoardLogger(tmp_path)
    others = all_loggers(tmp_path)[2:]
    trainer = quiet_trainer(tmp_path, logger=[logger, *others], max_steps=60, max_epochs=-1, accumulate_grad_batches=2)
    trainer.fit(recipe(), loader(8))
    found = events(logger)
    assert found.Tags()["histograms"] == ["layer.weight", "layer.bias"]
    steps = [each.step for each in found.Histograms("layer.weight")]
    # after each backward, of which two make an update; before each update
    assert steps == ([0, 0, 25, 25, 50, 50] if recipe is FirstRecipe else [0, 25, 50])
    assert all(each.histogram_value.num == 3 for each in found.Histograms("layer.weight"))


@pytest.mark.filterwarnings("ignore:.*jit.*:DeprecationWarning")
def test_a_module_writes_its_graph(tmp_path: Path) -> None:
    class Drawn(Regression):
        def on_fit_start(self) -> None:
            self.logger.log_graph(self, torch.ones(1, 3))

    logger = TensorBoardLogger(tmp_path)
    quiet_trainer(tmp_path, logger=logger).fit(Drawn(), loader())
    assert any("layer" in node.name for node in events(logger).Graph().node)


@pytest.mark.filterwarnings("ignore:.*jit.*:DeprecationWarning")
def test_the_graph_of_a_module_without_a_trainer_is_written(tmp_path: Path) -> None:
    logger, module = TensorBoardLogger(tmp_path), nn.Sequential(Regression())
    whole = Regression()
    whole.part = Regression()
    for each in (module, whole):
        logger.log_graph(each, torch.ones(1, 3))
    logger.save()
    assert any("layer" in node.name for node in events(logger).Graph().node)
    for each in (whole, whole.part):
        with pytest.raises(RuntimeError, match="`trainer` must be attached"):
            each.trainer  # noqa: B018


@pytest.mark.filterwarnings("ignore:.*jit.*:DeprecationWarning")
def test_a_logger_that_is_to_write_the_graph_is_told_the_module(tmp_path: Path) -> None:
    class WithExample(Regression):
        example_input_array = torch.ones(1, 3)

    logger = TensorBoardLogger(tmp_path, log_graph=True)
    quiet_trainer(tmp_path, logger=logger).fit(WithExample(), loader())
    assert any("layer" in node.name for node in events(logger).Graph().node)


class KeywordsOnly(ListLogger):
    """As Lightning's loggers may be written, which are called by keyword."""

    drawn: Any = None

    def log_metrics(self, *, metrics: dict[str, float], step: int | None = None) -> None:  # type: ignore[override]
        super().log_metrics(metrics, step)

    def log_graph(self, model: Any, input_array: Any = None) -> None:
        self.drawn = model


class OtherNames(ListLogger):
    """As loggers of 0.5 were written."""

    def log_metrics(self, values: dict[str, float], step_num: int) -> None:  # type: ignore[override]
        super().log_metrics(values, step_num)


def test_loggers_are_called_by_keyword_and_those_with_other_names_by_position(tmp_path: Path) -> None:
    keywords, names, plain = loggers = KeywordsOnly(), OtherNames(), ListLogger()
    module = Logging()
    quiet_trainer(tmp_path, logger=list(loggers), log_every_n_steps=1).fit(module, loader(), loader(2))
    assert keywords.rows == names.rows == plain.rows and len(plain.rows) > 4
    assert keywords.drawn is module


def test_callbacks_call_loggers_by_keyword(tmp_path: Path) -> None:
    class Scheduled(Logging):
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

    logger = KeywordsOnly()
    callbacks = [LearningRateMonitor(), DeviceStatsMonitor(cpu_stats=True)]
    trainer = quiet_trainer(tmp_path, logger=logger, log_every_n_steps=1, callbacks=callbacks)
    trainer.fit(Scheduled(), loader(), loader(2))
    assert any("lr-SGD" in row for _, row in logger.rows)
    assert any(name.startswith("DeviceStatsMonitor") for _, row in logger.rows for name in row)


@pytest.mark.processes
def test_of_two_processes_the_first_one_writes_and_both_know_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WANDB_SERVICE", raising=False)  # W&B's process of this test, which ends after theirs
    outcome = run_ranks(Path(__file__).with_name("logger_scenes.py"), 2, args=[tmp_path])
    first, second = outcome.succeeded().named
    assert first == second
    (_, run_id, log_dir), *others = first["facts"]
    assert first["log_dir"] == log_dir and Path(log_dir, "checkpoints").is_dir()
    assert first["dumps"] == str(Path(log_dir, "nccl_trace_")) and first["dumps_later"] is None
    client = MLFlowLogger(save_dir=tmp_path / "ml", run_id=run_id).experiment
    (experiment,) = (each for each in client.search_experiments() if each.name == "camshaft_logs")
    assert [run.info.run_id for run in client.search_runs([experiment.experiment_id])] == [run_id]
    expected = [0, 1, 2, 3]
    assert [each.step for each in client.get_metric_history(run_id, "train_loss")] == expected
    version = TensorBoardLogger(tmp_path / "tb", version=0)
    assert [each.step for each in events(version).Scalars("train_loss")] == expected
    assert len(list((tmp_path / "tb" / "camshaft_logs").iterdir())) == 1
    rows = [each for each in wandb_records(tmp_path / "wb") if each.WhichOneof("record_type") == "history"]
    assert len(rows) == 4 and len(list((tmp_path / "wb" / "wandb").glob("offline-run-*"))) == 1
    assert [facts[1] for facts in others][::2] == [0, 0]

from __future__ import annotations

import copy
import json
import math
import os
import pickle
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard import context
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.plugins import base_plugin
from tensorboard.plugins.hparams import api_pb2, backend_context, get_experiment, list_session_groups
from torch import Tensor, nn

from camshaft.callbacks.arguments import InvalidArgumentError
from camshaft.callbacks.loggers.tensorboard_logger import TensorBoardLogger
from camshaft.hooks_core.protocols import Logger


def read(logger: TensorBoardLogger) -> EventAccumulator:
    return EventAccumulator(logger.log_dir, {"tensors": 0, "scalars": 0, "histograms": 0, "images": 0}).Reload()


def points(logger: TensorBoardLogger, name: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in read(logger).Scalars(name)]


def hparams_tab(root: Path) -> tuple[list[str], dict[str, dict[str, Any]], dict[str, dict[str, float]], dict[str, int]]:
    """Columns of metrics, and by run its hyperparameters, metrics and status: what TensorBoard's own plugin answers."""
    multiplexer = EventMultiplexer().AddRunsFromDirectory(str(root)).Reload()
    provider = MultiplexerDataProvider(multiplexer, str(root))
    plugin = backend_context.Context(base_plugin.TBContext(data_provider=provider, multiplexer=multiplexer))
    asked = context.RequestContext()
    experiment = get_experiment.Handler(asked, plugin, "", api_pb2.GetExperimentRequest(include_metrics=True)).run()
    metrics = [info.name.tag for info in experiment.metric_infos]
    request = api_pb2.ListSessionGroupsRequest(
        start_index=0,
        slice_size=100,
        allowed_statuses=list(api_pb2.Status.values()),
        col_params=[{"metric": info.name} for info in experiment.metric_infos],
        include_metrics=True,
    )
    groups = list_session_groups.Handler(asked, plugin, "", request).run().session_groups
    hparams, values, statuses = {}, {}, {}
    for group in groups:
        (session,) = group.sessions
        run = session.name.rpartition("/")[2]
        hparams[run] = {name: getattr(value, value.WhichOneof("kind")) for name, value in group.hparams.items()}
        values[run] = {each.name.tag: each.value for each in group.metric_values}
        statuses[run] = session.status
    return sorted(metrics), hparams, values, statuses


def test_is_a_logger_and_makes_nothing_before_it_writes(tmp_path: Path) -> None:
    logger: Logger = TensorBoardLogger(tmp_path)
    assert os.listdir(tmp_path) == []
    assert (logger.name, logger.version, logger.save_dir) == ("camshaft_logs", 0, str(tmp_path))
    assert logger.log_dir == str(tmp_path / "camshaft_logs" / "version_0")
    logger.log_metrics({}, step=0)
    logger.save()
    logger.finalize("success")
    assert os.listdir(tmp_path) == []
    logger.log_metrics({"loss": 1.0}, step=0)
    assert len(os.listdir(str(logger.log_dir))) == 1
    assert (logger.version, TensorBoardLogger(tmp_path).version) == (0, 1)


def test_scalars_are_read_back_whatever_they_are(tmp_path: Path) -> None:
    logger = TensorBoardLogger(tmp_path, name=None, version="mine", prefix="fold1")
    value = torch.tensor(0.5)
    for step, number in ((0, value), (4, 2), (8, math.nan), (12, math.inf), (16, -math.inf)):
        logger.log_metrics({"loss": number}, step)  # type: ignore[dict-item]
    value.fill_(9.0)
    logger.log_metrics({"loss": 7.0})  # belongs to the newest step
    logger.save()
    assert Path(logger.log_dir) == tmp_path / "mine"
    found = points(logger, "fold1-loss")
    assert [step for step, _ in found] == [0, 4, 8, 12, 16, 16]
    assert str([number for _, number in found]) == "[0.5, 2.0, nan, inf, -inf, 7.0]"
    with pytest.raises(InvalidArgumentError, match=r"`metrics\['name'\]` must be a number, but got 'x'"):
        logger.log_metrics({"name": "x"})  # type: ignore[dict-item]


def test_a_version_is_continued_with_the_steps_that_it_had(tmp_path: Path) -> None:
    first = TensorBoardLogger(tmp_path, version=3)
    first.log_hyperparams({"lr": 0.1})
    for step in range(4):
        first.log_metrics({"loss": step / 2, "hp_metric": 5.0}, step)
    first.finalize("failed")
    first.log_metrics({"loss": 2.0}, 4)  # after it was closed
    first.finalize("failed")
    again = TensorBoardLogger(tmp_path, version=3)
    again.log_hyperparams({"lr": 0.1})
    for step in range(5, 8):
        again.log_metrics({"loss": step / 2}, step)
    again.finalize("success")
    assert points(again, "loss") == [(step, step / 2) for step in range(8)]
    assert points(again, "hp_metric")[-1] == (3, 5.0), "the placeholder comes once"
    assert hparams_tab(tmp_path)[3] == {"version_3": api_pb2.STATUS_SUCCESS}


def test_purge_step_hides_what_a_crashed_run_wrote_after_its_checkpoint(tmp_path: Path) -> None:
    crashed = TensorBoardLogger(tmp_path, version=0)
    for step in range(6):
        crashed.log_metrics({"loss": 1.0}, step)
    crashed.save()
    resumed = TensorBoardLogger(tmp_path, version=0, purge_step=3)
    for step in range(3, 6):
        resumed.log_metrics({"loss": 2.0}, step)
    resumed.save()
    assert points(resumed, "loss") == [(0, 1.0), (1, 1.0), (2, 1.0), (3, 2.0), (4, 2.0), (5, 2.0)]


class TestHyperparameters:
    def test_the_tab_shows_those_of_all_runs_with_every_metric(self, tmp_path: Path) -> None:
        for lr, extra in ((0.1, {}), (0.2, {"optimizer": Namespace(name="adam", betas=(0.9, 0.99)), "bias": True})):
            logger = TensorBoardLogger(tmp_path, default_hp_metric=False)
            logger.log_hyperparams({"lr": lr})
            logger.log_hyperparams({**extra, "layers": None, "stem": nn.Linear})
            logger.log_metrics({"val_loss": lr * 2}, step=10)
            logger.finalize("success")
        metrics, hparams, values, statuses = hparams_tab(tmp_path)
        stem = {"layers": "None", "stem": "torch.nn.modules.linear.Linear"}
        assert metrics == ["val_loss"]
        assert hparams["version_0"] == {"lr": 0.1, **stem}
        nested = {"optimizer/name": "adam", "optimizer/betas": "[0.9, 0.99]", "bias": True}
        assert hparams["version_1"] == {"lr": 0.2, **nested, **stem}
        assert values["version_1"] == {"val_loss": pytest.approx(0.4)}
        assert set(statuses.values()) == {api_pb2.STATUS_SUCCESS}
        written = json.loads((tmp_path / "camshaft_logs/version_1/hparams.json").read_text(encoding="utf-8"))
        assert written["optimizer"] == {"name": "adam", "betas": [0.9, 0.99]}

    def test_without_metrics_there_is_a_placeholder_unless_it_is_unwanted(self, tmp_path: Path) -> None:
        for default in (True, False):
            logger = TensorBoardLogger(tmp_path, default_hp_metric=default)
            logger.log_hyperparams({"lr": 0.1})
            logger.finalize("failed")
        metrics, _, values, statuses = hparams_tab(tmp_path)
        assert metrics == ["hp_metric"] and values == {"version_0": {"hp_metric": -1.0}, "version_1": {}}
        assert set(statuses.values()) == {api_pb2.STATUS_UNKNOWN}

    def test_metrics_that_come_with_them_are_logged(self, tmp_path: Path) -> None:
        logger = TensorBoardLogger(tmp_path)
        logger.log_hyperparams({"lr": 0.1}, {"best": 3.0}, step=7)
        logger.save()
        assert points(logger, "best") == [(7, 3.0)]
        assert hparams_tab(tmp_path)[0] == ["best"]

    def test_a_change_after_the_first_metrics_warns_and_is_in_the_file(self, tmp_path: Path) -> None:
        logger = TensorBoardLogger(tmp_path)
        logger.log_hyperparams({"lr": 0.1})
        logger.log_metrics({"loss": 1.0}, 0)
        logger.log_hyperparams({"lr": 0.1})
        with pytest.warns(UserWarning, match="HPARAMS tab keeps the first hyperparameters"):
            logger.log_hyperparams({"lr": 0.3})
        assert json.loads(Path(logger.log_dir, "hparams.json").read_text(encoding="utf-8")) == {"lr": 0.3}


def test_what_the_writer_knows_is_there_to_use(tmp_path: Path) -> None:
    logger = TensorBoardLogger(tmp_path, sub_dir="inner", max_queue=3)
    assert logger.experiment.max_queue == 3
    logger.experiment.add_histogram("weight", torch.arange(10.0), global_step=5)
    logger.experiment.add_image("picture", torch.rand(3, 8, 8), global_step=6)
    logger.save()
    found = read(logger)
    assert logger.log_dir.endswith(os.path.join("version_0", "inner"))
    (histogram,) = found.Histograms("weight")
    assert (histogram.step, histogram.histogram_value.num, histogram.histogram_value.sum) == (5, 10, 45)
    assert [(image.step, image.width) for image in found.Images("picture")] == [(6, 8)]


@pytest.mark.filterwarnings("ignore:.*jit.*:DeprecationWarning")
def test_the_graph_of_a_model_is_written(tmp_path: Path) -> None:
    logger, model = TensorBoardLogger(tmp_path), nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    with pytest.raises(InvalidArgumentError, match="`input_array` must be a tensor or a tuple of inputs"):
        logger.log_graph(model)
    model.example_input_array = torch.rand(1, 3)
    logger.log_graph(model)
    logger.save()
    assert any("ReLU" in node.name for node in read(logger).Graph().node)


def test_a_logger_can_be_pickled_before_and_after_its_first_use(tmp_path: Path) -> None:
    logger = pickle.loads(pickle.dumps(TensorBoardLogger(tmp_path, prefix="a")))
    logger.log_metrics({"loss": 1.0}, 1)
    logger.save()
    copied = copy.deepcopy(logger)
    copied.log_metrics({"loss": 2.0}, 2)
    copied.save()
    assert points(logger, "a-loss") == [(1, 1.0), (2, 2.0)]


def test_an_argument_that_the_writer_does_not_take_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"`kwargs` must be further arguments of `SummaryWriter` .*flush_secs.*'log_gr"):
        TensorBoardLogger(tmp_path, log_gr=True)


class Drawn(nn.Module):
    """Has parts that behave otherwise in training, and that an evaluation of all would wake."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.layer = nn.Linear(3, 2)
        self.layer.eval()
        self.example_input_array: Any = torch.ones(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(nn.functional.dropout(self.norm(inputs), training=self.training))
        return outputs


def nodes(logger: TensorBoardLogger) -> list[str]:
    return [node.name for node in read(logger).Graph().node]


@pytest.mark.filterwarnings("ignore:.*jit.*:DeprecationWarning")
def test_the_graph_is_written_with_the_first_metrics_and_leaves_no_trace(tmp_path: Path) -> None:
    logger, module = TensorBoardLogger(tmp_path, log_graph=True), Drawn()
    weights = {name: value.clone() for name, value in module.state_dict().items()}
    random_state = torch.get_rng_state()
    logger.begin_fit(module)
    assert os.listdir(tmp_path) == []
    logger.log_metrics({"loss": 1.0}, 0)
    logger.log_metrics({"loss": 0.5}, 1)
    logger.finalize("success")
    assert any("Linear[layer]" in name for name in nodes(logger)) and any("norm" in name for name in nodes(logger))
    assert points(logger, "loss") == [(0, 1.0), (1, 0.5)]
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(torch.equal(value, weights[name]) for name, value in module.state_dict().items())
    assert module.training and module.norm.training and not module.layer.training


@pytest.mark.filterwarnings("ignore:.*jit.*:DeprecationWarning")
def test_a_fit_that_logs_nothing_has_its_graph_at_the_end(tmp_path: Path) -> None:
    logger = TensorBoardLogger(tmp_path, log_graph=True)
    logger.begin_fit(module := Drawn())
    logger.finalize("success")
    assert nodes(logger) and module.training


def test_without_being_asked_for_there_is_no_graph(tmp_path: Path) -> None:
    logger = TensorBoardLogger(tmp_path)
    logger.begin_fit(module := Drawn())
    logger.finalize("success")
    assert os.listdir(tmp_path) == [] and module.training


def lazy(module: Drawn) -> None:
    module.norm = nn.LazyBatchNorm1d()  # type: ignore[assignment]


@pytest.mark.filterwarnings("ignore:.*jit.*:DeprecationWarning")
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda module: setattr(module, "example_input_array", None), "`input_array` must be a tensor or a tuple"),
        (lambda module: setattr(module, "example_input_array", torch.ones(4, 2)), "RuntimeError"),
        (lambda module: module.to("meta"), "parameters are on the meta device"),
        (lazy, "lazy parameters"),
    ],
)
def test_a_graph_that_cannot_be_drawn_is_a_warning_and_metrics_are_written(
    tmp_path: Path, change: Any, reason: str
) -> None:
    logger, module = TensorBoardLogger(tmp_path, log_graph=True), Drawn()
    change(module)
    logger.begin_fit(module)
    with pytest.warns(UserWarning, match=f"TensorBoard gets no graph of Drawn: .*{reason}"):
        logger.log_metrics({"loss": 1.0}, 0)
    logger.save()
    assert points(logger, "loss") == [(0, 1.0)] and not read(logger).Tags()["graph"]


def test_a_dictionary_of_numbers_is_one_chart(tmp_path: Path) -> None:
    logger = TensorBoardLogger(tmp_path, prefix="net")
    logger.log_metrics({"loss": {"train": 1.0, "val": torch.tensor(2.0)}, "lr": 0.1}, 3)  # type: ignore[dict-item]
    logger.save()
    assert sorted(path.name for path in Path(logger.log_dir).iterdir() if path.is_dir()) == [
        "net-loss_train",
        "net-loss_val",
    ]

"""The logger for Comet, on a client that records the calls of its documented interface."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from camshaft.callbacks import CometLogger, Logger, ModelCheckpoint
from camshaft.callbacks.arguments import InvalidArgumentError

KEY = "k" * 32


class Experiment:
    """`comet_ml.CometExperiment`, with the signatures of its reference."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def get_key(self) -> str:
        return KEY

    def log_other(self, key: str, value: Any, include_context: bool = True) -> None:
        self.calls.append(("other", key, value))

    def log_metrics(
        self, dic: dict[str, Any], prefix: str | None = None, step: int | None = None, epoch: int | None = None
    ) -> None:
        self.calls.append(("metrics", dic, prefix, step, epoch))

    def log_parameters(
        self,
        parameters: dict[str, Any],
        prefix: str | None = None,
        nested_support: bool = True,
        step: int | None = None,
    ) -> None:
        self.calls.append(("parameters", parameters))

    def log_model(
        self,
        name: str,
        file_or_folder: str,
        file_name: str | None = None,
        overwrite: bool = False,
        metadata: dict[str, Any] | None = None,
        copy_to_tmp: bool = True,
        sync_mode: bool = True,
        prepend_folder_name: bool = True,
    ) -> None:
        self.calls.append(("model", name, file_or_folder, metadata))

    def set_model_graph(self, graph: Any, overwrite: bool = False) -> None:
        self.calls.append(("graph", graph))

    def flush(self) -> bool:
        self.calls.append(("flush",))
        return True


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Experiment, dict[str, Any]]]:
    """Experiments that were started, each with its arguments."""
    found: list[tuple[Experiment, dict[str, Any]]] = []

    def start(
        api_key: Any = None,
        workspace: Any = None,
        project: Any = None,
        experiment_key: Any = None,
        mode: Any = None,
        online: Any = None,
        experiment_config: Any = None,
    ) -> Experiment:
        found.append((Experiment(), dict(locals(), found=None)))
        return found[-1][0]

    library = ModuleType("comet_ml")
    library.start, library.ExperimentConfig = start, SimpleNamespace  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "comet_ml", library)
    monkeypatch.delenv("COMET_PROJECT_NAME", raising=False)
    return found


def test_the_experiment_is_started_at_the_first_write(started: list[Any]) -> None:
    logger = CometLogger(workspace="we", project="cams", online=False, name="run", offline_directory=Path("there"))
    assert isinstance(logger, Logger)
    assert (logger.name, logger.version, logger.save_dir, logger.log_dir) == ("cams", None, "there", None)
    logger.finalize("success")
    assert not started
    logger.log_metrics({"loss": torch.tensor(0.5), "epoch": 2.0}, step=7)
    logger.log_hyperparams({"net": {"depth": 2}, "act": torch.nn.ReLU})
    logger.log_graph(torch.nn.Linear(1, 1))
    logger.finalize("success")
    ((experiment, arguments),) = started
    assert (arguments["workspace"], arguments["project"], arguments["online"]) == ("we", "cams", False)
    assert vars(arguments["experiment_config"]) == {
        "auto_metric_logging": False,
        "name": "run",
        "offline_directory": Path("there"),
    }
    assert experiment.calls == [
        ("other", "Created from", "camshaft"),
        ("metrics", {"loss": 0.5}, None, 7, 2),
        ("parameters", {"net/depth": 2, "act": "torch.nn.modules.activation.ReLU"}),
        ("graph", "Linear(in_features=1, out_features=1, bias=True)"),
        ("flush",),
    ]
    assert logger.version == KEY


def test_a_copy_continues_the_experiment(started: list[Any]) -> None:
    logger = CometLogger(prefix="net")
    logger.log_metrics({"loss": 1})
    copied = pickle.loads(pickle.dumps(logger))
    assert copied.version == KEY
    copied.log_metrics({"loss": 2}, 1)
    assert started[1][1]["experiment_key"] == KEY
    assert started[1][0].calls[-1] == ("metrics", {"loss": 2}, "net", 1, None)


def test_what_is_no_number_is_refused(started: list[Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=r"`metrics\['text'\]` must be a number"):
        CometLogger().log_metrics({"text": "x"})  # type: ignore[dict-item]


def test_checkpoints_are_logged_as_models(started: list[Any], tmp_path: Path) -> None:
    logger, callback = CometLogger(log_model="all"), ModelCheckpoint(tmp_path)
    callback.saved_path = str(tmp_path / "epoch=0.ckpt")
    Path(callback.saved_path).write_text("x")
    logger.after_save_checkpoint(callback)
    kind, name, path, metadata = started[0][0].calls[-1]
    assert (kind, name, path) == ("model", "epoch=0", callback.saved_path)
    assert metadata["original_filename"] == "epoch=0.ckpt"


def test_without_the_library_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "comet_ml", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install comet.ml.*extra `comet`"):
        CometLogger()

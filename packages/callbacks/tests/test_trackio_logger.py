"""The logger for Trackio, on a client that records the calls of its interface, and on Trackio itself where it is."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from camshaft.callbacks import Logger, TrackioLogger
from camshaft.callbacks.arguments import InvalidArgumentError


class Run:
    """`trackio.Run`, as far as it is public."""

    def __init__(self, name: str | None) -> None:
        self.name = name or "brave-sunset-0"
        self.config: dict[str, Any] = {"_Created": "now"}
        self.calls: list[Any] = []

    def log(self, metrics: dict[str, Any], step: int | None = None) -> None:
        self.calls.append((metrics, step))

    def finish(self) -> None:
        self.calls.append("finish")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Run, dict[str, Any]]]:
    """Runs that were started, each with its arguments."""
    found: list[tuple[Run, dict[str, Any]]] = []

    def init(project: str, name: str | None = None, resume: str = "never", group: str | None = None) -> Run:
        found.append((Run(name), {"project": project, "name": name, "resume": resume, "group": group}))
        return found[-1][0]

    library = ModuleType("trackio")
    library.init = init  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "trackio", library)
    return found


def test_the_run_is_started_at_the_first_write_and_goes_on_after_a_verb(started: list[Any]) -> None:
    logger = TrackioLogger("cams", prefix="net", group="all")
    assert isinstance(logger, Logger)
    assert (logger.name, logger.version, logger.save_dir, logger.log_dir) == ("cams", None, None, None)
    logger.finalize("success")
    assert not started
    logger.log_hyperparams({"net": {"depth": 2}, "act": torch.nn.ReLU})
    logger.log_metrics({"loss": torch.tensor(0.5)}, step=7)
    logger.log_metrics({})
    logger.finalize("success")
    ((run, arguments),) = started
    assert arguments == {"project": "cams", "name": None, "resume": "never", "group": "all"}
    assert run.config == {"_Created": "now", "net": {"depth": 2}, "act": "torch.nn.modules.activation.ReLU"}
    assert run.calls == [({"net-loss": 0.5}, 7), "finish"]
    copied = pickle.loads(pickle.dumps(logger))
    copied.log_metrics({"loss": 1}, 8)
    assert started[1][1] == {**arguments, "name": "brave-sunset-0", "resume": "allow"}
    assert started[1][0].calls == [({"net-loss": 1}, 8)]


def test_hyperparameters_that_come_too_late_are_told(started: list[Any]) -> None:
    logger = TrackioLogger()
    logger.log_hyperparams({"lr": 1})
    logger.log_metrics({"loss": 1})
    logger.log_hyperparams({"lr": 1})
    with pytest.warns(UserWarning, match=r"logs no hyperparameters after the first metrics.*: depth\. Log them before"):
        logger.log_hyperparams({"lr": 1, "depth": 2})


def test_what_cannot_be_followed_is_refused(started: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidArgumentError, match=r"`metrics\['text'\]` must be a number"):
        TrackioLogger().log_metrics({"text": "x"})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match=r"`kwargs` must be further arguments of .*init` \(group, resume\), but got"):
        TrackioLogger(tags=["a"])
    monkeypatch.setitem(sys.modules, "trackio", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install trackio.*extra `trackio`"):
        TrackioLogger()


PROGRAM = """
from camshaft.callbacks import TrackioLogger
logger = TrackioLogger("cams", auto_log_cpu=False)
logger.log_hyperparams({"lr": 0.1})
for step in (1, 2):
    logger.log_metrics({"loss": 1 / step}, step)
    logger.finalize("success")
from trackio.sqlite_storage import SQLiteStorage
rows = SQLiteStorage.get_logs("cams", logger.version)
print([(row["step"], row["loss"]) for row in rows])
"""


@pytest.mark.processes
@pytest.mark.skipif(find_spec("trackio") is None, reason="trackio is not installed")
def test_trackio_has_what_was_logged(tmp_path: Path) -> None:
    environment = {**os.environ, "TRACKIO_DIR": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "[(1, 1.0), (2, 0.5)]" in done.stdout.splitlines(), done.stdout

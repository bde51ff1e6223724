from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from recording_trainer import OneProcess, RecordingTrainer

from camshaft.callbacks import ModelCheckpoint
from camshaft.callbacks.arguments import InvalidArgumentError
from camshaft.callbacks.checkpoints.preemption_checkpoint import PreemptionCheckpoint

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="this system has no SIGUSR1")


class Alone(OneProcess):
    def all_gather(self, value: Any) -> list[Any]:
        return [value]


class PreemptibleTrainer(RecordingTrainer):
    is_preempted = False

    def preempt(self, path: str) -> None:
        self.asked = [*getattr(self, "asked", []), path]
        self.is_preempted = True


@pytest.fixture(autouse=True)
def handler() -> Iterator[list[int]]:
    calls: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: calls.append(number))
    yield calls
    signal.signal(signal.SIGUSR1, before)


def begun(folder: Path, callback: PreemptionCheckpoint, *others: Any) -> PreemptibleTrainer:
    trainer = PreemptibleTrainer(str(folder), callbacks=[callback, *others], strategy=Alone())
    trainer.begin()
    return trainer


def test_asks_once_whatever_comes_and_gives_the_handlers_back(tmp_path: Path, handler: list[int]) -> None:
    callback = PreemptionCheckpoint(exit_code=None)
    trainer = begun(tmp_path, callback)
    for name in ("SIGUSR1", "SIGTERM", "SIGUSR1"):
        os.kill(os.getpid(), signal.Signals[name])
    callback.on_fit_end(trainer, None)
    trainer.end()
    assert trainer.asked == [str(tmp_path / "checkpoints/preempted.ckpt")]
    assert callback.preempted and not trainer.requested and handler == []
    os.kill(os.getpid(), signal.SIGUSR1)
    assert handler == [signal.SIGUSR1]


def test_saves_where_a_model_checkpoint_does(tmp_path: Path) -> None:
    callback = PreemptionCheckpoint(filename="left")
    begun(tmp_path, callback, ModelCheckpoint(tmp_path / "kept")).end()
    assert callback.ckpt_path == str(tmp_path / "kept/left.ckpt")


def test_another_thread_catches_nothing_and_says_so(tmp_path: Path, handler: list[int]) -> None:
    callback, raised = PreemptionCheckpoint(), []

    def fit() -> None:
        with pytest.warns(UserWarning, match="PreemptionCheckpoint catches no signals: .* Call fit in the main thread"):
            trainer = begun(tmp_path, callback)
        os.kill(os.getpid(), signal.SIGUSR1)
        callback.on_fit_end(trainer, None)
        trainer.end()
        raised.append(None)

    thread = threading.Thread(target=fit)
    thread.start()
    thread.join()
    assert raised == [None] and handler == [signal.SIGUSR1] and not callback.preempted


def test_after_an_exception_nothing_is_left_behind_and_nobody_exits(tmp_path: Path, handler: list[int]) -> None:
    callback = PreemptionCheckpoint(["SIGUSR1"])
    trainer = begun(tmp_path, callback)
    os.kill(os.getpid(), signal.SIGUSR1)
    callback.on_exception(trainer, None, ValueError("broken"))
    trainer.end()
    os.kill(os.getpid(), signal.SIGUSR1)
    assert handler == [signal.SIGUSR1]


def test_a_requeue_that_fails_ends_with_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "40")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "2")
    monkeypatch.setenv("PATH", str(tmp_path))
    callback = PreemptionCheckpoint(requeue=True, exit_code=75)
    trainer = begun(tmp_path, callback)
    os.kill(os.getpid(), signal.SIGUSR1)
    callback.on_fit_end(trainer, None)
    with pytest.warns(UserWarning, match="SLURM job 40_2 could not be requeued"), pytest.raises(SystemExit) as left:
        trainer.end()
    assert left.value.code == 1


def test_says_that_there_is_no_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with pytest.warns(UserWarning, match="will not requeue: this is not a SLURM job"):
        begun(tmp_path, PreemptionCheckpoint(requeue=True)).end()


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"signals": ()}, "signals"),
        ({"signals": "SIGTERM"}, "signals"),
        ({"signals": ["SIGKILL"]}, "signals"),
        ({"signals": ["SIGTREM"]}, "signals"),
        ({"filename": ""}, "filename"),
        ({"filename": "a/b"}, "filename"),
        ({"dirpath": "nowhere://bucket/x"}, "dirpath"),
        ({"exit_code": 256}, "exit_code"),
        ({"exit_code": True}, "exit_code"),
    ],
)
def test_arguments_that_cannot_be_followed(arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"`{field}` must be .* in PreemptionCheckpoint\."):
        PreemptionCheckpoint(**arguments)

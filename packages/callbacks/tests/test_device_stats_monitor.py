"""What is logged of the device and the machine, and when."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from recording_trainer import OneProcess, RecordingTrainer

from camshaft.callbacks.arguments import InvalidArgumentError
from camshaft.callbacks.monitors.device_stats_monitor import DeviceStatsMonitor

NAMES = {"cpu_percent", "cpu_vm_percent", "cpu_swap_percent", "process_rss_bytes"}
PREFIX = "DeviceStatsMonitor.on_train_batch_start/"


class On(OneProcess):
    def __init__(self, device: str) -> None:
        self.device = torch.device(device)


class Rows:
    def __init__(self) -> None:
        self.rows: list[tuple[int | None, dict[str, float]]] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.rows.append((step, dict(metrics)))


def trainer_on(device: str, root: Path, callback: DeviceStatsMonitor, **arguments: Any) -> RecordingTrainer:
    keywords = {"log_every_n_steps": 2, "loggers": [Rows()], **arguments}
    return RecordingTrainer(str(root), callbacks=[callback], strategy=On(device), **keywords)


def train(trainer: RecordingTrainer, num_batches: int = 5) -> list[tuple[int | None, dict[str, float]]]:
    callback = trainer.callbacks[0]
    trainer.begin()
    callback.on_train_start(trainer, None)
    for batch_idx in range(num_batches):
        callback.on_train_batch_start(trainer, None, None, batch_idx)
        trainer.train_batch(batch_idx)
    callback.on_train_end(trainer, None)
    trainer.end()
    rows: list[tuple[int | None, dict[str, float]]] = trainer.loggers[0].rows
    return rows


def test_the_load_of_the_machine_is_logged_with_the_updates_whose_steps_are(tmp_path: Path) -> None:
    rows = train(trainer_on("cpu", tmp_path, DeviceStatsMonitor()))
    assert [step for step, _ in rows] == [1, 1, 3, 3]
    assert {name.rpartition("/")[0] for name in rows[1][1]} == {"DeviceStatsMonitor.on_train_batch_end"}
    for _, metrics in rows[::2]:
        assert metrics.keys() == {PREFIX + name for name in NAMES}
        assert 0 < metrics[f"{PREFIX}cpu_vm_percent"] < 100
        assert 10**6 < metrics[f"{PREFIX}process_rss_bytes"] < 10**12


@pytest.mark.parametrize("arguments", [{"log_every_n_steps": 0}, {"is_global_zero": False}])
def test_nothing_is_measured_where_nothing_is_written(arguments: dict[str, Any], tmp_path: Path) -> None:
    assert train(trainer_on("cpu", tmp_path, DeviceStatsMonitor(), **arguments)) == []


def test_nothing_is_measured_on_a_cpu_whose_load_is_not_asked_for(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="logs nothing on a CPU with cpu_stats=False"):
        assert train(trainer_on("cpu", tmp_path, DeviceStatsMonitor(cpu_stats=False))) == []


def test_a_trainer_without_a_logger_is_refused_where_it_fits(tmp_path: Path) -> None:
    trainer = trainer_on("cpu", tmp_path, DeviceStatsMonitor(), loggers=[])
    with pytest.raises(InvalidArgumentError, match=r"`logger` must be set on the trainer, .* but got None"):
        trainer.begin()
    trainer.begin("validate")


@pytest.mark.parametrize(
    ("device", "cpu_stats", "is_needed"), [("cpu", None, True), ("cuda", None, False), ("cuda", True, True)]
)
def test_psutil_is_asked_for_at_set_up_and_only_where_it_is_needed(
    device: str, cpu_stats: bool | None, is_needed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "psutil", raising=False)
    monkeypatch.setattr(sys, "path", [])
    trainer = trainer_on(device, tmp_path, DeviceStatsMonitor(cpu_stats))
    if not is_needed:
        trainer.begin()
        return
    with pytest.raises(
        ModuleNotFoundError, match=r"DeviceStatsMonitor needs `psutil`.*pip install psutil.*extra `device-stats`"
    ):
        trainer.begin()


def test_it_goes_on_where_its_state_was_taken(tmp_path: Path) -> None:
    one, other = DeviceStatsMonitor(), DeviceStatsMonitor()
    earlier = trainer_on("cpu", tmp_path, one)
    earlier.begin()
    one.on_train_start(earlier, None)
    earlier.global_step = 1
    one.on_train_batch_start(earlier, None, None, 1)  # the first batch of the window of update 1
    other.load_state_dict(one.state_dict())
    later = trainer_on("cpu", tmp_path, other, global_step=1)
    assert [step for step, _ in train(later)] == [3, 3, 5, 5]


@pytest.mark.parametrize("stage", ["validation", "test", "predict"])
def test_evaluation_is_logged_as_often_in_batches(stage: str, tmp_path: Path) -> None:
    callback = DeviceStatsMonitor()
    trainer = trainer_on("cpu", tmp_path, callback)
    trainer.begin(stage)
    for batch_idx in range(5):
        getattr(callback, f"on_{stage}_batch_start")(trainer, None, None, batch_idx)
        getattr(callback, f"on_{stage}_batch_end")(trainer, None, None, None, batch_idx)
    hooks = [name.partition(".")[2].partition("/")[0] for _, row in trainer.loggers[0].rows for name in list(row)[:1]]
    assert hooks == 2 * [f"on_{stage}_batch_start", f"on_{stage}_batch_end"]


@pytest.mark.gpu
def test_the_allocator_of_a_gpu_is_logged_in_bytes(tmp_path: Path, accelerator: str) -> None:
    held = torch.zeros(1 << 20, device=accelerator)
    rows = train(trainer_on(accelerator, tmp_path, DeviceStatsMonitor()))
    assert [step for step, _ in rows] == [1, 1, 3, 3]
    assert rows[0][1][f"{PREFIX}allocated_bytes.all.current"] >= held.nbytes
    assert f"{PREFIX}cpu_percent" not in rows[0][1]
    both = train(trainer_on(accelerator, tmp_path, DeviceStatsMonitor(cpu_stats=True)))[0][1]
    assert {f"{PREFIX}allocated_bytes.all.peak", f"{PREFIX}cpu_percent"} <= both.keys()

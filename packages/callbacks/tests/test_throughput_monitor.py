"""The clock is replaced by one that a test turns; what a device really does is tested on one, at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from recording_trainer import OneProcess, RecordingTrainer, load_callback_state
from torch import nn

from camshaft.callbacks import CSVLogger
from camshaft.callbacks.arguments import InvalidArgumentError
from camshaft.callbacks.monitors import throughput_monitor
from camshaft.callbacks.monitors.throughput_monitor import DeviceClock, ThroughputMonitor


class Rows:
    """A logger that keeps rows."""

    def __init__(self) -> None:
        self.rows: list[tuple[int | None, dict[str, float]]] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.rows.append((step, dict(metrics)))


class TurnedClock:
    """Shows what a test says, and counts how often somebody waited for it."""

    now = 0.0
    num_waits = 0

    def __init__(self, device: torch.device) -> None:
        pass

    def mark(self) -> float:
        return TurnedClock.now

    def seconds_between(self, start: float, end: float) -> float:
        TurnedClock.num_waits += 1
        return end - start


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> type[TurnedClock]:
    monkeypatch.setattr(throughput_monitor, "DeviceClock", TurnedClock)
    TurnedClock.now, TurnedClock.num_waits = 0.0, 0
    return TurnedClock


BATCH = torch.ones(4, 10)


def trainer_with(root: Path, monitor: ThroughputMonitor, **arguments: Any) -> RecordingTrainer:
    strategy = OneProcess()
    strategy.device = torch.device("cpu")
    arguments = {"loggers": [Rows()], "log_every_n_steps": 2, "strategy": strategy, **arguments}
    return RecordingTrainer(str(root), callbacks=[monitor], **arguments)


def train(
    trainer: RecordingTrainer, monitor: ThroughputMonitor, seconds: list[float], accumulate: int = 1, start: int = 0
) -> None:
    for batch_idx, duration in enumerate(seconds, start=start):
        TurnedClock.now += duration
        trainer.global_step += (batch_idx + 1) % accumulate == 0
        monitor.on_train_batch_end(trainer, MODULE, None, BATCH, batch_idx)


MODULE = nn.Linear(10, 10)


def test_rates_leave_the_first_batch_out_and_rows_come_every_n_updates(
    tmp_path: Path, clock: type[TurnedClock]
) -> None:
    monitor = ThroughputMonitor(len, lambda batch: batch.numel(), flops_per_batch=50.0, available_flops=200.0)
    trainer = trainer_with(tmp_path, monitor)
    trainer.begin()
    monitor.on_train_start(trainer, MODULE)
    train(trainer, monitor, [100.0, 0.5, 0.5, 0.5])
    rows = trainer.loggers[0].rows
    assert [step for step, _ in rows] == [1, 3]
    assert rows[1][1] == {
        "train/time": 1.5,
        "train/batches": 4,
        "train/samples": 16,
        "train/lengths": 160,
        "train/device/batches_per_sec": 2.0,
        "train/device/samples_per_sec": 8.0,
        "train/device/items_per_sec": 80.0,
        "train/device/flops_per_sec": 100.0,
        "train/device/mfu": 0.5,
    }


def test_the_device_is_waited_for_only_when_a_row_is_written(tmp_path: Path, clock: type[TurnedClock]) -> None:
    monitor = ThroughputMonitor(len)
    trainer = trainer_with(tmp_path, monitor, log_every_n_steps=10)
    trainer.begin()
    monitor.on_train_start(trainer, MODULE)
    train(trainer, monitor, [1.0] * 9)
    assert clock.num_waits == 0
    train(trainer, monitor, [1.0], start=9)
    assert clock.num_waits == 1 and len(trainer.loggers[0].rows) == 1


def test_under_accumulation_batches_count_and_rows_follow_updates(tmp_path: Path, clock: type[TurnedClock]) -> None:
    monitor = ThroughputMonitor(len)
    trainer = trainer_with(tmp_path, monitor)
    trainer.begin()
    monitor.on_train_start(trainer, MODULE)
    train(trainer, monitor, [1.0] * 12, accumulate=3)
    rows = trainer.loggers[0].rows
    assert [(step, row["train/batches"]) for step, row in rows] == [(1, 6), (3, 12)]
    assert rows[1][1]["train/device/batches_per_sec"] == 1.0


def test_validation_within_training_takes_no_training_time(tmp_path: Path, clock: type[TurnedClock]) -> None:
    monitor = ThroughputMonitor(len, flops_per_batch={"train": 3.0, "validate": 1.0})
    trainer = trainer_with(tmp_path, monitor)
    trainer.begin()
    monitor.on_train_start(trainer, MODULE)
    train(trainer, monitor, [9.0, 1.0, 1.0])
    clock.now += 0.25  # still training's
    monitor.on_validation_start(trainer, MODULE)
    for batch_idx in range(3):
        clock.now += 50.0
        monitor.on_validation_batch_end(trainer, MODULE, None, BATCH, batch_idx)
    monitor.on_validation_end(trainer, MODULE)
    train(trainer, monitor, [0.75], start=3)
    rows = trainer.loggers[0].rows
    assert [step for step, _ in rows] == [1, 2, 3]
    assert rows[1][1]["validate/device/batches_per_sec"] == pytest.approx(1 / 50)
    assert rows[1][1]["validate/device/flops_per_sec"] == pytest.approx(1 / 50)
    assert rows[2][1]["train/time"] == 3.0
    assert rows[2][1]["train/device/batches_per_sec"] == 1.0
    assert rows[2][1]["train/device/flops_per_sec"] == 3.0


def test_the_flops_of_training_count_after_a_validation_that_has_none(tmp_path: Path, clock: type[TurnedClock]) -> None:
    monitor = ThroughputMonitor(len, flops_per_batch=3.0)
    trainer = trainer_with(tmp_path, monitor)
    trainer.begin()
    monitor.on_train_start(trainer, MODULE)
    train(trainer, monitor, [9.0, 1.0])
    monitor.on_validation_start(trainer, MODULE)
    clock.now += 50.0
    monitor.on_validation_batch_end(trainer, MODULE, None, BATCH, 0)
    monitor.on_validation_end(trainer, MODULE)
    train(trainer, monitor, [1.0, 1.0], start=2)
    assert trainer.loggers[0].rows[-1][1]["train/device/flops_per_sec"] == 3.0


def test_the_sanity_check_leaves_no_trace(tmp_path: Path, clock: type[TurnedClock]) -> None:
    monitor = ThroughputMonitor(len)
    trainer = trainer_with(tmp_path, monitor, sanity_checking=True)
    trainer.begin()
    monitor.on_validation_start(trainer, MODULE)
    monitor.on_validation_batch_end(trainer, MODULE, None, BATCH, 0)
    monitor.on_validation_end(trainer, MODULE)
    assert trainer.loggers[0].rows == [] and monitor.meters["validate"].batches == 0


@pytest.mark.parametrize("stage", ["validate", "test", "predict"])
def test_by_itself_a_stage_writes_every_n_batches_and_at_its_end(
    tmp_path: Path, clock: type[TurnedClock], stage: str
) -> None:
    monitor = ThroughputMonitor(len)
    trainer = trainer_with(tmp_path, monitor)
    trainer.begin(stage)
    name = "validation" if stage == "validate" else stage
    getattr(monitor, f"on_{name}_start")(trainer, MODULE)
    for batch_idx in range(5):
        clock.now += 1.0
        getattr(monitor, f"on_{name}_batch_end")(trainer, MODULE, None, BATCH, batch_idx)
    getattr(monitor, f"on_{name}_end")(trainer, MODULE)
    assert [(step, row[f"{stage}/time"]) for step, row in trainer.loggers[0].rows] == [(2, 1.0), (4, 3.0), (5, 4.0)]


def test_a_resumed_run_goes_on_with_the_totals_and_begins_rates_anew(tmp_path: Path, clock: type[TurnedClock]) -> None:
    first = ThroughputMonitor(len)
    trainer = trainer_with(tmp_path, first)
    trainer.begin()
    first.on_train_start(trainer, MODULE)
    train(trainer, first, [7.0, 1.0, 1.0])
    trainer.write(str(tmp_path / "a.ckpt"))
    second = ThroughputMonitor(len)
    second.load_state_dict(load_callback_state(tmp_path / "a.ckpt", second))
    resumed = trainer_with(tmp_path, second, global_step=3)
    resumed.begin()
    second.on_train_start(resumed, MODULE)
    train(resumed, second, [60.0, 2.0, 2.0], start=3)
    ((step, row),) = resumed.loggers[0].rows
    assert (step, row["train/batches"], row["train/samples"], row["train/time"]) == (5, 6, 24, 6.0)
    assert row["train/device/batches_per_sec"] == 0.5


@pytest.mark.parametrize("silent", [{"log_every_n_steps": 0}, {"loggers": []}])
def test_without_anywhere_to_write_totals_are_counted_and_nobody_waits(
    tmp_path: Path, clock: type[TurnedClock], silent: dict[str, Any]
) -> None:
    monitor = ThroughputMonitor(len)
    trainer = trainer_with(tmp_path, monitor, **silent)
    trainer.begin()
    monitor.on_train_start(trainer, MODULE)
    train(trainer, monitor, [1.0] * 5)
    assert clock.num_waits == 0 and monitor.meters["train"].samples == 20
    assert not any(logger.rows for logger in trainer.loggers)


def test_the_modules_own_flops_count_for_training(tmp_path: Path, clock: type[TurnedClock]) -> None:
    module = nn.Linear(1, 1)
    module.flops_per_batch = 8.0  # type: ignore[assignment]
    monitor = ThroughputMonitor(len)
    trainer = trainer_with(tmp_path, monitor)
    trainer.begin()
    monitor.on_train_start(trainer, module)
    for batch_idx in range(2):
        clock.now += 2.0
        trainer.global_step += 1
        monitor.on_train_batch_end(trainer, module, None, BATCH, batch_idx)
    assert trainer.loggers[0].rows[0][1]["train/device/flops_per_sec"] == 4.0


def test_other_processes_measure_nothing(tmp_path: Path, clock: type[TurnedClock]) -> None:
    monitor = ThroughputMonitor(len)
    trainer = trainer_with(tmp_path, monitor, is_global_zero=False)
    trainer.begin()
    monitor.on_train_start(trainer, MODULE)
    train(trainer, monitor, [1.0] * 4)
    assert trainer.loggers[0].rows == [] and monitor.meters["train"].batches == 0


def test_rows_are_in_a_csv_file_with_a_real_clock(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path, "", "run")
    monitor = ThroughputMonitor(len)
    trainer = trainer_with(tmp_path, monitor, loggers=[logger], log_every_n_steps=1)
    trainer.begin()
    monitor.on_train_start(trainer, MODULE)
    train(trainer, monitor, [0.0] * 3)
    trainer.end()
    logger.save()
    header, *rows = (tmp_path / "run" / "metrics.csv").read_text().splitlines()
    assert header.startswith("step,train/time,train/batches,train/samples,train/device/batches_per_sec")
    assert [row.split(",")[0] for row in rows] == ["1", "2"]


def test_flops_of_an_unknown_stage_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"`flops_per_batch` must be numbers by stage .* 'training'"):
        ThroughputMonitor(len, flops_per_batch={"training": 1.0})


@pytest.mark.gpu(kind="cuda")
def test_on_a_gpu_the_time_is_that_of_its_work_and_marking_does_not_wait() -> None:
    device = torch.device("cuda", 0)
    clock = DeviceClock(device)
    matrix = torch.randn(8192, 8192, device=device)
    start = clock.mark()
    for _ in range(20):
        matrix = matrix @ matrix
    end = clock.mark()
    assert not end.query()  # the work still runs
    assert clock.seconds_between(start, end) > 20 * 2 * 8192**3 / 1e15
    assert end.query()

"""`trainer.accumulate_grad_batches` set while a fit runs, and the trainer with stock callbacks that count updates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from trainer_parts import NO_VALIDATION, ListLogger, Regression, assert_same, loader, quiet_trainer, weights

from camshaft.callbacks import (
    DeviceStatsMonitor,
    GradientAccumulationScheduler,
    LambdaCallback,
    LearningRateMonitor,
    Timer,
)
from camshaft.hooks_core.protocols import TrainerProtocol
from camshaft.loops import FitLimits

pytestmark = pytest.mark.filterwarnings(NO_VALIDATION)


def test_a_schedule_makes_the_updates_of_each_epoch_and_fit_may_come_again(tmp_path: Path) -> None:
    trainer = quiet_trainer(tmp_path, max_epochs=3, callbacks=GradientAccumulationScheduler({1: 2, 2: 3, 3: 4}))
    trainer.fit(Regression(), loader(4))
    assert trainer.global_step == 4 + 2 + 2 and trainer.accumulate_grad_batches == 1
    trainer.fit_loop.limits = FitLimits(max_epochs=5)
    trainer.fit(Regression(), loader(4))
    assert trainer.global_step == 4 + 2 + 2 + 1 + 1 and trainer.accumulate_grad_batches == 1


def test_a_schedule_beside_a_number_of_the_trainer_is_refused(tmp_path: Path) -> None:
    trainer = quiet_trainer(tmp_path, callbacks=GradientAccumulationScheduler({1: 2}), accumulate_grad_batches=2)
    with pytest.raises(ValueError, match="`accumulate_grad_batches` must be left at 1"):
        trainer.fit(Regression(), loader(4))


def callbacks_of(trainer_dir: Path) -> list[Any]:
    def save(trainer: Any, batch_idx: int) -> None:
        trainer.save_checkpoint(trainer_dir / f"{trainer.current_epoch}-{batch_idx}.ckpt")

    stock = [
        GradientAccumulationScheduler({1: 3}),
        LearningRateMonitor("step"),
        Timer("01:00:00:00"),
        DeviceStatsMonitor(),
    ]
    return [*stock, LambdaCallback(on_train_batch_end=save)]


def run(root: Path, ckpt_path: Path | None = None) -> tuple[Any, Regression, list[tuple[int | None, dict[str, float]]]]:
    module, logger = Regression(dropout=0.5), ListLogger()
    trainer = quiet_trainer(root, max_epochs=3, callbacks=callbacks_of(root), logger=logger, log_every_n_steps=1)
    trainer.fit(module, loader(4, shuffle=True), ckpt_path=ckpt_path)
    return trainer, module, [row for row in logger.rows if "DeviceStatsMonitor" not in str(row)]


def test_going_on_inside_a_window_that_a_schedule_set_is_exact(tmp_path: Path) -> None:
    whole, module, rows = run(tmp_path / "whole")
    assert whole.global_step == 4 + 2 + 2
    for point, num_updates in (("0-1", 2), ("1-0", 4), ("1-1", 4), ("1-3", 6), ("2-0", 6)):
        resumed, other, later_rows = run(tmp_path / point, tmp_path / "whole" / f"{point}.ckpt")
        assert resumed.global_step == whole.global_step
        assert_same(weights(other), weights(module), point)
        own = [(step, row) for step, row in rows if step is not None and "lr-SGD" in row]
        later = [(step, row) for step, row in later_rows if step is not None and "lr-SGD" in row]
        assert later == own[len(own) - len(later) :] and len(later) <= whole.global_step - num_updates
        assert resumed.callbacks[1].lrs == whole.callbacks[1].lrs


def test_rates_and_device_share_the_step_of_what_the_module_logs(tmp_path: Path) -> None:
    logger = ListLogger()
    callbacks = [LearningRateMonitor("step"), DeviceStatsMonitor()]
    trainer = quiet_trainer(
        tmp_path, callbacks=callbacks, logger=logger, log_every_n_steps=2, accumulate_grad_batches=2, max_epochs=2
    )
    trainer.fit(Regression(), loader(4))
    names = ("train_loss", "lr-SGD", "DeviceStatsMonitor.on_train_batch_start/cpu_percent")
    steps = {name: [step for step, row in logger.rows if name in row] for name in names}
    assert steps == {name: [1, 3] for name in names}


def test_a_timer_ends_training_within_an_epoch(tmp_path: Path) -> None:
    timer = Timer({"microseconds": 1}, verbose=False)
    trainer = quiet_trainer(tmp_path, max_epochs=100, callbacks=timer)
    trainer.fit(Regression(), loader(4))
    assert trainer.global_step <= 1 and timer.stopping_reason_message is not None and timer.time_elapsed() > 0


def test_the_number_is_checked_when_it_is_set(tmp_path: Path) -> None:
    trainer = quiet_trainer(tmp_path)
    assert isinstance(trainer, TrainerProtocol)
    with pytest.raises(ValueError, match="`accumulate_grad_batches` must be at least 1, but got 0"):
        trainer.accumulate_grad_batches = 0
    trainer.accumulate_grad_batches = 4
    trainer.fit(Regression(), loader(4))
    assert trainer.global_step == 1

"""How long stages take, and that training ends in time."""

from __future__ import annotations

import io
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from recording_trainer import RecordingTrainer

from camshaft.callbacks import timer as timer_module
from camshaft.callbacks.arguments import InvalidArgumentError
from camshaft.callbacks.timer import Timer
from camshaft.hooks_core import is_overridden


class Clock:
    """A clock that tests set."""

    seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    one = Clock()
    monkeypatch.setattr(timer_module, "monotonic", one)
    yield one


@pytest.fixture
def trainer(tmp_path: Path) -> RecordingTrainer:
    return RecordingTrainer(str(tmp_path))


@pytest.mark.parametrize(
    ("duration", "seconds"),
    [
        ("01:02:03:04", 93784.0),
        (timedelta(minutes=1), 60.0),
        ({"hours": 2, "seconds": 0.5}, 7200.5),
        (None, None),
        ({}, 0),
    ],
)
def test_a_duration_may_be_a_text_a_timedelta_or_its_arguments(duration: Any, seconds: float | None) -> None:
    assert Timer(duration).time_remaining() == seconds


@pytest.mark.parametrize("duration", ["1:2:3", "", 5, {"hour": 2}, {"hours": "2"}, timedelta(-1), {"days": 10**12}])
def test_what_is_no_duration_is_refused(duration: Any) -> None:
    with pytest.raises((InvalidArgumentError, TypeError), match=r"`duration` must be .* in Timer") as caught:
        Timer(duration)
    assert isinstance(caught.value, TypeError) == (duration == 5)


def test_an_unknown_interval_or_stage_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="`interval` must be 'step' or 'epoch', but got 'batch'"):
        Timer(interval="batch")
    with pytest.raises(InvalidArgumentError, match="`stage` must be 'train', 'validate', 'test' or 'predict'"):
        Timer().time_elapsed("fit")


def test_each_stage_has_its_clock(clock: Clock, trainer: RecordingTrainer) -> None:
    timer = Timer("00:00:01:00")
    timer.on_train_start(trainer, None)
    assert timer.start_time() == 100.0 and timer.end_time() is None
    for _ in range(2):
        timer.on_validation_start(trainer, None)
        clock.seconds += 3
        assert timer.time_elapsed("validate") == 3
        timer.on_validation_end(trainer, None)
        clock.seconds += 1
    timer.on_train_end(trainer, None)
    clock.seconds += 50
    assert (timer.time_elapsed(), timer.time_elapsed("validate"), timer.time_elapsed("test")) == (8.0, 3.0, 0.0)
    assert timer.time_remaining() == 52.0 and timer.end_time() == 108.0
    timer.on_predict_start(trainer, None)
    clock.seconds += 5
    timer.teardown(trainer, None, "predict")  # as after an error
    clock.seconds += 5
    assert timer.time_elapsed("predict") == 5.0


def test_the_sanity_check_is_not_counted(clock: Clock, trainer: RecordingTrainer) -> None:
    timer, trainer.sanity_checking = Timer(), True
    timer.on_validation_start(trainer, None)
    clock.seconds += 3
    timer.on_validation_end(trainer, None)
    assert timer.time_elapsed("validate") == 0.0


@pytest.mark.parametrize("interval", ["step", "epoch"])
def test_training_stops_after_the_batch_or_epoch_in_which_its_time_is_over(
    interval: str, clock: Clock, trainer: RecordingTrainer, capsys: pytest.CaptureFixture[str]
) -> None:
    timer = Timer({"seconds": 5}, interval=interval)
    trainer.callbacks = [timer]
    timer.on_train_start(trainer, None)
    clock.seconds += 4
    trainer.train_batch()
    assert not trainer.should_stop
    clock.seconds += 1
    trainer.train_batch()
    assert trainer.should_stop == (interval == "step")
    trainer.end_epoch()
    assert trainer.should_stop
    assert timer.stopping_reason_message == "training has taken 0:00:05, the whole of `duration`."
    assert capsys.readouterr().out == f"Timer, epoch 0: {timer.stopping_reason_message}\n"  # once


def test_only_the_clock_of_rank_0_counts(clock: Clock, trainer: RecordingTrainer) -> None:
    timer, trainer.is_global_zero = Timer({"seconds": 5}), False
    trainer.callbacks = [timer]
    timer.on_train_start(trainer, None)
    clock.seconds += 50
    trainer.train_batch()
    trainer.end_epoch()
    assert not trainer.should_stop and timer.time_elapsed() == 50.0


@pytest.mark.parametrize(
    ("duration", "interval", "costs"), [(None, "step", False), (1, "epoch", False), (1, "step", True)]
)
def test_a_batch_costs_a_call_only_if_it_may_be_the_last(duration: int | None, interval: str, costs: bool) -> None:
    timer = Timer(None if duration is None else {"hours": duration}, interval=interval)
    assert is_overridden(timer, "on_train_batch_end") == costs


def test_a_resumed_training_has_what_is_left_of_its_time(clock: Clock, trainer: RecordingTrainer) -> None:
    one = Timer({"seconds": 10}, verbose=False)
    one.on_train_start(trainer, None)
    clock.seconds += 7
    buffer = io.BytesIO()
    torch.save(one.state_dict(), buffer)
    clock.seconds += 1000
    state = torch.load(io.BytesIO(buffer.getvalue()), weights_only=True)
    for duration, stops_at_once in (({"seconds": 10}, False), ({"seconds": 7}, True)):
        other, trainer.should_stop = Timer(duration, verbose=False), False
        other.load_state_dict(state)
        assert other.state_key == one.state_key and other.time_elapsed() == 7.0
        trainer.callbacks = [other]
        other.on_train_start(trainer, None)
        assert trainer.should_stop == stops_at_once
        clock.seconds += 3
        trainer.train_batch()
        assert trainer.should_stop
        other.on_train_end(trainer, None)
        assert other.time_elapsed() == 10.0

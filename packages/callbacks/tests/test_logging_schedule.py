"""When callbacks that log once every so many updates are due."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st
from recording_trainer import RecordingTrainer

from camshaft.callbacks.monitors.logging_schedule import LoggingSchedule


def run(schedule: LoggingSchedule, trainer: RecordingTrainer, batches: range, accumulate: int) -> list[int]:
    """Batch by batch; returns the batches before which it was due."""
    due = []
    for batch_idx in batches:
        if trainer.global_step >= schedule.next_step:
            schedule.advance(trainer)
            due.append(batch_idx)
        trainer.global_step += (batch_idx + 1) % accumulate == 0
    return due


@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 40), st.integers(0, 40))
def test_it_is_due_once_before_each_update_after_which_steps_are_logged_also_through_a_resume(
    every: int, accumulate: int, num_before: int, num_after: int
) -> None:
    one, trainer = LoggingSchedule(), RecordingTrainer(".", log_every_n_steps=every)
    one.start(trainer)
    due = run(one, trainer, range(num_before), accumulate)
    other = LoggingSchedule()
    other.load_state_dict(one.state_dict())
    other.start(trainer)
    due += run(other, trainer, range(num_before, num_before + num_after), accumulate)
    firsts = range(
        0, num_before + num_after, accumulate
    )  # the first batch of each window, which has the update's index
    assert due == [first for step, first in enumerate(firsts) if (step + 1) % every == 0]


def test_0_is_never() -> None:
    schedule = LoggingSchedule()
    schedule.start(RecordingTrainer(".", log_every_n_steps=0))
    assert schedule.next_step == math.inf and schedule.state_dict() == {}


def test_another_interval_holds_at_once() -> None:
    one, other = LoggingSchedule(), LoggingSchedule()
    one.start(RecordingTrainer(".", log_every_n_steps=10))
    other.load_state_dict(one.state_dict())
    other.start(RecordingTrainer(".", log_every_n_steps=3, global_step=4))
    assert other.next_step == 5

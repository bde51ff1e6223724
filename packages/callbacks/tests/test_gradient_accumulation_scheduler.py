"""The schedule of `GradientAccumulationScheduler`; what the loops make of it is tested with them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recording_trainer import RecordingTrainer

from camshaft.callbacks.arguments import InvalidArgumentError
from camshaft.callbacks.gradient_accumulation_scheduler import GradientAccumulationScheduler


@given(st.dictionaries(st.integers(0, 20), st.integers(1, 9), min_size=1), st.integers(0, 30))
def test_an_epoch_has_the_number_of_the_latest_entry_not_after_it(scheduling: dict[int, int], epoch: int) -> None:
    earlier = [start for start in scheduling if start <= epoch]
    expected = scheduling[max(earlier)] if earlier else 1
    callback = GradientAccumulationScheduler(scheduling)
    assert callback.get_accumulate_grad_batches(epoch) == expected
    assert callback.going_to_accumulate_grad_batches() == any(number > 1 for number in scheduling.values())


def test_each_epoch_sets_its_number_and_the_end_sets_1(tmp_path: Path) -> None:
    given = {2: 4, 1: 3}
    callback = GradientAccumulationScheduler(given)
    assert given == {2: 4, 1: 3}  # the caller's own
    trainer = RecordingTrainer(str(tmp_path), callbacks=[callback])
    for _ in range(2):  # it can fit again
        trainer.begin()
        seen = []
        for trainer.current_epoch in range(4):
            callback.on_train_epoch_start(trainer, None)
            seen.append(trainer.accumulate_grad_batches)
        assert seen == [1, 3, 4, 4]
        trainer.end()
        assert trainer.accumulate_grad_batches == 1


def test_a_trainer_with_a_number_of_its_own_is_refused_where_it_fits_and_left_alone(tmp_path: Path) -> None:
    callback = GradientAccumulationScheduler({0: 2})
    trainer = RecordingTrainer(str(tmp_path), callbacks=[callback], accumulate_grad_batches=3)
    message = "`accumulate_grad_batches` must be left at 1 with GradientAccumulationScheduler, which sets it, but got 3"
    with pytest.raises(InvalidArgumentError, match=message):
        trainer.begin()
    trainer.end()
    trainer.begin("test")
    trainer.end("test")
    assert trainer.accumulate_grad_batches == 3


def test_a_module_that_optimizes_manually_is_refused_at_set_up() -> None:
    module = SimpleNamespace(automatic_optimization=False)
    with pytest.raises(InvalidArgumentError, match=r"`automatic_optimization` must be True.*Leave the callback out"):
        GradientAccumulationScheduler({1: 2}).setup(RecordingTrainer("."), module, "fit")


@pytest.mark.parametrize(
    ("scheduling", "error", "rule"),
    [
        ({}, ValueError, "not empty"),
        ({-1: 2}, ValueError, "a dictionary with epochs from 0 on"),
        ({0: 0}, ValueError, "a dictionary with positive numbers of batches"),
        ({0: 2.0}, TypeError, "a dictionary from epochs to numbers of batches"),
        ({"0": 2}, TypeError, "a dictionary from epochs to numbers of batches"),
        ({0: True}, TypeError, "a dictionary from epochs to numbers of batches"),
        ([2], TypeError, "a dictionary from epochs to numbers of batches"),
    ],
)
def test_a_schedule_that_is_none_is_refused(scheduling: Any, error: type[Exception], rule: str) -> None:
    with pytest.raises(error, match=f"`scheduling` must be {rule}, but got"):
        GradientAccumulationScheduler(scheduling)

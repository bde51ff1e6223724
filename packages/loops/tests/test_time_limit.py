"""How long training may take: what is accepted, and when training stops."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from bare_parts import BareTrainer, Net, Sized, adam, hooked, make_batches, same_bits, seeded, weights
from hypothesis import given
from hypothesis import strategies as st
from resumable_data import make_data

from camshaft.loops import FitLimits, FitProgress
from camshaft.loops.fit import limits as time_limit
from camshaft.loops.fit.limits import StoppingRules, to_seconds

pytestmark = pytest.mark.filterwarnings("ignore:There is a `validation_step`")


@pytest.mark.parametrize(
    ("max_time", "seconds"),
    [
        (None, None),
        ("00:00:00:01", 1.0),
        ("01:02:03:04", 93784.0),
        (" 100:00:00:00 ", 8640000.0),
        ("00:99:99:99", 362439.0),
        (timedelta(minutes=2, microseconds=500), 120.0005),
        ({"hours": 2}, 7200.0),
        ({"hours": 1.5, "seconds": -1}, 5399.0),
        ({"weeks": 1}, 604800.0),
    ],
)
def test_a_duration_is_a_text_a_timedelta_a_dictionary_or_none(max_time: Any, seconds: float | None) -> None:
    assert to_seconds(max_time, "here") == seconds
    assert FitLimits(max_time=max_time).max_seconds == seconds


@given(st.integers(0, 99), st.integers(0, 99), st.integers(0, 99), st.integers(1, 99))
def test_the_three_forms_agree(days: int, hours: int, minutes: int, seconds: int) -> None:
    parts = {"days": days, "hours": hours, "minutes": minutes, "seconds": seconds}
    forms: list[Any] = [f"{days:02}:{hours:02}:{minutes:02}:{seconds:02}", timedelta(**parts), parts]
    assert len({to_seconds(form, "here") for form in forms}) == 1


@pytest.mark.parametrize(
    ("max_time", "error", "message"),
    [
        ("12:00:00", ValueError, r'a string "DD:HH:MM:SS", a timedelta, .* but got \'12:00:00\' \(str\) in FitLoop'),
        ("1:2:3:4", ValueError, "but got '1:2:3:4'"),
        ("-1:00:00:00", ValueError, "but got '-1:00:00:00'"),
        ("9999999999:00:00:00", ValueError, "but got '9999999999:00:00:00'"),
        ("", ValueError, "but got ''"),
        (60, TypeError, r"but got 60 \(int\)"),
        (0, TypeError, r"but got 0 \(int\)"),
        (1.5, TypeError, r"but got 1.5 \(float\)"),
        (True, TypeError, "but got True"),
        (["00:00:00:01"], TypeError, r"\(list\)"),
        ({"hour": 1}, TypeError, r"but got \{'hour': 1\} \(dict\)"),
        ({"hours": "1"}, TypeError, r"but got \{'hours': '1'\}"),
        ({"hours": float("nan")}, ValueError, r"but got \{'hours': nan\}"),
        ({"hours": float("inf")}, ValueError, r"but got \{'hours': inf\}"),
        ("00:00:00:00", ValueError, "`max_time` must be positive, but got '00:00:00:00'"),
        ({}, ValueError, "must be positive"),
        ({"seconds": -1}, ValueError, "must be positive"),
        (timedelta(0), ValueError, "must be positive"),
    ],
)
def test_anything_else_is_refused_at_construction(max_time: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as raised:
        FitLimits(max_time=max_time)
    assert 'Pass for instance "00:02:30:00"' in str(raised.value)


class Clock:
    """Stands in for the module `time`: it is as late as it is told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time_limit, "time", clock)
    return clock


def test_the_time_of_training_goes_on_from_what_earlier_parts_took(clock: Clock) -> None:
    stopping = StoppingRules(FitLimits(), FitProgress(elapsed_seconds=5.0))
    stopping.start_clock()
    clock.now += 3.0
    stopping.note_time()
    assert stopping.progress.elapsed_seconds == 8.0


class Slow(Net):
    """Each training batch takes ten seconds."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(adam)
        object.__setattr__(self, "clock", clock)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.clock.now += 10
        return self.loss(batch)


def trainer(clock: Clock, *callbacks: Any, **limits: Any) -> BareTrainer:
    return BareTrainer(seeded(Slow, clock), callbacks=callbacks, **limits)


def train(clock: Clock, **limits: Any) -> tuple[int, int]:
    """Train with four batches an epoch. Returns the batches and epochs that were run."""
    progress = trainer(clock, **limits).fit(Sized(make_batches(4))).progress
    return progress.total_batches, progress.current_epoch


@pytest.mark.parametrize(
    ("seconds", "limits", "expected"),
    [
        (1, {}, (1, 0)),
        (10, {}, (1, 0)),
        (11, {}, (2, 0)),
        (40, {}, (4, 1)),
        (41, {}, (5, 1)),
        (95, {}, (10, 2)),
        (95, {"max_epochs": 1}, (4, 1)),
        (95, {"max_steps": 3}, (3, 0)),
        (15, {"min_epochs": 1}, (4, 1)),
        (15, {"min_epochs": 2}, (8, 2)),
        (55, {"min_epochs": 1}, (6, 1)),
        (15, {"min_steps": 3}, (3, 0)),
        (15, {"min_steps": 2}, (2, 0)),
        (15, {"min_steps": 3, "accumulate_grad_batches": 2}, (6, 1)),
    ],
)
def test_training_stops_after_the_batch_but_not_before_a_minimum(
    clock: Clock, seconds: int, limits: dict[str, Any], expected: tuple[int, int]
) -> None:
    assert train(clock, max_time={"seconds": seconds}, **limits) == expected


def test_the_batch_and_its_hooks_are_finished_and_validation_runs_as_before_any_stop(clock: Clock) -> None:
    seen: list[Any] = []
    names = ("on_train_batch_end", "on_validation_end", "on_train_epoch_end", "on_train_end", "on_fit_end")
    callback = hooked(**{name: lambda *_, name=name: seen.append(name) for name in names})
    trainer(clock, callback, max_time="00:00:00:15").fit(Sized(make_batches(4)), Sized(make_batches(1)))
    assert seen == ["on_train_batch_end", *names]


def test_time_that_is_over_before_the_minimum_brings_no_validation_ahead(clock: Clock) -> None:
    after: list[int] = []
    callback = hooked(on_validation_start=lambda trainer, *_: after.append(trainer.progress.total_batches))
    limited = trainer(clock, callback, max_time="00:00:00:15", min_steps=3)
    limited.fit(Sized(make_batches(4)), Sized(make_batches(1)))
    assert after == [3]


@pytest.mark.parametrize(("every", "num_validations"), [(1, 1), (2, 0)])
def test_validation_before_the_stop_keeps_to_its_epochs(clock: Clock, every: int, num_validations: int) -> None:
    seen: list[Any] = []
    callback = hooked(on_validation_end=lambda *_: seen.append(None))
    limited = trainer(clock, callback, max_time="00:00:00:15", check_val_every_n_epoch=every)
    limited.fit(Sized(make_batches(4)), Sized(make_batches(1)))
    assert len(seen) == num_validations


def test_sanity_check_and_validation_count(clock: Clock) -> None:
    def wait(*_: Any) -> None:
        clock.now += 30

    limits = {"max_time": {"seconds": 65}, "num_sanity_val_steps": 1, "val_check_interval": 2}
    slow = trainer(clock, hooked(on_validation_start=wait), **limits)
    slow.fit(Sized(make_batches(4)), Sized(make_batches(1)))
    assert slow.progress.total_batches == 3, "30 of the sanity check, two batches and their validation, and one more"


def test_the_time_goes_on_over_a_resume_and_nobody_counts_the_pause(clock: Clock) -> None:
    save = hooked(on_train_batch_end=lambda trainer, *_: trainer.save_checkpoint(f"{trainer.progress.total_batches}"))

    def fit(max_time: Any, checkpoint: Any = None) -> BareTrainer:
        random.seed(0)
        np.random.seed(0)
        slow = trainer(clock, save, max_time=max_time, max_epochs=3)
        return slow.fit(make_data("shuffled", 8, seed=0), checkpoint=checkpoint)

    whole = fit(None)
    assert [whole.load(f"{batches}")["loops"]["fit"]["elapsed_seconds"] for batches in (0, 5)] == [10.0, 60.0]
    first = fit({"seconds": 55})
    assert (first.progress.total_batches, first.progress.elapsed_seconds) == (6, 60.0)
    clock.now += 10_000
    second = fit({"seconds": 95}, first.load("5"))
    assert (second.progress.total_batches, second.progress.elapsed_seconds) == (10, 100.0)
    third = fit(None, second.load("9"))
    assert same_bits(weights(third.module), weights(whole.module)), "stopping for time costs nothing"


@pytest.mark.filterwarnings("ignore:The train loader .* has no state")
@pytest.mark.parametrize("minimum", [{}, {"min_epochs": 1}])
def test_a_run_that_resumes_with_no_time_left_trains_no_further_than_the_minimum(
    clock: Clock, minimum: dict[str, int]
) -> None:
    save = hooked(on_train_batch_end=lambda trainer, *_: trainer.save_checkpoint("file"))
    limits: dict[str, Any] = {"max_time": {"seconds": 15}, "stateless_loaders": "fast_forward"}
    first = trainer(clock, save, **limits).fit(Sized(make_batches(4)))
    seen: list[str] = []
    names = ("on_fit_start", "on_train_start", "on_train_end", "on_fit_end")
    callback = hooked(**{name: lambda *_, name=name: seen.append(name) for name in names})
    second = trainer(clock, callback, **limits, **minimum)
    second.fit(Sized(make_batches(4)), checkpoint=first.load("file"))
    assert second.progress.total_batches == (4 if minimum else 2)
    assert seen == (list(names) if minimum else ["on_fit_start", "on_fit_end"])


def test_a_second_fit_has_the_time_that_the_first_left_also_after_an_error(clock: Clock) -> None:
    def fail(trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        if trainer.progress.total_batches == 2:
            callback.on_train_batch_start = lambda *_: None
            raise ValueError("once")

    callback = hooked(on_train_batch_start=fail)
    slow = trainer(clock, callback, max_time={"seconds": 50})
    with pytest.raises(ValueError, match="once"):
        slow.fit(Sized(make_batches(4)))
    clock.now += 10_000
    slow.fit(Sized(make_batches(4)))
    assert slow.progress.total_batches == 2 + 3


def test_the_time_is_known_without_a_limit_as_well(clock: Clock) -> None:
    assert trainer(clock, max_epochs=2).fit(Sized(make_batches(4))).progress.elapsed_seconds == 80.0


def test_a_limit_of_time_takes_the_place_of_the_default_number_of_epochs() -> None:
    assert FitLimits(max_time="00:00:00:01").epoch_limit == float("inf")
    assert FitLimits(max_time="00:00:00:01", max_epochs=2).epoch_limit == 2
    assert FitLimits().epoch_limit == 1000

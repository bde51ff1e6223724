"""How long a fit runs and how often it validates."""

from __future__ import annotations

from typing import Any

import pytest
from bare_parts import BareTrainer, Net, Sized, Unsized, hooked, make_batches
from hypothesis import given
from hypothesis import strategies as st

from camshaft.loops import FitLimits

pytestmark = pytest.mark.filterwarnings("ignore:There is a `validation_step`")
INFINITE = float("inf")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"max_epochs": 1.5}, TypeError, r"`max_epochs` must be an int or None, but got 1\.5 \(float\) in FitLoop"),
        ({"max_epochs": -2}, ValueError, "`max_epochs` must be at least -1, but got -2"),
        ({"min_epochs": -1}, ValueError, "`min_epochs` must be at least 0, but got -1"),
        ({"min_epochs": True}, TypeError, "`min_epochs` must be an int or None, but got True"),
        ({"max_steps": None}, TypeError, "`max_steps` must be an int, but got None"),
        ({"max_steps": -2}, ValueError, "`max_steps` must be at least -1, but got -2"),
        ({"min_steps": -1}, ValueError, "`min_steps` must be at least 0, but got -1"),
        ({"limit_train_batches": -1}, ValueError, "`limit_train_batches` must be at least 0"),
        ({"limit_train_batches": 1.5}, ValueError, "`limit_train_batches` must be at least 0, and at most 1"),
        ({"limit_train_batches": "all"}, TypeError, "`limit_train_batches` must be an int or a float"),
        ({"val_check_interval": 0}, ValueError, "`val_check_interval` must be above 0, but got 0"),
        ({"val_check_interval": 0.0}, ValueError, "`val_check_interval` must be above 0"),
        ({"val_check_interval": 1.1}, ValueError, "`val_check_interval` must be at least 0, and at most 1"),
        ({"val_check_interval": True}, TypeError, "`val_check_interval` must be an int or a float"),
        ({"val_check_interval": float("nan")}, ValueError, "`val_check_interval` must be at least 0"),
        ({"check_val_every_n_epoch": 0}, ValueError, "`check_val_every_n_epoch` must be at least 1, but got 0"),
        (
            {"check_val_every_n_epoch": None},
            TypeError,
            "`val_check_interval` must be an int or a duration if check_val",
        ),
        ({"num_sanity_val_steps": -2}, ValueError, "`num_sanity_val_steps` must be at least -1, but got -2"),
    ],
)
def test_impossible_numbers_are_refused_at_construction(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        FitLimits(**arguments)


@pytest.mark.parametrize(
    ("arguments", "epochs", "steps"),
    [
        ({}, 1000, INFINITE),
        ({"max_steps": 7}, INFINITE, 7),
        ({"max_epochs": -1}, INFINITE, INFINITE),
        ({"max_epochs": 3}, 3, INFINITE),
        ({"max_epochs": 3, "max_steps": 7}, 3, 7),
        ({"max_epochs": 0}, 0, INFINITE),
    ],
)
def test_which_limit_holds(arguments: dict[str, int], epochs: float, steps: float) -> None:
    limits = FitLimits(**arguments)
    assert (limits.epoch_limit, limits.step_limit) == (epochs, steps)


@pytest.mark.parametrize(
    ("interval", "num_batches", "expected"),
    [(1.0, 10, INFINITE), (1.0, INFINITE, INFINITE), (0.5, 10, 5), (0.25, 10, 2), (0.01, 10, 1), (3, 10, 3),
     (10, 10, 10), (3, INFINITE, 3)],
)  # fmt: skip
def test_batches_between_validations(interval: float, num_batches: float, expected: float) -> None:
    assert FitLimits(val_check_interval=interval).batches_between_validations(num_batches) == expected


def test_an_interval_longer_than_an_epoch_is_refused_unless_it_counts_across_epochs() -> None:
    message = r"`val_check_interval` must be at most the epoch's 4 batches, but got 5 \(int\)"
    with pytest.raises(ValueError, match=message):
        BareTrainer(Net(), max_epochs=1, val_check_interval=5).fit(Sized(make_batches(4)), Sized(make_batches(1)))
    limits = FitLimits(val_check_interval=5, check_val_every_n_epoch=None)
    assert limits.batches_between_validations(4) == 5


def test_a_share_of_an_epoch_of_unknown_length_is_refused() -> None:
    message = r"`val_check_interval` must be 1\.0 or an int for a loader of unknown length, but got 0\.5"
    with pytest.raises(ValueError, match=message):
        BareTrainer(Net(), max_epochs=1, val_check_interval=0.5).fit(Unsized(make_batches(4)), Sized(make_batches(1)))


def validated_after(num_batches: int, kind: Any = Sized, **limits: Any) -> list[int]:
    """After which batches, counted across epochs, validation ran."""
    after: list[int] = []
    callback = hooked(on_validation_start=lambda trainer, *_: after.append(trainer.progress.total_batches))
    trainer = BareTrainer(Net(), callbacks=[callback], **limits)
    trainer.fit(kind(make_batches(num_batches)), Sized(make_batches(1)))
    return after


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, [5, 10]),
        ({"val_check_interval": 2}, [2, 4, 7, 9]),
        ({"val_check_interval": 0.4}, [2, 4, 7, 9]),
        ({"val_check_interval": 1}, list(range(1, 11))),
        ({"val_check_interval": 3, "check_val_every_n_epoch": None}, [3, 6, 9]),
        ({"val_check_interval": 7, "check_val_every_n_epoch": None}, [7]),
        ({"check_val_every_n_epoch": 2}, [10]),
        ({"check_val_every_n_epoch": 2, "val_check_interval": 2}, [7, 9]),
        ({"limit_val_batches": 0}, []),
        ({"max_steps": 7}, [5]),
    ],
)
@pytest.mark.parametrize("kind", [Sized, Unsized])
def test_when_validation_runs(limits: dict[str, Any], expected: list[int], kind: Any) -> None:
    if kind is Unsized and limits.get("val_check_interval") == 0.4:
        pytest.skip("a share of an unknown length is refused")
    assert validated_after(5, kind, max_epochs=2, **limits) == expected


@given(num_batches=st.integers(1, 6), interval=st.integers(1, 8), num_epochs=st.integers(1, 3))
def test_an_interval_across_epochs_counts_every_batch(num_batches: int, interval: int, num_epochs: int) -> None:
    total = num_batches * num_epochs
    after = validated_after(
        num_batches, max_epochs=num_epochs, val_check_interval=interval, check_val_every_n_epoch=None
    )
    assert after == list(range(interval, total + 1, interval))


def train(stop_at: int | None = None, *, num_batches: int = 4, **limits: Any) -> tuple[int, int]:
    """Train, setting `should_stop` in a batch counted across epochs. Returns the batches and epochs that were run."""

    def stop(trainer: Any, *_: Any) -> None:
        trainer.fit_loop.should_stop |= trainer.progress.total_batches == stop_at

    trainer = BareTrainer(Net(), callbacks=[hooked(on_train_batch_start=stop)], **limits)
    trainer.fit(Sized(make_batches(num_batches)))
    return trainer.progress.total_batches, trainer.progress.current_epoch


@pytest.mark.parametrize(
    ("stop_at", "limits", "expected"),
    [
        (None, {"max_epochs": 3}, (12, 3)),
        (None, {"max_epochs": 0}, (0, 0)),
        (None, {"max_steps": 6}, (6, 1)),
        (None, {"max_steps": 8}, (8, 2)),
        (None, {"max_epochs": 1, "max_steps": 6}, (4, 1)),
        (None, {"max_steps": 3, "accumulate_grad_batches": 2}, (6, 1)),
        (None, {"max_epochs": 2, "limit_train_batches": 3}, (6, 2)),
        (None, {"max_epochs": 2, "limit_train_batches": 0.5}, (4, 2)),
        (None, {"max_epochs": 2, "limit_train_batches": 0}, (0, 0)),
        (1, {"max_epochs": 3}, (2, 0)),
        (3, {"max_epochs": 3}, (4, 1)),
        (1, {"max_epochs": 3, "min_epochs": 2}, (8, 2)),
        (1, {"max_epochs": 3, "min_steps": 6}, (6, 1)),
        (1, {"max_epochs": 3, "min_steps": 2}, (2, 0)),
    ],
)
def test_how_long_training_goes_on(stop_at: int | None, limits: dict[str, Any], expected: tuple[int, int]) -> None:
    assert train(stop_at, **limits) == expected


def test_validation_runs_before_a_stop_within_an_epoch() -> None:
    after: list[int] = []
    callback = hooked(
        on_train_batch_start=lambda trainer, *_: setattr(trainer.fit_loop, "should_stop", True),
        on_validation_start=lambda trainer, *_: after.append(trainer.progress.total_batches),
    )
    BareTrainer(Net(), callbacks=[callback], max_epochs=3).fit(Sized(make_batches(4)), Sized(make_batches(1)))
    assert after == [1]

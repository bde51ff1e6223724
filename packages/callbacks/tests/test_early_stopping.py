from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from recording_trainer import RecordingTrainer

from camshaft.callbacks import EarlyStopping, EarlyStoppingReason
from camshaft.callbacks.arguments import InvalidArgumentError, MissingMetricError


def epochs_until_stop(stopping: EarlyStopping, losses: list[float]) -> int | None:
    trainer = RecordingTrainer(".", callbacks=[stopping])
    trainer.begin()
    for epoch, loss in enumerate(losses):
        trainer.end_epoch(loss=loss)
        if trainer.should_stop:
            return epoch
    return None


@pytest.mark.parametrize(
    ("arguments", "losses", "stops_at"),
    [
        ({}, [3, 2, 1, 0], None),
        ({}, [1, 2, 2, 2, 0], 3),
        ({"patience": 1}, [1, 1], 1),
        ({"patience": 0}, [1, 1], 1),
        ({"patience": 2}, [3, 4, 2, 4, 4], 4),
        ({"patience": 1, "mode": "max"}, [1, 2, 1], 2),
        ({"patience": 1, "min_delta": 0.5}, [2.0, 1.5], 1),
        ({"patience": 1, "min_delta": 0.5}, [2.0, 1.25, 0.5], None),
        ({"patience": 1, "min_delta": 0.5, "mode": "max"}, [1.0, 1.75, 2.0], 2),
        ({"stopping_threshold": 0.5}, [1.0, 0.5, 0.4], 2),
        ({"stopping_threshold": 0.5, "mode": "max"}, [0.1, 0.6], 1),
        ({"divergence_threshold": 10}, [1, 10, 11], 2),
        ({"divergence_threshold": -1, "mode": "max"}, [0, -2], 1),
        ({}, [1.0, math.nan], 1),
        ({}, [1.0, -math.inf], 1),
        ({"check_finite": False, "patience": 2}, [1.0, math.nan, math.nan], 2),
    ],
)
def test_stops_in_the_epoch_in_which_it_must(
    arguments: dict[str, Any], losses: list[float], stops_at: int | None
) -> None:
    stopping = EarlyStopping("loss", **arguments)
    assert epochs_until_stop(stopping, losses) == stops_at
    assert (stopping.stopping_reason_message is None) == (stops_at is None)
    assert stopping.stopped_epoch == (stops_at or 0)


@given(
    losses=st.lists(st.sampled_from([0.0, 1.0, 2.0, 3.0]), max_size=12),
    patience=st.integers(1, 4),
    mode=st.sampled_from(["min", "max"]),
)
def test_stops_at_the_first_run_of_checks_without_a_new_best(losses: list[float], patience: int, mode: str) -> None:
    better = min if mode == "min" else max
    expected = next(
        (
            idx
            for idx in range(patience, len(losses))
            if better(losses[: idx - patience + 1]) == better(losses[: idx + 1])
        ),
        None,
    )
    assert epochs_until_stop(EarlyStopping("loss", patience=patience, mode=mode), losses) == expected


@pytest.mark.parametrize(
    ("arguments", "losses", "rule", "reason"),
    [
        (
            {"patience": 1},
            [1.0, 2.0],
            "PATIENCE_EXHAUSTED",
            r"loss did not improve in the last 1 checks \(best: 1\)\.$",
        ),
        ({"stopping_threshold": 2}, [1.0], "STOPPING_THRESHOLD", r"loss is 1, past its stopping threshold 2\.$"),
        ({"divergence_threshold": 0}, [1.0], "DIVERGENCE_THRESHOLD", r"loss is 1, past its divergence threshold 0\.$"),
        ({}, [math.nan], "NON_FINITE_METRIC", r"loss is nan, which is not finite \(best so far: inf\)\.$"),
    ],
)
def test_says_why(
    arguments: dict[str, Any], losses: list[float], rule: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    stopping = EarlyStopping("loss", verbose=True, **arguments)
    assert stopping.stopping_reason is EarlyStoppingReason.NOT_STOPPED
    epochs_until_stop(stopping, losses)
    assert stopping.stopping_reason.name == rule
    assert stopping.stopping_reason_message is not None and re.match(reason, stopping.stopping_reason_message)
    last_line = capsys.readouterr().out.splitlines()[-1]
    assert last_line == f"EarlyStopping, epoch {len(losses) - 1}: {stopping.stopping_reason_message}"


def test_says_what_improved_and_nothing_unasked(capsys: pytest.CaptureFixture[str]) -> None:
    epochs_until_stop(EarlyStopping("loss", verbose=True), [1.0, 0.5, 0.75])
    epochs_until_stop(EarlyStopping("loss"), [1.0, 0.5, 0.75])
    assert capsys.readouterr().out.splitlines() == [
        "EarlyStopping, epoch 0: loss improved to 1.",
        "EarlyStopping, epoch 1: loss improved to 0.5.",
    ]


@pytest.mark.parametrize(
    ("argument", "state", "checks_at_train_epoch_end"),
    [
        (None, {}, True),
        (None, {"num_val_batches": [], "check_val_every_n_epoch": 4}, True),
        (None, {"val_check_interval": 0.5}, False),
        (None, {"check_val_every_n_epoch": 2}, False),
        (True, {"val_check_interval": 0.5}, True),
        (False, {}, False),
    ],
)
def test_checks_when_the_metric_is_complete(
    argument: bool | None, state: dict[str, Any], checks_at_train_epoch_end: bool
) -> None:
    stopping = EarlyStopping("loss", stopping_threshold=1.0, check_on_train_epoch_end=argument)
    trainer = RecordingTrainer(".", callbacks=[stopping], **state)
    trainer.begin()
    trainer.validate(loss=0.5)
    assert trainer.should_stop is not checks_at_train_epoch_end
    trainer.should_stop = False
    trainer.end_epoch()
    assert trainer.should_stop is checks_at_train_epoch_end


@pytest.mark.parametrize("state", [{"sanity_checking": True}, {"fast_dev_run": True}])
def test_never_in_a_rehearsal(state: dict[str, Any]) -> None:
    stopping = EarlyStopping("loss", stopping_threshold=1.0, check_on_train_epoch_end=False)
    trainer = RecordingTrainer(".", callbacks=[stopping], **state)
    trainer.begin()
    trainer.validate(loss=0.5)
    assert not trainer.should_stop


def test_never_outside_of_fit() -> None:
    stopping = EarlyStopping("loss", stopping_threshold=1.0, check_on_train_epoch_end=False)
    trainer = RecordingTrainer(".", callbacks=[stopping])
    trainer.begin("validate")
    trainer.validate(loss=0.5)
    assert not trainer.should_stop


def test_a_missing_metric_is_an_error_that_names_the_others() -> None:
    with pytest.raises(MissingMetricError, match=r"'val_loss' .* in EarlyStopping; .* so far: 'loss'"):
        epochs_until_stop(EarlyStopping("val_loss"), [1.0])


def test_or_one_warning_if_not_strict() -> None:
    with pytest.warns(UserWarning, match=r"'val_loss' .* makes no check until then") as caught:
        assert epochs_until_stop(EarlyStopping("val_loss", strict=False), [1.0, 2.0]) is None
    assert len(caught) == 1


@pytest.mark.parametrize(("name", "value"), [("patience", -1), ("min_delta", -0.1), ("mode", "auto")])
def test_arguments_that_cannot_be_followed(name: str, value: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"`{name}` must be .* in EarlyStopping\."):
        EarlyStopping("loss", **{name: value})


def test_goes_on_where_its_memory_was_taken() -> None:
    losses = [1.0, 2.0, 2.0, 2.0]
    first, second = EarlyStopping("loss"), EarlyStopping("loss")
    assert epochs_until_stop(first, losses[:2]) is None
    second.load_state_dict(first.state_dict())
    assert second.best_score == torch.tensor(1.0)
    assert epochs_until_stop(second, losses[2:]) == 1


def test_memory_is_read_back_as_safely_as_any_checkpoint(tmp_path: Path) -> None:
    stopping = EarlyStopping("loss", patience=1)
    epochs_until_stop(stopping, [1.0, 2.0])
    torch.save(stopping.state_dict(), tmp_path / "state")
    assert torch.load(tmp_path / "state", weights_only=True) == stopping.state_dict()


def test_state_keys_tell_apart_what_differs() -> None:
    assert EarlyStopping("a").state_key == "EarlyStopping{'monitor': 'a', 'mode': 'min'}"  # as in Lightning
    keys = {EarlyStopping("a").state_key, EarlyStopping("b").state_key, EarlyStopping("a", mode="max").state_key}
    assert len(keys) == 3


def resumed(stopping: EarlyStopping) -> RecordingTrainer:
    trainer = RecordingTrainer(".", callbacks=[stopping])
    trainer.begin()
    stopping.on_train_start(trainer, None)
    return trainer


def test_a_run_that_goes_on_from_a_stop_stops_as_well(recwarn: pytest.WarningsRecorder) -> None:
    first, second = (EarlyStopping("loss", patience=1) for _ in range(2))
    assert epochs_until_stop(first, [1.0, 2.0]) == 1
    second.load_state_dict(first.state_dict())
    assert resumed(second).should_stop
    assert (second.stopped_epoch, second.stopping_reason_message) == (1, first.stopping_reason_message)
    [warning] = recwarn.list
    assert str(warning.message) == (
        f"EarlyStopping has stopped the run that is resumed, and stops it again: {first.stopping_reason_message} "
        "Change one of its arguments, such as `patience`, to train on."
    )
    assert not resumed(second).should_stop  # the next fit is none that was resumed


@pytest.mark.parametrize(
    "changes",
    [
        {"patience": 2},
        {"min_delta": 0.5},
        {"check_finite": False},
        {"stopping_threshold": 0},
        {"divergence_threshold": 9},
    ],
)
def test_one_with_other_rules_trains_on(changes: dict[str, Any]) -> None:
    first, second = EarlyStopping("loss", patience=1), EarlyStopping("loss", **({"patience": 1} | changes))
    epochs_until_stop(first, [1.0, 2.0])
    second.load_state_dict(first.state_dict())
    assert not resumed(second).should_stop
    assert (second.stopped_epoch, second.stopping_reason_message, second.wait_count) == (0, None, 1)


def test_a_state_without_rules_trains_on() -> None:
    first, second = EarlyStopping("loss", patience=1), EarlyStopping("loss", patience=1)
    epochs_until_stop(first, [1.0, 2.0])
    state = first.state_dict()
    del state["rules"]
    second.load_state_dict(state)
    assert not resumed(second).should_stop and second.stopping_reason is EarlyStoppingReason.PATIENCE_EXHAUSTED

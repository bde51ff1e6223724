"""Settings of a fit loop that are set after it was made: between two fits, and in hooks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from bare_parts import BareTrainer, Net, Sized, hooked, make_batches

from camshaft.loops import PredictLoop, TestLoop, ValidationLoop


def batches(num_batches: int) -> Sized:
    return Sized(make_batches(num_batches))


pytestmark = pytest.mark.filterwarnings("ignore:There is a `validation_step`")


def test_a_fit_trains_on_to_the_epochs_that_are_set_after_the_one_before() -> None:
    trainer = BareTrainer(Net(), max_epochs=2).fit(batches(3))
    trainer.fit_loop.max_epochs = 5
    trainer.fit(batches(3))
    assert (trainer.progress.current_epoch, trainer.global_step, trainer.fit_loop.max_epochs) == (5, 15, 5)


def test_a_fit_trains_on_to_the_steps_that_are_set() -> None:
    trainer = BareTrainer(Net(), max_steps=2).fit(batches(3))
    trainer.fit_loop.limits = trainer.fit_loop.limits.with_number("max_steps", 7)
    trainer.fit(batches(3))
    assert (trainer.global_step, trainer.fit_loop.limits.max_steps) == (7, 7)


def test_steps_that_are_set_in_a_hook_of_a_batch_end_the_epoch_there() -> None:
    def stop(trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        limits = trainer.fit_loop.limits
        trainer.fit_loop.limits = limits.with_number("max_steps", trainer.global_step + (batch_idx < 1))

    trainer = BareTrainer(Net(), max_epochs=3, callbacks=[hooked(on_train_batch_end=stop)]).fit(batches(6))
    assert trainer.global_step == 2


def test_minimum_and_maximum_may_contradict_each_other_until_the_next_fit_begins() -> None:
    trainer = BareTrainer(Net(), max_epochs=2)
    trainer.fit_loop.limits = trainer.fit_loop.limits.with_number("min_epochs", 4)
    with pytest.raises(ValueError, match=r"`min_epochs` must be at most max_epochs \(2\), but got 4"):
        trainer.fit(batches(1))
    trainer.fit_loop.max_epochs = 5

    def stop(trainer: Any, module: Any) -> None:
        trainer.fit_loop.should_stop = True

    trainer.callbacks = [hooked(on_train_epoch_end=stop)]
    trainer.fit(batches(1))
    assert trainer.progress.current_epoch == 4


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [("max_epochs", 1.5, TypeError), ("max_steps", -2, ValueError), ("min_steps", -1, ValueError)],
)
def test_an_impossible_number_is_refused_when_it_is_set(name: str, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=f"`{name}` must be"):
        BareTrainer(Net()).fit_loop.limits.with_number(name, value)


def test_a_fit_begins_in_the_epoch_that_is_set() -> None:
    trainer = BareTrainer(Net(), max_epochs=3)
    trainer.fit_loop.progress.current_epoch = 2
    trainer.fit(batches(2))
    assert (trainer.progress.current_epoch, trainer.global_step) == (3, 2)


@pytest.mark.parametrize("loop", [ValidationLoop, TestLoop, PredictLoop])
def test_a_limit_that_is_set_on_an_evaluation_loop_is_checked_and_counts(loop: type[Any]) -> None:
    made = loop()
    made.limit_batches = 2
    with pytest.raises(ValueError, match=r"`limit_.*_batches` must be at least 0"):
        made.limit_batches = -1
    assert made.limit_batches == 2


def test_validation_that_is_limited_to_nothing_in_a_hook_ends_at_once_and_begins_again_with_an_epoch() -> None:
    validated: list[int] = []

    def start(trainer: Any, module: Any) -> None:
        trainer.fit_loop.validation.limit_batches = 1 if trainer.progress.current_epoch == 2 else 0

    def note(trainer: Any, module: Any, *_: Any) -> None:
        validated.append(trainer.progress.current_epoch)

    callback = hooked(
        on_train_epoch_start=start,
        on_validation_batch_end=lambda trainer, module, outputs, batch, batch_idx: note(trainer, module),
    )
    trainer = BareTrainer(Net(), max_epochs=4, callbacks=[callback], limit_val_batches=0)
    trainer.fit(batches(1), batches(2))
    assert validated == [2]
    trainer = BareTrainer(Net(), max_epochs=4, callbacks=[callback])
    trainer.fit(batches(1), batches(2))
    assert validated == [2, 2, 2]  # of loaders that were counted before the epoch


def test_clipping_that_is_set_in_a_hook_holds_from_the_next_update_on() -> None:
    norms: list[float] = []

    def measure(trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        norms.append(float(torch.nn.utils.get_total_norm([each.grad for each in module.parameters()])))
        trainer.fit_loop.set_clipping(1e-3, None)

    BareTrainer(Net(), max_epochs=1, callbacks=[hooked(on_train_batch_end=measure)]).fit(batches(3))
    assert norms[0] > 1e-2 and norms[1:] == pytest.approx([1e-3, 1e-3], rel=1e-4)


def test_a_fit_loop_has_no_other_attributes() -> None:
    with pytest.raises(AttributeError, match="'FitLoop' object has no attribute 'max_epoch'"):
        BareTrainer(Net()).fit_loop.max_epoch = 3  # type: ignore[attr-defined]


def test_a_misspelt_setting_of_an_evaluation_is_refused() -> None:
    with pytest.raises(AttributeError, match="'ValidationLoop' object has no attribute 'limit_batch'"):
        BareTrainer(Net()).fit_loop.validation.limit_batch = 1  # type: ignore[attr-defined]


# what asks a fit to stop before its first batch


@pytest.mark.parametrize("hook", ["setup", "on_fit_start", "on_train_start", "on_train_epoch_start"])
def test_a_stop_that_is_asked_for_before_the_first_batch_is_heeded(hook: str) -> None:
    def stop(trainer: Any, module: Any, stage: str | None = None) -> None:
        trainer.fit_loop.should_stop = True

    callback = hooked(**{hook: (lambda trainer, module, stage: stop(trainer, module)) if hook == "setup" else stop})
    trainer = BareTrainer(Net(), max_epochs=3, callbacks=[callback]).fit(batches(2))
    assert trainer.global_step == 0


@pytest.mark.parametrize("hook", ["setup", "on_train_epoch_start"])
@pytest.mark.parametrize(("minimum", "num_steps"), [({"min_epochs": 2}, 4), ({"min_steps": 3}, 3)])
def test_a_stop_that_is_asked_for_in_setup_waits_for_the_minimum(
    hook: str, minimum: dict[str, int], num_steps: int
) -> None:
    def stop(trainer: Any, module: Any, *stage: str) -> None:
        trainer.fit_loop.should_stop = True

    callback = hooked(**{hook: (lambda trainer, module, stage: stop(trainer, module)) if hook == "setup" else stop})
    trainer = BareTrainer(Net(), max_epochs=3, callbacks=[callback], **minimum).fit(batches(2))
    assert trainer.global_step == num_steps


def test_a_stop_of_an_earlier_fit_is_forgotten() -> None:
    trainer = BareTrainer(Net(), max_epochs=2).fit(batches(1))
    trainer.fit_loop.should_stop, trainer.fit_loop.max_epochs = True, 3
    assert trainer.fit(batches(1)).progress.current_epoch == 3

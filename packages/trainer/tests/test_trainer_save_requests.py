"""A checkpoint that is asked for at any moment, by a hook or a signal, is one to go on from exactly."""

from __future__ import annotations

import random
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from asked_saves import (
    Calling,
    Validations,
    assert_resumes_exactly,
    end_of,
    fit,
    new_trainer,
    saving_at_line,
)
from trainer_parts import assert_same

from camshaft.strategies import read_checkpoint


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    trainer = new_trainer(tmp_path_factory.mktemp("undisturbed"))
    return end_of(fit(trainer), trainer)


HOOKS = [
    *["on_fit_start", "on_sanity_check_start", "on_sanity_check_end", "on_train_start", "on_train_epoch_start"],
    *["on_train_batch_start", "on_before_zero_grad", "on_before_backward", "on_after_backward"],
    *["on_before_optimizer_step", "on_train_batch_end", "on_train_epoch_end"],
    *["on_validation_start", "on_validation_epoch_start", "on_validation_batch_start", "on_validation_batch_end"],
    *["on_validation_epoch_end", "on_validation_end", "training_step", "validation_step"],
]


@pytest.mark.exhaustive
@pytest.mark.parametrize("hook", HOOKS)
def test_a_checkpoint_that_a_hook_asks_for_has_the_validation_of_its_batch_and_resumes_exactly(
    hook: str, undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    validations, numbers = Validations(), count()

    def ask() -> None:
        trainer.save_checkpoint(tmp_path / f"{next(numbers)}.ckpt")

    is_step = hook.endswith("_step") and not hook.startswith("on_")
    trainer = new_trainer(tmp_path, *([] if is_step else [Calling(hook, ask)]), validations)
    module = fit(trainer, {hook: ask} if is_step else None)
    assert_same(end_of(module, trainer), undisturbed, "while it was saved")

    # after the batches 2, 4 and 5 + 2, 5 + 4 of the ten
    assert list(validations.losses) == [2, 4, 7, 9]
    paths = [tmp_path / f"{number}.ckpt" for number in range(next(numbers))]
    for path in paths:
        checkpoint = read_checkpoint(path)
        progress = checkpoint["loops"]["fit"]
        num_batches = progress["earlier_batches"]["completed"] + progress["batches"]["completed"]
        latest = [loss for after, loss in validations.losses.items() if after <= num_batches]
        published = checkpoint["fit"]["metrics"]["published"]["to_callbacks"]
        assert_same([published["val_loss"]["tensor"]] if "val_loss" in published else [], latest[-1:], path.name)
        assert_resumes_exactly(path, undisturbed)


@pytest.fixture(scope="module")
def num_lines_of_training(tmp_path_factory: pytest.TempPathFactory) -> int:
    with saving_at_line(tmp_path_factory.mktemp("lines"), "on_train_start", "on_train_end", None) as (trainer, at_line):
        fit(trainer)
    return at_line.num_lines


@pytest.mark.parametrize("part", range(12))
def test_a_checkpoint_asked_for_between_any_two_lines_of_training_resumes_exactly(
    part: int, num_lines_of_training: int, undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    first, end = (num_lines_of_training * place // 12 for place in (part, part + 1))
    line = random.SystemRandom().randrange(first, end)
    with saving_at_line(tmp_path, "on_train_start", "on_train_end", line) as (trainer, at_line):
        module = fit(trainer)
    assert_same(end_of(module, trainer), undisturbed, f"while it was saved, at {at_line.where}")
    assert_resumes_exactly(tmp_path / "asked.ckpt", undisturbed, f"at {at_line.where}")

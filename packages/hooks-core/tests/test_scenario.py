from __future__ import annotations

from typing import Any

import pytest

from camshaft.hooks_core import CATALOGUE
from camshaft.hooks_core.conformance import FEATURES, SCENARIOS, Scenario
from camshaft.hooks_core.spec import VERBS, ZeroGrad


def test_names_are_unique_and_every_verb_and_feature_is_tried() -> None:
    assert len({scenario.name for scenario in SCENARIOS}) == len(SCENARIOS)
    assert {scenario.verb for scenario in SCENARIOS} == set(VERBS)
    assert frozenset.union(*(scenario.features for scenario in SCENARIOS)) == set(FEATURES)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_a_scenario_that_needs_no_feature(verb: str) -> None:
    assert any(scenario.verb == verb and not scenario.features for scenario in SCENARIOS)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_scenario_names_hooks_of_today_only(scenario: Scenario) -> None:
    named = {*scenario.expected_counts(), *scenario.override, *filter(None, [scenario.raise_in])}
    assert all(CATALOGUE[name].is_current for name in named)
    assert scenario.description


def counts(zero_grad: ZeroGrad | None = None, **settings: object) -> dict[str, int]:
    return Scenario(name="any", verb="fit", description="", **settings).expected_counts(zero_grad)  # type: ignore[arg-type]


def test_counts_of_plain_training() -> None:
    found = counts(num_epochs=2, num_batches=3)
    assert found["setup"] == found["teardown"] == found["on_train_start"] == 1
    assert found["on_train_epoch_start"] == found["on_train_epoch_end"] == 2
    assert found["on_train_batch_start"] == found["training_step"] == found["on_before_optimizer_step"] == 6
    assert found["validation_step"] == found["on_sanity_check_start"] == found["on_exception"] == 0


def test_a_short_last_window_is_an_update_of_its_own() -> None:
    found = counts(num_epochs=2, num_batches=5, accumulate_grad_batches=2)
    assert (found["on_before_optimizer_step"], found["on_before_backward"]) == (6, 10)


def test_a_skipped_batch_starts_and_nothing_more() -> None:
    found = counts(num_epochs=2, num_batches=3, skip_at=1)
    assert (found["on_train_batch_start"], found["training_step"], found["on_train_epoch_end"]) == (5, 4, 2)


def test_a_batch_without_loss_ends_without_update() -> None:
    found = counts(num_epochs=2, num_batches=3, no_loss_at=0)
    assert (found["training_step"], found["on_before_backward"], found["on_train_batch_end"]) == (6, 4, 6)


@pytest.mark.parametrize(
    ("zero_grad", "expected"), [(None, 4), ("before_training_step", 6), ("after_optimizer_step", 4)]
)
def test_a_batch_without_loss_is_zeroed_only_where_zeroing_comes_first(zero_grad: Any, expected: int) -> None:
    assert counts(zero_grad, num_epochs=2, num_batches=3, no_loss_at=0)["on_before_zero_grad"] == expected
    assert counts(zero_grad, num_epochs=2, num_batches=5, accumulate_grad_batches=2)["on_before_zero_grad"] == 6


def test_validations_and_the_sanity_check_add_up() -> None:
    found = counts(num_batches=4, num_val_batches=3, val_check_interval=2, num_sanity_val_batches=1)
    assert (found["on_validation_start"], found["validation_step"]) == (3, 7)


def test_a_run_that_raises_has_no_counts() -> None:
    assert counts(raise_in="on_train_start") == {}

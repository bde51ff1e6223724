"""The same runs on Lightning and on camshaft: hooks, arguments, steps, metrics and weights are the same to the bit.

What differs on purpose stands in one table, `comparison.differences.DIFFERENCES`, each with its reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from comparison.comparing import Mismatch, compare, is_comparable
from comparison.configuration import Configuration
from comparison.difference import Difference
from comparison.differences import DIFFERENCES
from comparison.drawing import evaluations, fits, savings
from hypothesis import HealthCheck, given, settings

from camshaft.loops.training_epoch import TrainingEpoch

# the same draws in every run, so that the gate says the same of the same code; more examples find more
_DRAWN = settings(
    deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)


@settings(_DRAWN, max_examples=60)
@given(fits())
def test_fit_is_the_same(configuration: Configuration) -> None:
    compare(configuration)


@settings(_DRAWN, max_examples=20)
@given(evaluations())
def test_validate_test_and_predict_are_the_same(configuration: Configuration) -> None:
    compare(configuration)


@settings(_DRAWN, max_examples=20)
@given(savings())
def test_checkpoints_resumed_runs_and_early_stopping_are_the_same(configuration: Configuration) -> None:
    compare(configuration)


@pytest.mark.parametrize("difference", DIFFERENCES, ids=lambda difference: difference.name)
def test_every_difference_of_the_table_shows(difference: Difference) -> None:
    others = [other for other in DIFFERENCES if other is not difference]
    with pytest.raises(Mismatch):
        compare(difference.witness, others)
    if is_comparable(difference.witness):
        compare(difference.witness)


def test_a_hook_in_the_wrong_place_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    run: Callable[[Any], bool] = TrainingEpoch.run

    def announce_twice(self: Any) -> bool:
        self._run.hooks.on_train_epoch_start()
        return run(self)

    compare(Configuration())
    monkeypatch.setattr(TrainingEpoch, "run", announce_twice)
    with pytest.raises(Mismatch, match="on_train_epoch_start"):
        compare(Configuration())


def test_a_weight_that_differs_in_one_bit_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from camshaft.strategies import SingleDeviceStrategy

    step = SingleDeviceStrategy.optimizer_step

    def almost(self: Any, optimizer: Any, closure: Any = None) -> Any:
        result = step(self, optimizer, closure)
        weight = optimizer.param_groups[0]["params"][0].data
        weight.view(-1)[0] = weight.view(-1)[0].nextafter(weight.new_tensor(float("inf")))
        return result

    monkeypatch.setattr(SingleDeviceStrategy, "optimizer_step", almost)
    with pytest.raises(Mismatch):
        compare(Configuration())

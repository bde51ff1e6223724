"""Accumulation, splits, several optimizers and frequencies train as the same loop written by hand, bit for bit."""

from __future__ import annotations

import attrs
import pytest
from bare_parts import same_bits, seeded, weights
from hypothesis import given, settings
from sequence_parts import Plan, Recurrent, fit, plans, train_by_hand

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@settings(max_examples=80, deadline=None)
@given(plans())
def test_weights_and_updates_are_those_of_a_loop_by_hand(plan: Plan) -> None:
    by_hand, by_loop = seeded(Recurrent, plan), seeded(Recurrent, plan)
    num_updates = train_by_hand(by_hand)
    trainer = fit(by_loop, plan)
    assert trainer.global_step == num_updates
    assert same_bits(weights(by_loop), weights(by_hand))
    assert all(parameter.requires_grad for parameter in by_loop.parameters())


@settings(max_examples=60, deadline=None)
@given(plans())
def test_the_place_of_zeroing_makes_no_difference_to_the_weights(plan: Plan) -> None:
    results = []
    for zero_grad in ("before_training_step", "before_backward", "after_optimizer_step"):
        module = seeded(Recurrent, plan)
        fit(module, attrs.evolve(plan, zero_grad=zero_grad))
        results.append(weights(module))
    assert same_bits(results[0], results[1]) and same_bits(results[1], results[2])

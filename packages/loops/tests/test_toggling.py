"""Letting one optimizer's parameters alone require gradients."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD

from camshaft.loops.optimization.toggling import OptimizerToggle


@settings(deadline=None)
@given(
    st.lists(st.booleans(), min_size=4, max_size=4),
    st.lists(st.sets(st.integers(0, 3), min_size=1), min_size=1, max_size=3),
    st.data(),
)
def test_only_parameters_of_other_optimizers_alone_are_frozen_and_all_get_back_what_they_had(
    requires_grad: list[bool], owned: list[set[int]], data: st.DataObject
) -> None:
    parameters = [nn.Parameter(torch.ones(1), requires_grad=required) for required in requires_grad]
    optimizers = [SGD([parameters[idx] for idx in sorted(own)], lr=0.1) for own in owned]
    toggle = OptimizerToggle(optimizers)
    for at_work in data.draw(st.lists(st.integers(0, len(owned) - 1), max_size=3)):  # without untoggling in between
        toggle.toggle(optimizers[at_work])
        others = set().union(*owned[:at_work], *owned[at_work + 1 :]) - owned[at_work]
        expected = [required and idx not in others for idx, required in enumerate(requires_grad)]
        assert [parameter.requires_grad for parameter in parameters] == expected
    toggle.untoggle()
    toggle.untoggle()
    assert [parameter.requires_grad for parameter in parameters] == requires_grad


def test_parameters_that_an_optimizer_got_later_are_frozen_too() -> None:
    one, other = nn.Linear(1, 1), nn.Linear(1, 1)
    optimizers = [SGD(one.parameters(), lr=0.1), SGD([other.weight], lr=0.1)]
    toggle = OptimizerToggle(optimizers)
    optimizers[1].add_param_group({"params": [other.bias]})
    toggle.toggle(optimizers[0])
    assert not other.bias.requires_grad and one.bias.requires_grad
    toggle.untoggle()
    assert other.bias.requires_grad

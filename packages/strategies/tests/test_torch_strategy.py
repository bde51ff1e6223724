"""Gradient clipping of plain gradients; that of sharded ones is checked with real processes, by test_sharded.py."""

from __future__ import annotations

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import SGD

from camshaft.strategies.torch_strategy import clip_gradients


class OwnTensor(torch.Tensor):
    """A gradient of a subclass, which torch clips one by one."""


def optimizer_with_gradients(seed: int, *kinds: str) -> SGD:
    """Return an optimizer of parameters with a gradient of each kind, and one without."""
    generator = torch.Generator().manual_seed(seed)
    parameters = []
    for number, kind in enumerate(kinds):
        dtype = {"double": torch.float64, "half": torch.bfloat16}.get(kind, torch.float32)
        parameter = nn.Parameter(torch.zeros(number + 1, 3, dtype=dtype))
        gradient = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(dtype) * 10
        if kind == "own":
            gradient = gradient.as_subclass(OwnTensor)
        elif kind == "with a graph":
            gradient = gradient.requires_grad_() * 2
        elif kind == "not finite":
            gradient[0, 0] = float("inf")
        parameter.grad = gradient
        parameters.append(parameter)
    return SGD([{"params": parameters}, {"params": [nn.Parameter(torch.zeros(2))]}], lr=0.1)


def gradients(optimizer: SGD) -> list[torch.Tensor | None]:
    return [parameter.grad for group in optimizer.param_groups for parameter in group["params"]]


def assert_clipped_as_by_torch(seed: int, kinds: list[str], clip_val: float, algorithm: str) -> None:
    ours, theirs = optimizer_with_gradients(seed, *kinds), optimizer_with_gradients(seed, *kinds)
    before = gradients(ours)
    clip_gradients(ours, clip_val, algorithm)
    clip = {"norm": clip_grad_norm_, "value": clip_grad_value_}[algorithm]
    if kinds:  # by value, torch refuses to clip nothing
        clip([parameter for group in theirs.param_groups for parameter in group["params"]], clip_val)
    assert all(one is other for one, other in zip(gradients(ours), before, strict=True))  # in place
    for one, other in zip(gradients(ours), gradients(theirs), strict=True):
        if one is None or other is None:
            assert one is other
        else:
            torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


@settings(deadline=None)
@given(
    st.integers(0, 100),
    st.lists(st.sampled_from(["single", "double", "half", "own", "not finite"]), max_size=5),
    st.floats(1e-3, 100),
    st.sampled_from(["norm", "value"]),
)
def test_gradients_are_clipped_as_torch_does_it(seed: int, kinds: list[str], clip_val: float, algorithm: str) -> None:
    assert_clipped_as_by_torch(seed, kinds, clip_val, algorithm)


@settings(deadline=None)
@given(st.integers(0, 100), st.integers(1, 40), st.floats(1e-3, 100), st.booleans(), st.sampled_from(["norm", "value"]))
def test_many_gradients_alike_are_clipped_as_torch_does_it(
    seed: int, count: int, clip_val: float, half: bool, algorithm: str
) -> None:
    assert_clipped_as_by_torch(seed, ["half" if half else "single"] * count, clip_val, algorithm)


@pytest.mark.parametrize("algorithm", ["norm", "value"])
def test_gradients_that_have_a_graph_are_clipped_as_torch_does_it(algorithm: str) -> None:
    assert_clipped_as_by_torch(0, ["single", "with a graph"], 0.5, algorithm)


def test_another_algorithm_is_refused() -> None:
    message = "`algorithm` must be 'norm' or 'value', but got 'l1' (str) in clip_gradients. Pass one of the two."
    with pytest.raises(ValueError, match=re.escape(message)):
        clip_gradients(optimizer_with_gradients(0, "single"), 1.0, "l1")

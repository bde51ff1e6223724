"""Clipping of plain gradients; that of sharded ones is checked with real processes, by test_sharded.py."""

from __future__ import annotations

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import SGD

from camshaft.strategies.clipping import clip_gradients


def optimizer_with_gradients(seed: int, dtype: torch.dtype = torch.float32) -> SGD:
    generator = torch.Generator().manual_seed(seed)
    parameters = [nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in ((3, 2), (4,), (1,))]
    for parameter in parameters[:2]:  # the last has none
        parameter.grad = torch.randn(parameter.shape, generator=generator).to(dtype) * 10
    return SGD([{"params": parameters[:1]}, {"params": parameters[1:]}], lr=0.1)


def gradients(optimizer: SGD) -> list[torch.Tensor | None]:
    return [parameter.grad for group in optimizer.param_groups for parameter in group["params"]]


@settings(deadline=None)
@given(st.integers(0, 100), st.floats(1e-3, 100), st.sampled_from(["norm", "value"]))
def test_plain_gradients_are_clipped_as_torch_does_it(seed: int, clip_val: float, algorithm: str) -> None:
    ours, theirs = optimizer_with_gradients(seed), optimizer_with_gradients(seed)
    clip_gradients(ours, clip_val, algorithm)
    clip = {"norm": clip_grad_norm_, "value": clip_grad_value_}[algorithm]
    clip([parameter for group in theirs.param_groups for parameter in group["params"]], clip_val)
    for one, other in zip(gradients(ours), gradients(theirs), strict=True):
        assert (one is None and other is None) or torch.equal(one, other)


def test_another_algorithm_is_refused() -> None:
    message = "`algorithm` must be 'norm' or 'value', but got 'l1' (str) in clip_gradients. Pass one of the two."
    with pytest.raises(ValueError, match=re.escape(message)):
        clip_gradients(optimizer_with_gradients(0), 1.0, "l1")

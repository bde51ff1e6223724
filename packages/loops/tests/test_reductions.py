"""Epoch reductions agree with Python's own arithmetic, for any number of values, weights and kinds of numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from camshaft.loops.metrics.values import BLOCK_SIZE, Reduction

VALUES = st.floats(-1e6, 1e6, width=32)
SAMPLES = st.lists(st.tuples(VALUES, st.integers(1, 512)), min_size=1, max_size=3 * BLOCK_SIZE)
KINDS = st.sampled_from(["tensors", "numbers", "both"])


TINY = 1e-40
"""Below the normal numbers of single precision (1.2e-38) there is no relative accuracy to expect."""


def reduce(name, samples, kind, dtype=torch.float32):
    reduction = Reduction(name, "x", inspect=lambda tensors: None)
    for position, (value, weight) in enumerate(samples):
        as_tensor = kind == "tensors" or (kind == "both" and position % 2 == 0)
        reduction.add(torch.tensor(value, dtype=dtype) if as_tensor else value, weight)
    return reduction.result()


@settings(deadline=None, max_examples=60)
@given(SAMPLES, KINDS)
def test_a_mean_is_weighted(samples, kind) -> None:
    values, weights = zip(*samples, strict=True)
    expected = np.average(np.array(values, dtype=np.float64), weights=weights)
    scale = max(abs(value) for value in values)
    assert float(reduce("mean", samples, kind)) == pytest.approx(expected, rel=1e-6, abs=max(scale * 1e-6, TINY))


@settings(deadline=None, max_examples=60)
@given(SAMPLES, KINDS)
def test_a_sum_ignores_weights(samples, kind) -> None:
    values = [value for value, _ in samples]
    scale = sum(abs(value) for value in values)
    assert float(reduce("sum", samples, kind)) == pytest.approx(
        math.fsum(values), rel=1e-6, abs=max(scale * 1e-6, TINY)
    )


@settings(deadline=None, max_examples=60)
@given(SAMPLES, KINDS)
def test_extremes_are_exact(samples, kind) -> None:
    values = [value for value, _ in samples]
    assert float(reduce("max", samples, kind)) == max(values)
    assert float(reduce("min", samples, kind)) == min(values)


@settings(deadline=None, max_examples=30)
@given(SAMPLES, KINDS)
def test_a_function_gets_every_value_in_order(samples, kind) -> None:
    values = [value for value, _ in samples]
    seen = []

    def last(tensor: torch.Tensor) -> torch.Tensor:
        seen.append(tensor.tolist())
        return tensor[-1]

    assert float(reduce(last, samples, kind)) == values[-1]
    assert seen == [values]


@pytest.mark.parametrize("name", ["mean", "sum", "max", "min", lambda tensor: tensor.median()])
def test_reading_a_result_early_does_not_change_the_final_one(name) -> None:
    values = [float(value) for value in range(2 * BLOCK_SIZE + 7)]
    reduction = Reduction(name, "x", inspect=lambda tensors: None)
    for value in values:
        reduction.add(torch.tensor(value), 3)
        if value % 50 == 0:
            reduction.result()
    assert float(reduction.result()) == float(reduce(name, [(value, 3) for value in values], "tensors"))


@pytest.mark.parametrize("name", ["mean", "sum", "max", "min", lambda tensor: tensor.median()])
def test_nothing_reduces_to_none(name) -> None:
    assert Reduction(name, "x", inspect=lambda tensors: None).result() is None


@pytest.mark.parametrize("kind", ["tensors", "numbers", "both"])
@pytest.mark.parametrize("name", ["mean", "sum", "max", "min"])
def test_not_a_number_is_never_lost(name, kind) -> None:
    for position in range(4):
        samples = [(math.nan if idx == position else float(idx), 1) for idx in range(4)]
        assert math.isnan(float(reduce(name, samples, kind)))


def test_half_precision_is_added_up_in_a_wider_type() -> None:
    result = reduce("mean", [(1.0, 1)] * 5000, "tensors", dtype=torch.float16)
    assert (float(result), result.dtype) == (1.0, torch.float32)


def test_large_integers_are_added_up_exactly() -> None:
    result = reduce("sum", [(2**40 + 1, 1)] * 300, "tensors", dtype=torch.int64)
    assert int(result) == 300 * (2**40 + 1)


def test_truth_values_have_a_mean() -> None:
    assert float(reduce("mean", [(True, 1), (False, 3)], "tensors", dtype=torch.bool)) == 0.25


def test_precision_of_the_result_is_that_of_the_values() -> None:
    assert reduce("mean", [(0.1, 1)] * 3, "tensors").dtype == torch.float32
    assert reduce("mean", [(0.1, 1)] * 3, "tensors", dtype=torch.float64).dtype == torch.float64


def test_many_small_values_do_not_vanish() -> None:
    samples = [(1e8, 1)] + [(1.0, 1)] * 5000
    assert float(reduce("sum", samples, "tensors", dtype=torch.float64)) == 1e8 + 5000


@pytest.mark.parametrize(
    ("function", "name"),
    [(torch.mean, "mean"), (torch.sum, "sum"), (sum, "sum"), (torch.max, "max"), (max, "max"), (torch.min, "min")],
)
def test_functions_of_torch_and_python_stand_for_their_names(function, name) -> None:
    samples = [(float(value), value + 1) for value in range(5)]
    assert reduce(function, samples, "tensors") == reduce(name, samples, "tensors")
    assert Reduction(function, "x", inspect=print).function is None


def test_an_unknown_reduction_is_refused() -> None:
    with pytest.raises(ValueError, match=r"`reduce_fx` must be 'mean', .*, but got 'median' \(str\) in log\('x'\)"):
        Reduction("median", "x", inspect=print)
    with pytest.raises(TypeError, match=r"`reduce_fx` must be .*, but got 3 \(int\)"):
        Reduction(3, "x", inspect=print)
    with pytest.raises(TypeError, match=r"`reduce_fx` must be .*, but got \[\] \(list\)"):
        Reduction([], "x", inspect=print)


def test_a_function_must_return_one_number() -> None:
    reduction = Reduction(lambda tensor: tensor, "x", inspect=lambda tensors: None)
    reduction.add(1.0, 1)
    reduction.add(2.0, 1)
    with pytest.raises(ValueError, match="`reduce_fx` must be a function that returns one number"):
        reduction.result()


def test_a_function_may_return_a_python_number() -> None:
    assert reduce(lambda tensor: len(tensor), [(1.0, 1)] * 3, "tensors") == 3.0


def test_a_mean_of_no_samples_is_not_a_number() -> None:
    assert math.isnan(float(reduce("mean", [(1.0, 0)], "tensors")))
    assert math.isnan(float(reduce("mean", [(1.0, 0)], "numbers")))

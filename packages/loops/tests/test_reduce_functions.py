"""Reduction functions in a checkpoint."""

from __future__ import annotations

import pytest
import torch

from camshaft.loops.metrics.reductions import (
    UNKNOWN_FUNCTION,
    is_user_function,
    load_function,
    reduction_name,
    save_function,
)

NAMED = ["mean", "avg", "sum", "max", "min", torch.mean, torch.sum, sum, torch.max, max, torch.min, min]


@pytest.mark.parametrize("reduce_fx", NAMED)
def test_what_has_a_name_comes_back_as_it_was(reduce_fx: object) -> None:
    saved = save_function(reduce_fx)
    assert type(saved) is str
    assert load_function(saved) is reduce_fx or load_function(saved) == reduce_fx
    assert not is_user_function(reduce_fx)


def test_a_function_of_ones_own_is_not_saved() -> None:
    assert save_function(torch.std) is None and is_user_function(torch.std)
    assert load_function(None) is UNKNOWN_FUNCTION
    assert save_function(UNKNOWN_FUNCTION) is None, "if it is saved again before it is known"


def test_what_stands_for_an_unknown_function_computes_nothing() -> None:
    assert "user's function" in repr(UNKNOWN_FUNCTION)
    with pytest.raises(RuntimeError, match="UnknownFunction must not be called"):
        UNKNOWN_FUNCTION(torch.ones(2))


def test_no_name_is_looked_up_but_those_known() -> None:
    assert load_function("os.system") == "os.system"
    assert reduction_name("os.system") is None and reduction_name([]) is None

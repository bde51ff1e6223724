"""Reduction functions in the options of a call, and in a checkpoint."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from camshaft.loops.metrics.entry import LogOptions
from camshaft.loops.metrics.values import UNKNOWN_FUNCTION, Reduction, reduction_name

NAMED = ["mean", "avg", "sum", "max", "min", torch.mean, torch.sum, sum, torch.max, max, torch.min, min]


def options_of(reduce_fx: Any) -> LogOptions:
    return LogOptions.resolve("x", (False, True, None, True, reduce_fx, None, True))


@pytest.mark.parametrize("reduce_fx", NAMED)
def test_what_has_a_name_is_saved_by_it_and_comes_back(reduce_fx: object) -> None:
    options = options_of(reduce_fx)
    saved = options.plain()._asdict()
    assert saved["reduce_fx"] == reduction_name(reduce_fx) and type(saved["reduce_fx"]) is str
    assert LogOptions(**saved) == options


def test_a_function_of_ones_own_is_not_saved() -> None:
    plain = options_of(torch.std).plain()
    assert plain == options_of(torch.std)._replace(reduce_fx=UNKNOWN_FUNCTION)
    assert plain.plain() == plain, "if it is saved again before it is known"


def test_an_unknown_function_computes_nothing_and_cannot_be_asked_for() -> None:
    reduction = Reduction(UNKNOWN_FUNCTION, "x", inspect=lambda tensors: None)
    reduction.add(1.0, 1)
    assert reduction.result() is None
    with pytest.raises(ValueError, match="`reduce_fx` must be 'mean'"):
        Reduction(options_of(UNKNOWN_FUNCTION).reduce_fx, "x", inspect=lambda tensors: None)


def test_no_name_is_looked_up_but_those_known() -> None:
    assert reduction_name("os.system") is None and reduction_name([]) is None
    with pytest.raises(ValueError, match="`reduce_fx` must be 'mean'"):
        Reduction("os.system", "x", inspect=lambda tensors: None)

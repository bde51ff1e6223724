"""Reduction functions in the options of a call, and in a checkpoint."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import torch

from camshaft.loops.metrics.entry import LogOptions
from camshaft.loops.metrics.values import UNKNOWN_FUNCTION, reduction_name

NAMED = ["mean", "avg", "sum", "max", "min", torch.mean, torch.sum, sum, torch.max, max, torch.min, min]


def options_of(reduce_fx: Any) -> LogOptions:
    return LogOptions.resolve("x", (False, True, None, True, reduce_fx, None, True))


@pytest.mark.parametrize("reduce_fx", NAMED)
def test_what_has_a_name_is_saved_by_it_and_comes_back(reduce_fx: object) -> None:
    options = options_of(reduce_fx)
    saved = options.state_dict()
    assert saved["reduce_fx"] == reduction_name(reduce_fx) and type(saved["reduce_fx"]) is str
    assert LogOptions.from_state(saved) == options


def test_a_function_of_ones_own_is_not_saved() -> None:
    saved = options_of(torch.std).state_dict()
    assert saved["reduce_fx"] is None
    loaded = LogOptions.from_state(saved)
    assert loaded == attrs.evolve(options_of(torch.std), reduce_fx=UNKNOWN_FUNCTION)
    assert loaded.state_dict() == saved, "if it is saved again before it is known"


def test_what_stands_for_an_unknown_function_computes_nothing() -> None:
    assert "user's function" in repr(UNKNOWN_FUNCTION)
    with pytest.raises(RuntimeError, match="Pass it to `log` again"):
        UNKNOWN_FUNCTION(torch.ones(2))


def test_no_name_is_looked_up_but_those_known() -> None:
    saved = options_of("mean").state_dict() | {"reduce_fx": "os.system"}
    assert LogOptions.from_state(saved).reduce_fx == "os.system"
    assert reduction_name("os.system") is None and reduction_name([]) is None

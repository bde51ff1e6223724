from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from camshaft.callbacks.arguments import InvalidArgumentError, check_installed
from camshaft.callbacks.loggers.logged_values import flat, jsonable, named, numbers_by_name


@dataclass
class Net:
    depth: int = 2
    betas: tuple[float, float] = (0.9, 0.99)


def test_nested_hyperparameters_are_named_by_their_path() -> None:
    params = {"net": Net(), "opt": Namespace(lr=0.1, extra={}), "data": [{"n": 1}, {"n": 2}], "sizes": [1, 2], 5: None}
    assert flat(params) == {
        "net/depth": 2,
        "net/betas": "[0.9, 0.99]",
        "opt/lr": 0.1,
        "opt/extra": "{}",
        "data/0/n": 1,
        "data/1/n": 2,
        "sizes": "[1, 2]",
        "5": None,
    }


leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
names = st.text("abc", min_size=1, max_size=3)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(
        names, st.recursive(leaves, lambda inner: st.dictionaries(names, inner, min_size=1, max_size=3)), max_size=3
    )
)
def test_no_leaf_is_lost_or_changed(params: dict[str, Any]) -> None:
    found = flat(params)
    assert json.loads(json.dumps(jsonable(params))) == params
    for path, leaf in found.items():
        value: Any = params
        for name in path.split("/"):
            value = value[name]
        assert value == leaf and type(value) is type(leaf)


def test_what_json_does_not_know_is_readable() -> None:
    values = [torch.tensor(2), numpy.float32(0.5), numpy.float64(0.25), nn_function, Net, Path("x"), torch.float16]
    expected = [2, 0.5, 0.25, f"{__name__}.nn_function", f"{__name__}.Net", "x", "torch.float16"]
    assert jsonable(values) == expected
    assert [type(value) for value in jsonable(values)] == [type(value) for value in expected]


def nn_function() -> None:
    """A hyperparameter that is a function."""


def test_numbers_are_taken_from_tensors_and_named_with_the_prefix() -> None:
    metrics = {"a": torch.tensor(1.5), "b": numpy.int64(2), "c": 3}
    assert numbers_by_name(metrics, "x-", "L") == {"x-a": 1.5, "x-b": 2, "x-c": 3}
    with pytest.raises(InvalidArgumentError, match=r"`metrics\['a'\]` must be a number, but got None .* in L"):
        numbers_by_name({"a": None}, "", "L")
    with pytest.raises(InvalidArgumentError, match=r"`params` must be hyperparameters by name, but got 3 \(int\)"):
        named(3)  # type: ignore[arg-type]


def test_a_missing_library_is_said_with_the_extra_that_brings_it() -> None:
    with pytest.raises(
        ModuleNotFoundError, match=r"MyLogger needs `no_such_lib`.*pip install no_such_lib`.*extra `nsl`"
    ):
        check_installed("no_such_lib", "nsl", "MyLogger")

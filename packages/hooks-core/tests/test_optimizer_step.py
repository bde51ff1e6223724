from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from camshaft.hooks_core.support.optimizer_step import needs_closure, replace_step


class Adding:
    """As much of an optimizer as there is to its step."""

    def __init__(self) -> None:
        self.steps: list[Any] = []

    def step(self, closure: Any = None, *, scale: int = 1) -> Any:
        """The step."""
        self.steps.append((closure, scale))
        return "stepped"


class Evaluating(Adding):
    def step(self, closure: Any, *, scale: int = 1) -> Any:
        return super().step(closure, scale=scale)


def twice(original: Callable[..., Any]) -> Callable[..., Any]:
    def step(optimizer: Adding, *args: Any, **kwargs: Any) -> Any:
        assert isinstance(optimizer, Adding)
        original(*args, **kwargs)
        return original(*args, **kwargs)

    return step


@pytest.mark.parametrize(("kind", "expected"), [(Adding, False), (Evaluating, True)])
def test_a_closure_is_needed_where_step_has_no_default_for_it_also_once_it_is_replaced(
    kind: type[Adding], expected: bool
) -> None:
    optimizer: Any = kind()
    assert needs_closure(optimizer) is expected
    replace_step(optimizer, twice)
    assert needs_closure(optimizer) is expected


def test_another_step_takes_the_place_under_its_name_and_signature_until_it_is_given_back() -> None:
    optimizer: Any = Adding()
    before = optimizer.step
    before.__func__.mark = "of a scheduler"
    signature = inspect.signature(before)
    restore = replace_step(optimizer, twice)
    assert (optimizer.step.__name__, optimizer.step.__doc__, optimizer.step.mark) == (
        "step",
        "The step.",
        "of a scheduler",
    )
    assert inspect.signature(optimizer.step) == signature
    assert optimizer.step("a", scale=2) == "stepped" and optimizer.steps == [("a", 2)] * 2
    restore()
    assert "step" not in vars(optimizer) and optimizer.step == before


def test_one_that_was_replaced_before_comes_back() -> None:
    optimizer: Any = Adding()
    outer = replace_step(optimizer, twice)
    of_outer = optimizer.step
    inner = replace_step(optimizer, twice)
    optimizer.step()
    assert len(optimizer.steps) == 4
    inner()
    assert optimizer.step is of_outer
    outer()
    assert "step" not in vars(optimizer)


def test_what_somebody_replaced_since_is_left_alone() -> None:
    optimizer: Any = Adding()
    restore = replace_step(optimizer, twice)
    optimizer.step = own = lambda: None
    restore()
    assert optimizer.step is own

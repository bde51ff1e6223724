from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from camshaft.hooks_core.dispatch.implementation import (
    code_of,
    mentions_method,
    returns_anything,
    strings_in,
    uses_parameter,
)


@pytest.mark.parametrize("method", [len, dict, print])
def test_what_has_no_code_may_do_anything(method: Callable[..., Any]) -> None:
    assert code_of(method) is None
    assert uses_parameter(method, "closure")
    assert returns_anything(method)


def test_a_parameter_is_used_where_it_is_read_also_inside_a_closure() -> None:
    def ignores(optimizer, closure):
        optimizer.step()

    def assigns(optimizer, closure):
        closure = None  # noqa: F841
        optimizer.step()

    def passes(optimizer, closure):
        optimizer.step(closure)

    def passes_both(closure, optimizer):
        return closure, optimizer

    def encloses(optimizer, closure):
        optimizer.step(lambda: closure())

    functions = (ignores, assigns, passes, passes_both, encloses)
    assert [uses_parameter(function, "closure") for function in functions] == [False, False, True, True, True]


def test_the_code_of_a_wrapped_method_is_its_own() -> None:
    def own(self: Any) -> str:
        return "of its own"

    @functools.wraps(own)
    def wrapper(*arguments: Any) -> str:
        return own(*arguments)

    code = code_of(wrapper)
    assert code is own.__code__
    assert "of its own" in strings_in(code)


def test_returning_anything_is_returning_more_than_none() -> None:
    def nothing(batch: Any) -> None:
        batch.clear()

    def early(batch: Any) -> None:
        if batch:
            return
        batch.clear()

    def constant() -> int:
        return 1

    def sometimes(batch: Any) -> Any:
        if batch:
            return None
        return batch

    assert [returns_anything(one) for one in (nothing, early, constant, sometimes)] == [False, False, True, True]


def test_a_method_is_mentioned_where_another_of_its_class_names_it() -> None:
    class Calls:
        def epoch_end(self) -> None:
            self.epoch_end()

        @property
        def shared(self) -> Any:
            return self.batch_end()  # type: ignore[attr-defined]

        def by_name(self, stage: str) -> Any:
            return getattr(self, f"{stage}_step")()

    assert mentions_method([Calls], "batch_end")
    assert mentions_method([Calls], "test_step")
    assert not mentions_method([Calls], "epoch_end")

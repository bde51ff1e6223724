from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partialmethod
from typing import Any

import pytest

from camshaft.hooks_core import Callback, ModelHooks, is_overridden, not_a_hook
from camshaft.hooks_core.dispatch.implementation import (
    code_of,
    implementation,
    mentions_method,
    receiver_name,
    returns_anything,
    strings_in,
    uses_parameter,
)


class Overriding(Callback):
    def on_fit_start(self, trainer: object, module: object) -> str:
        return "ran"


class Inheriting(Overriding):
    pass


def test_a_method_that_overrides_a_base_is_implemented() -> None:
    assert is_overridden(Overriding(), "on_fit_start")
    assert is_overridden(Inheriting(), "on_fit_start")


def test_what_a_base_class_only_declares_is_not() -> None:
    assert not is_overridden(Overriding(), "on_fit_end")
    assert not is_overridden(Callback(), "on_fit_start")


def test_a_receiver_without_a_base_class_is_fine() -> None:
    class Plain:
        def on_fit_start(self) -> None: ...

    assert is_overridden(Plain(), "on_fit_start")
    assert not is_overridden(Plain(), "on_fit_end")


def test_an_attribute_of_the_instance_counts_if_it_can_be_called() -> None:
    model = ModelHooks()
    model.on_fit_start = lambda: None  # type: ignore[method-assign]
    assert is_overridden(model, "on_fit_start")
    model.on_fit_end = 3  # type: ignore[method-assign, assignment]
    assert not is_overridden(model, "on_fit_end")


def test_a_base_that_restores_the_default_hides_an_override_further_up() -> None:
    class Base(Overriding):
        __hook_base__ = True

        def on_fit_start(self, trainer: object, module: object) -> str:
            return "default"

    assert not is_overridden(type("Leaf", (Base,), {})(), "on_fit_start")


def test_a_method_marked_as_no_hook_is_not_implemented() -> None:
    class Marked(ModelHooks):
        @not_a_hook
        def on_fit_start(self) -> None: ...

    assert not is_overridden(Marked(), "on_fit_start")
    assert Marked().on_fit_start() is None


def test_a_class_can_stand_for_its_instances() -> None:
    class Model(ModelHooks):
        def __init__(self) -> None:
            raise AssertionError("must not be instantiated")

        def on_fit_start(self) -> None: ...

        @staticmethod
        def on_fit_end() -> None: ...

        @property
        def on_train_start(self) -> None:
            raise AssertionError("must not be read")

        on_train_end = partialmethod(print)

    assert implementation(Model, "on_fit_start") is not None
    assert implementation(Model, "on_fit_end") is not None
    assert implementation(Model, "on_train_end") is not None
    assert implementation(Model, "on_train_start") is None
    assert implementation(Model, "on_exception") is None


def test_a_receiver_is_called_by_its_class() -> None:
    assert receiver_name(Overriding()) == receiver_name(Overriding) == "Overriding"


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

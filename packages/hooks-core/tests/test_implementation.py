from __future__ import annotations

from functools import partialmethod

from camshaft.hooks_core import Callback, ModelHooks, is_overridden, not_a_hook
from camshaft.hooks_core.dispatch.implementation import implementation, receiver_name


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

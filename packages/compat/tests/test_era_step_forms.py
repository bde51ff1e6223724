"""A default `optimizer_step` in the forms of earlier eras."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from camshaft.compat.module import takes_earlier_forms
from camshaft.hooks_core import ModelHooks


class Module(ModelHooks):
    optimizer_step = takes_earlier_forms(ModelHooks.optimizer_step)


class Optimizer:
    def __init__(self) -> None:
        self.closures: list[Any] = []

    def step(self, closure: Any = None) -> None:
        self.closures.append(closure)


class Closure:
    """As 0.x has it."""

    def __init__(self) -> None:
        self.num_steps = 0

    def __call__(self) -> None:
        raise AssertionError("the era's default decides whether to evaluate again")

    def step_by_default(self) -> None:
        self.num_steps += 1


def closure() -> None:
    """Is passed on."""


CASES = {"on_tpu": False, "using_native_amp": False, "using_lbfgs": False}
FORMS = [
    ((), {}, None),
    ((None,), {}, None),
    ((closure,), {}, closure),
    ((), {"optimizer_closure": closure}, closure),
    ((1, closure), {}, closure),
    ((1, closure, False), {}, closure),
    ((1, closure, False, False, False), {}, closure),
    ((1, closure), CASES, closure),
    ((1,), {"optimizer_closure": closure}, closure),
    ((1,), {"second_order_closure": closure, "using_native_amp": True}, closure),
    ((), {"optimizer_idx": 1, "optimizer_closure": closure, **CASES}, closure),
    ((closure,), {"optimizer_idx": 1}, closure),
]


@pytest.mark.parametrize(("positional", "named", "expected"), FORMS)
def test_the_closure_reaches_the_optimizer(positional: tuple[Any, ...], named: dict[str, Any], expected: Any) -> None:
    optimizer = Optimizer()
    Module().optimizer_step(0, 0, optimizer, *positional, **named)
    assert optimizer.closures == [expected]


@pytest.mark.parametrize("arguments", [((0, "given"), {}), ((0,), {"second_order_closure": "given"}), (("given",), {})])
def test_a_closure_that_knows_its_eras_default_does_it(arguments: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
    optimizer, closure = Optimizer(), Closure()
    positional = [closure if value == "given" else value for value in arguments[0]]
    named = {name: closure for name in arguments[1]}
    Module().optimizer_step(0, 0, optimizer, *positional, **named)
    assert (closure.num_steps, optimizer.closures) == (1, [])


@pytest.mark.parametrize(
    ("positional", "named", "message"),
    [
        ((1,), {}, "`optimizer_closure` must be one callable, the closure that the override got, but got None"),
        ((1, None), {}, "`optimizer_closure` must be one callable"),
        ((1, closure), {"second_order_closure": closure}, "`optimizer_closure` must be one callable"),
        ((1, closure), {"optimizer_closure": closure}, "multiple values for argument 'optimizer_closure'"),
        ((1, closure, 0, 0, 0, 0), {}, "from 3 to 8 positional arguments but 9 were given"),
        ((1, closure), {"unknown": 3}, "unknown"),
        ((), {"unknown": 3}, "unknown"),
    ],
)
def test_what_says_too_little_or_too_much_is_an_error(
    positional: tuple[Any, ...], named: dict[str, Any], message: str
) -> None:
    optimizer = Optimizer()
    with pytest.raises(TypeError, match=message):
        Module().optimizer_step(0, 0, optimizer, *positional, **named)
    assert optimizer.closures == []


def test_its_signature_is_that_of_today() -> None:
    parameters = inspect.signature(Module.optimizer_step).parameters
    assert list(parameters) == ["self", "epoch", "batch_idx", "optimizer", "optimizer_closure"]

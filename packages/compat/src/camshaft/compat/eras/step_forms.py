"""The default `optimizer_step` with the arguments of every era."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec

from camshaft.hooks_core.messages import must_be

_Arguments = ParamSpec("_Arguments")

_TODAY = ("epoch", "batch_idx", "optimizer", "optimizer_closure")
_CASES = ("on_tpu", "using_native_amp", "using_lbfgs")
_EARLIER = ("epoch", "batch_idx", "optimizer", "optimizer_idx", "optimizer_closure", *_CASES)
_UNUSED = ("optimizer_idx", *_CASES)
_CLOSURES = ("optimizer_closure", "second_order_closure")
_WHERE = "super().optimizer_step"


def takes_earlier_forms(step: Callable[_Arguments, None]) -> Callable[_Arguments, None]:
    """Decorate a default `optimizer_step` such that it takes the arguments of earlier eras, too.

    These are the arguments of today with `optimizer_idx` before the closure, the closure perhaps as
    `second_order_closure`, and behind it `on_tpu`, `using_native_amp` and `using_lbfgs`, by position or by name. A
    closure that only evaluates once more, as in 0.x, has a method `step_by_default`, which is called in place of
    `step`.

    Args:
        step: The method, with the arguments of today.

    Returns:
        The method. It raises `TypeError` if it is called in an earlier form without the closure, by which alone it
        knows what the era's default is, or with other arguments.
    """

    @wraps(step)
    def in_any_form(*arguments: Any, **named: Any) -> None:
        module, *positional = arguments
        is_earlier = _is_earlier(positional, named)
        if is_earlier:
            named = _of_today(positional, named)
            positional = []
        closure = positional[3] if len(positional) > 3 else named.get("optimizer_closure")
        step_by_default = getattr(closure, "step_by_default", None)
        if step_by_default is not None:
            step_by_default()
        else:
            step(module, *positional, **named)

    return in_any_form


def _is_earlier(positional: list[Any], named: dict[str, Any]) -> bool:
    has_index = len(positional) > 3 and isinstance(positional[3], int)
    return has_index or len(positional) > len(_TODAY) or bool(named.keys() & {*_UNUSED, "second_order_closure"})


def _of_today(positional: list[Any], named: dict[str, Any]) -> dict[str, Any]:
    if len(positional) > len(_EARLIER):
        rule = f"at most {len(_EARLIER)}: {', '.join(_EARLIER)}"
        raise TypeError(must_be("number of arguments", rule, len(positional), _WHERE, "Pass these."))
    order = _EARLIER if "optimizer_idx" not in named else (*_TODAY, *_CASES)
    given = dict(zip(order, positional, strict=False))
    doubled = sorted(given.keys() & named.keys())
    if doubled:
        rule, action = "given once", "Pass each by position or by name."
        raise TypeError(must_be(doubled[0], rule, "two values", _WHERE, action))
    given |= named
    closures = [given.pop(name) for name in _CLOSURES if given.get(name) is not None]
    if len(closures) != 1:
        rule = "one callable, the closure that the override got"
        action = "Pass it on: `super().optimizer_step(epoch, batch_idx, optimizer, optimizer_idx, closure)`."
        raise TypeError(must_be("optimizer_closure", rule, closures or None, _WHERE, action))
    for name in (*_UNUSED, *_CLOSURES):
        given.pop(name, None)
    return {**given, "optimizer_closure": closures[0]}

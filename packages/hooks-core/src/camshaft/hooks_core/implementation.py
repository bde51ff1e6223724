"""Which hooks a receiver really implements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])


def not_a_hook(function: _Function) -> _Function:
    """Declare that a method whose name begins with `on_` is no hook, so that set-up does not report it."""
    function.__not_a_hook__ = True  # type: ignore[attr-defined]
    return function


def is_overridden(receiver: object, name: str) -> bool:
    """Whether a receiver implements a hook.

    The classes that only declare hooks (those with `__hook_base__ = True` of their own) do not count; an attribute of
    the instance does.

    Args:
        receiver: A callback, module, data module or strategy.
        name: The hook's name.
    """
    return implementation(receiver, name) is not None


def implementation(receiver: object, name: str) -> Callable[..., Any] | None:
    """The bound method (or instance attribute) with which a receiver implements a hook, or None."""
    own = getattr(receiver, "__dict__", {}).get(name)
    if own is not None:
        return own if callable(own) else None
    for klass in type(receiver).__mro__:
        if name in vars(klass):
            if vars(klass).get("__hook_base__", False):
                return None
            method = getattr(receiver, name)
            return method if callable(method) else None
    return None


def receiver_name(receiver: object) -> str:
    """How messages and traces call a receiver: its class's name."""
    return type(receiver).__qualname__

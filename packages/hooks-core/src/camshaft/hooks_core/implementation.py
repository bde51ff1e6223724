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
    """The bound method (or instance attribute) with which a receiver implements a hook, or None.

    A class may stand for its instances; its methods are then bound to a stand-in, to be inspected and not called.
    """
    own = None if isinstance(receiver, type) else getattr(receiver, "__dict__", {}).get(name)
    if own is not None:
        return _unless_marked(own)
    for klass in class_of(receiver).__mro__:
        if name in vars(klass):
            if vars(klass).get("__hook_base__", False):
                return None
            return _unless_marked(_bound(receiver, name, vars(klass)[name]))
    return None


def class_of(receiver: object) -> type:
    """The class whose methods a receiver has: itself, if it is a class that stands for its instances."""
    return receiver if isinstance(receiver, type) else type(receiver)


def receiver_name(receiver: object) -> str:
    """How messages and traces call a receiver: its class's name."""
    return class_of(receiver).__qualname__


def _bound(receiver: object, name: str, attribute: Any) -> Any:
    if not isinstance(receiver, type):
        return getattr(receiver, name)
    if isinstance(attribute, property) or not hasattr(attribute, "__get__"):
        return attribute
    return attribute.__get__(object(), receiver)


def _unless_marked(method: Any) -> Callable[..., Any] | None:
    """The method, unless it is none or was declared to be no hook."""
    return method if callable(method) and not getattr(method, "__not_a_hook__", False) else None

"""Checks of the fit loop's arguments, also for attrs to run when one is set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from camshaft.hooks_core.messages import must_be

WHERE = "FitLoop"

Check = Callable[[object, "attrs.Attribute[Any]", Any], None]


def at_least(minimum: int, *, optional: bool = False, action: str = "Pass a larger number.") -> Check:
    """A validator: an int that is not smaller.

    Args:
        minimum: The smallest that is allowed.
        optional: Whether None is allowed as well.
        action: What to do about a smaller one.
    """

    def check(instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        check_at_least(attribute.name, value, minimum, optional=optional, action=action)

    return check


def one_of(*allowed: str) -> Check:
    """A validator: one of some texts."""

    def check(instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        check_one_of(attribute.name, value, allowed)

    return check


def check_at_least(
    name: str, value: Any, minimum: int, *, optional: bool = False, action: str = "Pass a larger number."
) -> None:
    """Raise `TypeError` or `ValueError` unless a value is an int that is not smaller; see `at_least`."""
    if optional and value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        rule = f"an int{' or None' if optional else ''}"
        raise TypeError(must_be(name, rule, value, WHERE, "Pass an int."))
    if value < minimum:
        raise ValueError(must_be(name, f"at least {minimum}", value, WHERE, action))


def check_one_of(name: str, value: Any, allowed: Sequence[str]) -> None:
    """Raise `ValueError` unless a value is one of some texts."""
    if value not in allowed:
        rule = " or ".join(map(repr, allowed))
        raise ValueError(must_be(name, rule, value, WHERE, "Pass one of them."))

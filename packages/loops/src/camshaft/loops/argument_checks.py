"""Checks of the fit loop's arguments, for attrs to run when one is set."""

from __future__ import annotations

from collections.abc import Callable
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
        if optional and value is None:
            return
        if isinstance(value, bool) or not isinstance(value, int):
            rule = f"an int{' or None' if optional else ''}"
            raise TypeError(must_be(attribute.name, rule, value, WHERE, "Pass an int."))
        if value < minimum:
            raise ValueError(must_be(attribute.name, f"at least {minimum}", value, WHERE, action))

    return check


def one_of(*allowed: str) -> Check:
    """A validator: one of some texts."""

    def check(instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        if value not in allowed:
            rule = " or ".join(map(repr, allowed))
            raise ValueError(must_be(attribute.name, rule, value, WHERE, "Pass one of them."))

    return check

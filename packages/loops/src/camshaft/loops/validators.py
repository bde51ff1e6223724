"""Validators of settings, for attrs to run when a settings object is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from camshaft.hooks_core.support.messages import must_be

WHERE = "FitLoop"

Validator = Callable[[object, "attrs.Attribute[Any]", Any], None]


def integer(
    minimum: int, *, optional: bool = False, or_float: bool = False, action: str = "Pass a larger number."
) -> Validator:
    """Return a validator that takes an int of at least `minimum`.

    Args:
        minimum: The smallest value allowed.
        optional: Whether None is allowed as well.
        or_float: Whether a float is allowed as well.
        action: The advice in the error for a smaller value.
    """
    kind, or_none = "a number" if or_float else "an int", " or None" * optional

    def validate(instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        if optional and value is None:
            return
        if isinstance(value, bool) or not isinstance(value, (int, float) if or_float else int):
            raise TypeError(must_be(attribute.name, kind + or_none, value, WHERE, f"Pass {kind}."))
        if not value >= minimum:  # also refuses NaN
            raise ValueError(must_be(attribute.name, f"at least {minimum}", value, WHERE, action))

    return validate


def one_of(*allowed: str) -> Validator:
    """Return a validator that takes one of some strings."""

    def validate(instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        if value not in allowed:
            rule = " or ".join(map(repr, allowed))
            raise ValueError(must_be(attribute.name, rule, value, WHERE, "Pass one of them."))

    return validate


def batch_limit(instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    """Take a number of batches or a share from 0 to 1, as a validator."""
    check_batch_limit(attribute.name, value)


def check_batch_limit(argument: str, limit: int | float) -> None:
    """Raise `ValueError` or `TypeError` unless a limit is a number of batches or a share from 0 to 1."""
    action = "Pass a number of batches (int) or a share of them (float)."
    if isinstance(limit, bool) or not isinstance(limit, (int, float)):
        raise TypeError(must_be(argument, "an int or a float", limit, "the loop", action))
    if not limit >= 0 or (isinstance(limit, float) and limit > 1.0):  # also refuses NaN
        raise ValueError(must_be(argument, "at least 0, and at most 1.0 as a float", limit, "the loop", action))

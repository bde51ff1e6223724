"""One call for a check of an argument or of the environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from camshaft.hooks_core.support.messages import must_be


def arguments_in(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a constructor by name, from its `locals()`."""
    collected = ("parallel", "common")  # by two asterisks
    own = {name: value for name, value in values.items() if name not in ("self", "__class__", *collected)}
    return own | {name: value for each in collected for name, value in values.get(each, {}).items()}


def require(
    holds: bool,
    field: str,
    rule: str,
    value: object,
    where: str,
    action: str = "Pass such a value, or leave it out.",
    error: type[Exception] = ValueError,
) -> None:
    """Raise an error about a value unless a condition holds.

    Args:
        holds: Whether the value is valid.
        field: Name of the argument or attribute.
        rule: What it must be.
        value: What it was.
        where: The class or function that checks it.
        action: One thing to do about it, as a sentence.
        error: The class of the error.
    """
    if not holds:
        raise error(must_be(field, rule, value, where, action))

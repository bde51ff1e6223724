"""How an error says what was wrong; every package words it the same way."""

from __future__ import annotations


def must_be(field: str, rule: str, value: object, where: str, action: str) -> str:
    """The message of an error about a value.

    Args:
        field: Name of the argument or attribute.
        rule: What it must be.
        value: What it was.
        where: The class or function that checks it.
        action: One thing to do about it, as a sentence.
    """
    return f"`{field}` must be {rule}, but got {value!r} ({type(value).__name__}) in {where}. {action}"

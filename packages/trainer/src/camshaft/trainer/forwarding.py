"""Attributes that are kept in a part of their owner."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

_ABSENT: Any = object()


def forwarded(path: str, doc: str, *, settable: bool = False, default: Any = _ABSENT) -> Any:
    """Return a property for an attribute that is kept in a part.

    Annotate it with the attribute's type: `max_epochs: int = forwarded("fit_loop.max_epochs", "Maximum number.")`.

    Args:
        path: Attribute of the owner, with dots. Properties and checks of the part apply.
        doc: Documentation of the property.
        settable: If true, assignment sets the attribute of the part.
        default: Value where the first attribute of the path is None; without it, reading raises `AttributeError` then.
    """
    first, _, rest = path.partition(".")
    part_path, _, name = path.rpartition(".")
    first_of, rest_of, last_part_of = attrgetter(first), attrgetter(rest), attrgetter(part_path)

    def get(owner: Any) -> Any:
        part = first_of(owner)
        return default if part is None else rest_of(part)

    def set_(owner: Any, value: Any) -> None:
        setattr(last_part_of(owner), name, value)

    return property(attrgetter(path) if default is _ABSENT else get, set_ if settable else None, doc=doc)

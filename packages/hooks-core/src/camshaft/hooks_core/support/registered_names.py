"""Names that installed distributions register for their classes, by entry points."""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from camshaft.hooks_core.support.messages import must_be

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

CALLBACKS, LOGGERS = "camshaft.callbacks", "camshaft.loggers"
STRATEGIES, PRECISIONS = "camshaft.strategies", "camshaft.precisions"


def registered(group: str) -> tuple[EntryPoint, ...]:
    """Return the entry points of a group. They are read once for each `sys.path`: that takes milliseconds."""
    return _registered(group, tuple(sys.path))


@lru_cache(maxsize=16)
def _registered(group: str, path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    from importlib.metadata import entry_points  # slow to import, and needed for names alone that are not ours

    return tuple(entry_points(group=group))


def load_registered(group: str, name: str) -> Any:
    """Return the object that an installed distribution registers under a name; None if none does.

    Args:
        group: The group of entry points, one of this module's constants.
        name: The name.

    Raises:
        ValueError: If several distributions register different objects under it.
        ImportError: If the object cannot be imported, for whatever reason.
    """
    found = {one.value: one for one in registered(group) if one.name == name}
    if len(found) > 1:
        rule = f"registered once, but {' and '.join(map(describe, found.values()))} do so"
        raise ValueError(must_be(name, rule, sorted(found), group, "Uninstall one of them, or pass the object."))
    for entry in found.values():
        try:
            return entry.load()
        except Exception as error:
            raise ImportError(
                f"{name!r} of the entry points {group!r} cannot be imported: {entry.value} of {describe(entry)} raised "
                f"{type(error).__name__}: {error}. Mend or uninstall that distribution."
            ) from error
    return None


def describe(entry: EntryPoint) -> str:
    """Return name and version of the distribution that has an entry point."""
    return "an unknown distribution" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"

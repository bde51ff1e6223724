"""Commands and classes that other distributions add to the command line, by their entry points."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from typing import Any

COMMANDS = "camshaft.trainer.commands"
"""Group of functions that take the words after a command, and return the exit status."""

CLASSES = "camshaft.trainer.classes"
"""Group of modules whose exports have short names in options and files."""

OF_OTHERS = {name: "camshaft-forensics" for name in ("compare", "replay", "bisect")}
"""By command of a distribution that may be missing, that distribution."""


def added_commands() -> dict[str, EntryPoint]:
    """Return the commands of other distributions, by name."""
    return {one.name: one for one in entry_points(group=COMMANDS)}


def added_classes() -> Iterator[Any]:
    """Yield what the modules of other distributions export."""
    for one in entry_points(group=CLASSES):
        module = one.load()
        yield from (getattr(module, name) for name in module.__all__)

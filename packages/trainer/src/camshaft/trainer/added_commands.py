"""Entry points of other distributions: commands and classes for the command line, and a list of all of them."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from camshaft.hooks_core.support.registered_names import (
    CALLBACKS,
    LOGGERS,
    PRECISIONS,
    STRATEGIES,
    describe,
    registered,
)

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

COMMANDS = "camshaft.trainer.commands"
"""Group of functions that take the words after a command, and return the exit status."""

CLASSES = "camshaft.trainer.classes"
"""Group of modules whose exports have short names in options and files."""

OF_OTHERS = {name: "camshaft-forensics" for name in ("compare", "replay", "bisect")}
"""By command of a distribution that may be missing, that distribution."""


def added_commands() -> dict[str, EntryPoint]:
    """Return the commands of other distributions, by name."""
    return {one.name: one for one in registered(COMMANDS)}


def added_classes() -> Iterator[Any]:
    """Yield what the modules of other distributions export."""
    for one in registered(CLASSES):
        module = one.load()
        yield from (getattr(module, name) for name in module.__all__)


_GROUPS = (CALLBACKS, LOGGERS, STRATEGIES, PRECISIONS, COMMANDS, CLASSES)


def list_plugins(words: Sequence[str]) -> int:
    """Print what installed distributions register, with their versions, and the error of each that cannot be imported.

    Args:
        words: The words after the command: none but `--help`.

    Returns:
        The exit status: 1 if something cannot be imported, else 0.
    """
    about = f"List what installed distributions register, by the entry points {', '.join(_GROUPS)}."
    argparse.ArgumentParser("python -m camshaft.trainer plugins", description=about).parse_args(words)
    rows, num_broken = [], 0
    for entry in (one for group in _GROUPS for one in registered(group)):
        row = f"{entry.group}  {entry.name}  {entry.value}  ({describe(entry)})"
        try:
            entry.load()
        except Exception as error:
            row, num_broken = f"{row}\n    broken: {type(error).__name__}: {error}", num_broken + 1
        rows.append(row)
    print("\n".join(dict.fromkeys(rows)) or "No installed distribution registers anything.")
    return int(num_broken > 0)

"""The tables of names: what stands for each, and what to use where nothing does."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files

from attrs import frozen

ROOTS: Mapping[str, str] = {
    "pytorch_lightning": "",
    "lightning": "@lightning",
    "lightning.pytorch": "",
    "lightning.fabric": "@fabric",
    "lightning_fabric": "@fabric",
    "lightning_lite": "@fabric",
}
"""By package, the place of its modules in the tables; "@" begins those that are not below `lightning.pytorch`."""

FLAG = re.compile(r"_[A-Z0-9_]+_AVAILABLE|_[A-Z]+_GREATER_EQUAL_[0-9_]+|_IS_WINDOWS|_IS_INTERACTIVE")
"""The names of flags about this machine, which are found in the module `FLAGS`."""

_HERE = "camshaft.compat.names"
FLAGS = f"{_HERE}.utilities.types_and_flags"


def lines_of(table: str) -> Iterator[str]:
    """Yield the entries of a table, each of which may take several lines, without comments."""
    text = files(_HERE).joinpath(table).read_text(encoding="utf-8").replace("\n    ", " ")
    return (line for line in text.splitlines() if not line.startswith("#"))


@cache
def counterparts() -> Mapping[tuple[str, str], str | None]:
    """Return by place and name a module and a name in it, with ":" between; None where nothing is to stand for it.

    The place is "" for names that stand for the same in all modules.
    """
    found: dict[tuple[str, str], str | None] = {}
    for line in lines_of("counterparts.txt"):
        where, _, names = line.partition(": ")
        place = "" if not where.startswith("in ") else where.split()[1]
        module = where.split()[-1]
        for entry in names.split():
            name, _, there = entry.partition("=")
            full = f"{_HERE}{module}" if module.startswith(".") else module
            found[place, name] = None if module == "-" else f"{full}:{there or name}"
    return found


@cache
def members() -> Mapping[str, Mapping[str, str]]:
    """Return by class of Lightning's the attributes that have other names here, with these names."""
    lines = (line.partition(": ") for line in lines_of("members.txt"))
    return {kind: dict(entry.split("=") for entry in names.split()) for kind, _, names in lines}


@cache
def uncalled() -> Mapping[str, Mapping[str, str]]:
    """Return by class the methods of Lightning's that are never called, with what to do instead; "" for called ones."""
    found: dict[str, dict[str, str]] = {}
    for line in lines_of("uncalled.txt"):
        kind, action, names = line.split(" | ")
        found.setdefault(kind, {}).update(dict.fromkeys(names.split(), action.strip("-")))
    return found


@cache
def advice() -> Mapping[str, str]:
    """Return what to use, by name, by module and name, and by module with a dot behind it for all that it has."""
    lines = (line.partition(" | ") for line in lines_of("advice.txt"))
    return {name: sentence for names, _, sentence in lines for name in names.split()}


@frozen
class ReleasedModule:
    """The public names of a module of Lightning's.

    Each stands with the place of the module that defines it; "" where no other module defines one of that name.

    Args:
        current: The names of release 2.6.
        earlier: The names that only earlier releases have.
        is_gone: Whether release 2.6 lacks the module.
        defined: The names that it, and no other module, defines.
    """

    current: Mapping[str, str]
    earlier: Mapping[str, str]
    is_gone: bool
    defined: frozenset[str] = frozenset()


@cache
def released_modules() -> Mapping[str, str]:
    """Return the modules of all releases: the rest of the table's line by place, as in the table of names."""
    lines = (line.partition("|") for line in lines_of("released_names.txt"))
    return {place: rest for place, _, rest in lines}


@cache
def released(place: str) -> ReleasedModule:
    """Return the names of a module, by its place as in the table of names; none for an unknown one."""
    current, earlier, *gone = released_modules().get(place, "||gone").split("|")
    defined = frozenset(entry[:-1] for entry in f"{current} {earlier}".split() if entry[-1] == "!")
    return ReleasedModule(_names(current, place), _names(earlier, place), bool(gone), defined)


def _names(entries: str, place: str) -> dict[str, str]:
    found = {}
    for entry in entries.split():
        name, several, home = entry.removesuffix("!").partition("<")
        found[name] = (home or place or ".") if several else ""
    return found


@cache
def defining_places() -> Mapping[str, str]:
    """Return the place of the module that defines a name, of the names that no two modules define."""
    found: dict[str, str] = {}
    for place in sorted(released_modules()):
        module = released(place)
        for name, home in {**module.earlier, **module.current}.items():
            if not home and (name in module.defined or name not in found):
                found[name] = place
    return found

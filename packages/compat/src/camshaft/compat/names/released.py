"""The names that Lightning's releases have, to tell an import of one of them from that of a name that never was."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import cache

from attrs import frozen

from camshaft.compat.names.table import lines_of


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
def released_submodules() -> Mapping[str, frozenset[str]]:
    """Return by place the modules directly below it that release 2.6 has."""
    found: dict[str, set[str]] = defaultdict(set)
    for place, rest in released_modules().items():
        parent, _, name = place.rpartition(".")
        if name and not rest.endswith("|gone") and (parent or not place.startswith("@")):
            found[parent].add(name)
    return {place: frozenset(names) for place, names in found.items()}


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

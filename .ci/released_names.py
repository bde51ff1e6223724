"""Writes the table of the names that Lightning's releases have: python .ci/released_names.py CLONE [LAST_TAG]

CLONE is a clone of Lightning's repository with its tags. Sources are read, and never run. The table is data of
camshaft-compat: an import of a name that a release has, and that nothing stands for, is told apart from a mistyped one.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "packages/compat/src/camshaft/compat/names/released_names.txt"
PACKAGES = {
    "src/lightning/pytorch": "",
    "src/pytorch_lightning": "",
    "pytorch_lightning": "",
    "src/lightning/fabric": "@fabric",
    "src/lightning_fabric": "@fabric",
    "src/lightning_lite": "@fabric",
}
"""The folders of the packages in all releases, and where the table of names has them."""
ROOTS = {
    "lightning.pytorch": "",
    "pytorch_lightning": "",
    "lightning.fabric": "@fabric",
    "lightning_fabric": "@fabric",
    "lightning_lite": "@fabric",
}
TAG = re.compile(r"(\d+)\.(\d+)\.(\d+)")
FIRST = (0, 4, 0)
HEADER = """\
# Names of Lightning's public modules, by .ci/released_names.py: module|names of {last}|names that only earlier
# releases have. A name that several modules define stands as name<module, or as name<module:name there; "name<" is
# defined in this one, and so is "name!", which no other module defines.
# "@fabric" is lightning.fabric. "|gone" ends modules that only earlier releases have.
"""

Names = dict[str, str]
"""By name, "" if the module defines it; else the module that it comes from, and its name there, with ":" between."""


def git(clone: str, *words: str) -> str:
    return subprocess.run(["git", "-C", clone, *words], check=True, capture_output=True, text=True).stdout


def place_in(path: str) -> str | None:
    """Return the place of a source file in the table; None if it is none of a public module."""
    if path == "src/lightning/__init__.py":
        return "@lightning"
    for folder, first in PACKAGES.items():
        if path.startswith(f"{folder}/") and path.endswith(".py"):
            parts = path.removeprefix(f"{folder}/").removesuffix(".py").split("/")
            if parts[-1] == "__init__":
                parts.pop()
            if any((part.startswith("_") and part != "__about__") or part.startswith("testing") for part in parts):
                return None
            return ".".join(([first] if first else []) + parts)
    return None


def place_of(module: str) -> str | None:
    for root, first in ROOTS.items():
        if module == root or module.startswith(f"{root}."):
            return f"{first}{module.removeprefix(root)}".removeprefix(".")
    return None


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module that run when it is imported, under any condition."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.If) and "TYPE_CHECKING" not in ast.unparse(statement.test):
            yield from statements(statement.body + statement.orelse)
        elif isinstance(statement, ast.Try):
            handlers = [inner for handler in statement.handlers for inner in handler.body]
            yield from statements(statement.body + handlers + statement.orelse)
        elif isinstance(statement, ast.With):
            yield from statements(statement.body)


def names_of(source: str, package: str) -> Names:
    """Return the public names of a module, and "*" with the places whose names it takes whole.

    Args:
        source: Its text.
        package: The place that relative imports start from.
    """
    found: Names = {}
    for statement in statements(ast.parse(source).body):
        match statement:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                found[name] = ""
            case ast.Assign() | ast.AnnAssign():
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                found.update({name: "" for target in targets for name in assigned(target)})
            case ast.ImportFrom(module=module, names=aliases, level=level):
                place = place_of(module or "") if not level else ".".join(filter(None, [package, module]))
                if place is None and (module or "").startswith("lightning_utilities"):
                    found.update(
                        {alias.asname or alias.name: "@lightning_utilities:" + alias.name for alias in aliases}
                    )
                for alias in aliases if place is not None else ():
                    name = alias.asname or alias.name
                    if alias.name == "*":
                        found["*"] = f"{found.get('*', '')} {place or '.'}"
                    else:
                        found[name] = f"{place or '.'}:{alias.name}"
            case _:
                pass
    return {name: origin for name, origin in found.items() if is_kept(name)}


def is_kept(name: str) -> bool:
    """Return whether code may import a name: underscored ones, too, but those of Python's alone."""
    return name == "__version__" or (not name.startswith("__") and len(name) > 1 and name != "log")


def assigned(target: ast.expr) -> Iterator[str]:
    if isinstance(target, ast.Name):
        yield target.id
    elif isinstance(target, ast.Tuple):
        for element in target.elts:
            yield from assigned(element)


def release(clone: str, tag: str, read: dict[str, Names]) -> dict[str, Names]:
    """Return the public names of each module of a release. `read` keeps what was read of each file."""
    found: dict[str, Names] = {}
    for line in git(clone, "ls-tree", "-r", tag).splitlines():
        facts, _, path = line.partition("\t")
        place = place_in(path)
        if place is None:
            continue
        package = place if path.endswith("__init__.py") else place.rpartition(".")[0]
        key = f"{facts.split()[2]} {package}"
        if key not in read:
            try:
                read[key] = names_of(git(clone, "cat-file", "blob", facts.split()[2]), package)
            except SyntaxError as error:
                print(f"{tag}:{path} is left out: {error}", file=sys.stderr)
                read[key] = {}
        found.setdefault(place, {}).update(read[key])
    return {place: whole(place, found) for place in found}


def whole(place: str, modules: dict[str, Names]) -> Names:
    """Return the names of a module, with those that it takes by a star from others."""
    names = dict(modules.get(place, {}))
    for other in names.pop("*", "").split():
        other = other.strip(".")
        if other != place:
            names = {name: f"{other or '.'}:{name}" for name in whole(other, modules)} | names
    return names


def entry(name: str, origin: str, several: set[str]) -> str:
    """Return a name as the table has it; `several` are the names that more than one module defines."""
    module, _, there = origin.partition(":")
    if module.startswith("@lightning_utilities"):
        return name
    if there not in ("", name):
        return f"{name}<{origin}"
    return f"{name}<{module}" if name in several else name if origin else f"{name}!"


def main(arguments: list[str]) -> int:
    clone = arguments[0]
    tags = [tag for tag in git(clone, "tag").split() if TAG.fullmatch(tag) and numbers(tag) >= FIRST]
    tags.sort(key=numbers)
    last = arguments[1] if len(arguments) > 1 else tags[-1]
    read: dict[str, Names] = {}
    current = release(clone, last, read)
    earlier: dict[str, Names] = {}
    for tag in tags[: tags.index(last)]:
        modules = release(clone, tag, read)
        packages = {place.rpartition(".")[0] for place in modules}
        for place, names in modules.items():
            kept = names if place in packages else {name: origin for name, origin in names.items() if not origin}
            earlier.setdefault(place, {}).update(kept)
    definitions = Counter(
        name
        for place in {*current, *earlier}
        for name in {**current.get(place, {}), **earlier.get(place, {})}
        if not (current.get(place, {}).get(name) or earlier.get(place, {}).get(name))
    )
    several = {name for name, count in definitions.items() if count > 1}
    lines = []
    for place in sorted({*current, *earlier}):
        now = current.get(place, {})
        then = {name: origin for name, origin in earlier.get(place, {}).items() if name not in now}
        columns = [" ".join(entry(name, names[name], several) for name in sorted(names)) for names in (now, then)]
        lines.append("|".join([place, *columns]) + ("" if place in current else "|gone"))
    TABLE.write_text(HEADER.format(last=last) + "\n".join(lines) + "\n")
    return 0


def numbers(tag: str) -> tuple[int, ...]:
    return tuple(int(part) for part in tag.split("."))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

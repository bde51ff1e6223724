"""The public names of the packages: what a package's top level exports, and what its public modules define."""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PACKAGES = ("hooks_core", "loops", "strategies", "callbacks", "trainer", "forensics", "compat")
sys.path.insert(0, str(ROOT / ".ci"))

from public_imports import Surfaces  # noqa: E402  (it lies beside .ci/run)


@dataclass(frozen=True)
class PublicName:
    """A class, function or value, at the one place where the reference describes it."""

    module: str
    name: str
    kind: str  # "class", "function" or "data"
    doc: str
    value: Any
    text: str = ""  # of data: the annotation or the value, as the source has it

    @property
    def path(self) -> str:
        return f"{self.module}.{self.name}"

    @property
    def summary(self) -> str:
        """The first sentence of the documentation."""
        return " ".join(self.doc.strip().split("\n\n")[0].split())


@dataclass(frozen=True)
class PublicModule:
    """A public module: the names that it is the place of, and those that are described elsewhere, by their paths."""

    name: str
    doc: str
    names: tuple[PublicName, ...]
    elsewhere: tuple[str, ...]

    @property
    def package(self) -> str:
        return self.name.split(".")[1]

    @property
    def is_top_level(self) -> bool:
        return self.name.count(".") == 1


@cache
def public_modules() -> tuple[PublicModule, ...]:
    """Return the public modules, a package's top level before its others."""
    surfaces = Surfaces.read(ROOT)
    homes: dict[tuple[str, str], str] = {}
    modules: list[PublicModule] = []
    ordered = sorted(surfaces.public, key=lambda name: (name.count(".") > 1, PACKAGES.index(name.split(".")[1]), name))
    for module in ordered:
        names: list[PublicName] = []
        elsewhere: list[str] = []
        for name in _names_of(module, surfaces):
            place = _definition(module, name, surfaces)
            if place in homes:
                elsewhere.append(homes[place])
            else:
                homes[place] = f"{module}.{name}"
                names.append(_public_name(module, name, place, surfaces))
        doc = inspect.getdoc(importlib.import_module(module)) or ""
        modules.append(PublicModule(module, doc, tuple(names), tuple(elsewhere)))
    return tuple(sorted(modules, key=lambda one: PACKAGES.index(one.package)))


def public_names() -> Iterator[PublicName]:
    for module in public_modules():
        yield from module.names


def _names_of(module: str, surfaces: Surfaces) -> list[str]:
    """Return `__all__`, or where there is none the names that the module itself defines."""
    exported = getattr(importlib.import_module(module), "__all__", None)
    if exported is not None:
        return sorted(exported)
    return [name for name in _statements(surfaces.files[module]) if not name.startswith("_")]


@cache
def _statements(file: Path) -> dict[str, tuple[ast.stmt, str]]:
    """Return the statements of a module that define its names, with the text below them that documents values."""
    found: dict[str, tuple[ast.stmt, str]] = {}
    body = ast.parse(file.read_text(encoding="utf-8")).body
    for number, node in enumerate(body):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = (node, "")
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            is_type_variable = isinstance(node.value, ast.Call) and "TypeVar" in ast.unparse(node.value.func)
            names = [target.id for target in targets if isinstance(target, ast.Name) and not is_type_variable]
            found.update({name: (node, text_below(body, number)) for name in names})
    return found


def text_below(body: list[ast.stmt], number: int) -> str:
    """Return the text below a statement of a body, which documents what it assigns; "" if there is none."""
    below = body[number + 1] if number + 1 < len(body) else None
    is_text = (
        isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str)
    )
    return inspect.cleandoc(below.value.value) if is_text else ""  # type: ignore[union-attr,arg-type]


def _definition(module: str, name: str, surfaces: Surfaces) -> tuple[str, str]:
    """Return the module in which an exported name is defined, and its name there."""
    file = surfaces.files.get(module)
    if file is None or name in _statements(file):
        return module, name
    imported = surfaces.imported_names(module)
    if name not in imported:
        raise ValueError(f"`{name}` must be defined or imported in {module}, which exports it. Correct `__all__`.")
    return _definition(*imported[name], surfaces)


def _public_name(module: str, name: str, place: tuple[str, str], surfaces: Surfaces) -> PublicName:
    value = getattr(importlib.import_module(module), name)
    if inspect.isclass(value):
        return PublicName(module, name, "class", value.__dict__.get("__doc__") or "", value)
    if inspect.isfunction(value) or hasattr(value, "__wrapped__"):
        return PublicName(module, name, "function", inspect.getdoc(value) or "", value)
    node, doc = _statements(surfaces.files[place[0]])[place[1]]
    assert isinstance(node, ast.Assign | ast.AnnAssign)
    return PublicName(module, name, "data", doc, value, _shown(node))


def _shown(node: ast.Assign | ast.AnnAssign) -> str:
    text = ast.unparse(node.value) if node.value is not None else ""
    return text if len(text) <= 200 else ""

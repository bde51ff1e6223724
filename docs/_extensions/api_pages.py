"""Write the pages of the public names: one for each class that a package exports, one for each public module.

The pages are made anew at each build, in reference/api/, and say where autodoc finds the names. Hooks that a class
inherits are listed with links, and so are the methods of a base class that has a page of its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from public_names import PACKAGES, PublicModule, PublicName, public_modules, public_names
from sphinx.application import Sphinx
from written_pages import indented, table, title, write

from camshaft.hooks_core.eras.hooks import hooks_of_eras

FOLDER = "reference/api"
HOOKS = hooks_of_eras()
Lines = Iterator[str]


def write_pages(app: Sphinx) -> None:
    """Write all pages."""
    write(Path(app.srcdir) / FOLDER, dict(reference_pages()))


def reference_pages() -> Iterator[tuple[str, Lines]]:
    for package in PACKAGES:
        modules = [module for module in public_modules() if module.package == package]
        for module in modules:
            if module.is_top_level:
                yield f"{package}/index.rst", _package_page(module, modules)
                for one in module.names:
                    if one.kind == "class":
                        yield f"{package}/{one.name}.rst", _class_page(one)
            else:
                yield f"{package}/{_file(module)}.rst", _module_page(module)


def _file(module: PublicModule) -> str:
    return module.name.split(".", 2)[2]


def _package_page(package: PublicModule, modules: list[PublicModule]) -> Lines:
    yield from title(package.name, "=")
    yield from (package.doc, "", f".. py:currentmodule:: {package.name}", "")
    classes = [one for one in package.names if one.kind == "class"]
    others = [one for one in package.names if one.kind != "class"]
    yield from title("Classes", "-")
    yield from table([(f":doc:`{one.name} <{one.name}>`", one.summary) for one in classes], "35 65")
    rows = [(f":doc:`{one.name} <{_file(one)}>`", one.doc.split("\n")[0]) for one in modules if not one.is_top_level]
    yield from title("Public modules", "-")
    yield from table(rows, "35 65")
    if others:
        yield from title("Functions and values", "-")
        for one in others:
            yield from _described(one)
    yield from (".. toctree::", "   :hidden:", "")
    yield from (f"   {one.name}" for one in classes)
    yield from (f"   {_file(one)}" for one in modules if not one.is_top_level)


def _module_page(module: PublicModule) -> Lines:
    yield from title(module.name, "=")
    yield from (module.doc, "", f".. py:module:: {module.name}", "")
    if module.elsewhere:
        links = ", ".join(f":py:obj:`~{path}`" for path in module.elsewhere)
        yield from (f"Described elsewhere: {links}.", "")
    for one in module.names:
        yield from title(one.name, "-")
        yield from _described(one)
        if one.kind == "class":
            yield from _inherited(one.value, "~")


def _class_page(one: PublicName) -> Lines:
    yield from title(one.name, "=")
    yield from (".. code-block:: python", "", f"   from {one.module} import {one.name}", "")
    yield from _described(one)
    yield from _inherited(one.value, "-")


def _described(one: PublicName) -> Lines:
    yield from (f".. py:currentmodule:: {one.module}", "")
    if one.kind == "data":
        yield f".. py:data:: {one.name}"
        if one.text:
            yield f"   :value: {one.text}"
        yield ""
        yield from indented(one.doc)
    elif one.kind == "function":
        yield from (f".. autofunction:: {one.name}", "")
    else:
        yield f".. autoclass:: {one.name}"
        members = shown_members(one.value)
        if members:
            yield f"   :members: {', '.join(members)}"
        yield ""


@cache
def shown_members(cls: type) -> list[str]:
    """Return the public methods and properties of a class that its own page describes.

    Those are its own, and those of bases that have no page. A hook that a callback overrides is only listed.
    """
    described = [base for base in cls.__mro__ if base is cls or not _has_place(base)]
    return [
        name
        for base in described
        if _is_ours(base)
        for name, value in vars(base).items()
        if not name.startswith("_") and _is_member(value) and not _is_listed_hook(cls, name)
    ]


def _is_member(value: Any) -> bool:
    return inspect.isroutine(value) or isinstance(value, property | classmethod | staticmethod)


def _is_listed_hook(cls: type, name: str) -> bool:
    """Return whether a method is a hook that a receiver overrides; a loop's `state_dict`, say, is none."""
    is_receiver = any("__hook_base__" in vars(base) for base in cls.__mro__)
    return is_receiver and name in HOOKS and "__hook_base__" not in vars(cls)


def _is_ours(cls: type) -> bool:
    return cls.__module__.startswith("camshaft.")


@cache
def _has_place(cls: type) -> bool:
    return any(one.value is cls for one in public_names())


def _inherited(cls: type, underline: str) -> Lines:
    """List what the class has beside what is described: hooks, and methods of bases with a place of their own."""
    bases = [base for base in cls.__mro__[1:] if _is_ours(base) and _has_place(base)]
    hook_bases = [base for base in bases if "__hook_base__" in vars(base)]
    if "__hook_base__" in vars(cls):
        hooks = [name for base in hook_bases for name in vars(base) if name in HOOKS and name not in vars(cls)]
        yield from _listed("Hooks to override", hooks, underline)
    else:
        yield from _listed("Hooks", [name for name in vars(cls) if _is_listed_hook(cls, name)], underline)
    for base in bases:
        names = [name for name, value in vars(base).items() if _is_taken_from(base, name, value, cls)]
        if names:
            place = next(one for one in public_names() if one.value is base)
            links = ", ".join(f":py:obj:`{name} <{place.path}.{name}>`" for name in names)
            yield from (f"Inherited from :py:obj:`~{place.path}`: {links}.", "")


def _is_taken_from(base: type, name: str, value: Any, cls: type) -> bool:
    is_hook = name in HOOKS and "__hook_base__" in vars(base)
    is_shown = name in shown_members(base) and not is_hook
    return is_shown and _is_member(value) and inspect.getattr_static(cls, name) is value


def _listed(heading: str, hooks: list[str], underline: str) -> Lines:
    if hooks:
        yield from title(heading, underline)
        yield from table([(f":hook:`{name}`", HOOKS[name].when) for name in hooks], "35 65")


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the functions of this file."""
    app.connect("builder-inited", write_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

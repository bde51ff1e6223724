"""Imports of packages: exports at their first use, and without garbage collection meanwhile."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any


def on_demand(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a package's `__getattr__`, which imports an export at its first use and keeps it.

    Args:
        package: The package's `__name__`.
        modules: By exported name, the module below the package that defines it.
    """

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{modules[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return get


@contextmanager
def collection_paused() -> Iterator[None]:
    """Pause garbage collection while a package is imported.

    Modules make many objects and hardly any garbage. The collection that their number triggers looks at all objects of
    torch as well, which takes longer (about 100 ms) than the imports themselves.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()

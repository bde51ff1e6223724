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
    """Pause garbage collection while a package is imported, and count what is there afterwards as old.

    Modules make many objects and hardly any garbage. The collections that their number triggers look at all objects of
    torch as well, which takes longer (about 100 ms) than the imports themselves. What somebody has frozen stays so, and
    then nothing is moved: Python 3.12 freezes objects of its own.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if not gc.get_freeze_count():
            gc.freeze()  # with the next line: move all objects to the oldest generation, which looks at none of them
            gc.unfreeze()
        if was_enabled:
            gc.enable()

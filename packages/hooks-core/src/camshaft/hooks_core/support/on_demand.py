"""Imports of packages: exports at their first use, and without garbage collection meanwhile."""

from __future__ import annotations

import ast
import gc
import pkgutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any


def on_demand(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return a package's `__getattr__`, `__dir__` and `__all__`, which import each export at its first use.

    The exports are stated once, in `__init__.pyi` beside the package's `__init__.py`, where type checkers read them,
    too: `from camshaft.loops.fit.loop import FitLoop as FitLoop`.

    Args:
        package: The package's `__name__`.
    """
    stub = ast.parse(pkgutil.get_data(package, "__init__.pyi") or b"")
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    modules = {alias.name: str(node.module) for node in imports for alias in node.names}

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with collection_paused():
            value = getattr(import_module(modules[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: sorted({*vars(sys.modules[package]), *modules}), sorted(modules)


@contextmanager
def collection_paused() -> Iterator[None]:
    """Pause garbage collection while a package is imported, and count what is there afterwards as old.

    Modules make many objects and hardly any garbage. The collections that their number triggers look at all objects of
    torch as well, which takes longer (about 100 ms) than the imports themselves. What somebody has frozen stays so, and
    then nothing is moved: Python 3.12 freezes objects of its own. Imports within others leave it to the outermost one:
    to ask how much is frozen takes as long as to walk over it.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if not gc.get_freeze_count():
                gc.freeze()  # with the next line: move all objects to the oldest generation, but look at none
                gc.unfreeze()
            gc.enable()

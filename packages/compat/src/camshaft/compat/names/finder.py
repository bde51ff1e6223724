"""The finder of modules under the import names of earlier code, and its installation."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from camshaft.compat.names.table import COUNTERPARTS, MODULES, REFUSED_MODULES, REFUSED_NAMES, ROOTS, SUBMODULES
from camshaft.hooks_core.messages import must_be

_OTHERWISE = "Nothing stands for it. Look for it in `camshaft.trainer`, `camshaft.callbacks` or `camshaft.strategies`."


class AliasFinder(MetaPathFinder):
    """A finder of modules by the names of earlier code, before Python looks for files."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the specification of a module; None if it has none of these names.

        Raises:
            ImportError: If nothing stands for that module or that name.
        """
        place = place_of(fullname)
        if place is None:
            return None
        if place in MODULES:
            # A package, so that a name that is not there is looked for as a module, and can say what to use.
            return ModuleSpec(fullname, _AliasLoader(place), origin="camshaft.compat.names", is_package=True)
        raise ImportError(f"cannot import {fullname!r}: {_advice(place)}", name=fullname)


class _AliasLoader(Loader):
    """A loader of a module with the counterparts of its names."""

    def __init__(self, place: str) -> None:
        self.place = place

    def exec_module(self, module: ModuleType) -> None:
        """Give the module functions that find its names on first use."""
        names = names_in(self.place)
        module.__dict__["__all__"] = sorted(name for name in names if not name.startswith("_"))
        module.__dict__["__getattr__"] = _getter(module, self.place, names)
        module.__dict__["__dir__"] = lambda: sorted({*module.__dict__, *names, *SUBMODULES[self.place]})


def is_alias(module: object) -> bool:
    """Return whether a module was made by this loader."""
    spec = getattr(module, "__spec__", None)
    return isinstance(getattr(spec, "loader", None), _AliasLoader)


def place_of(fullname: str) -> str | None:
    """Return the place of a module in the table, "" for the first root; None if it is below none of the roots."""
    for root in sorted(ROOTS, key=len, reverse=True):
        if fullname == root:
            return ROOTS[root]
        if fullname.startswith(f"{root}."):
            return f"{ROOTS[root]}.{fullname[len(root) + 1 :]}".removeprefix(".")
    return None


def names_in(place: str) -> dict[str, str]:
    """Return the counterparts of all names of a place: a module and a name in it, separated by ":"."""
    found = {}
    for entry in MODULES[place].split():
        name, _, counterpart = entry.partition("=")
        found[name] = COUNTERPARTS[counterpart or name]
    return found


def load(counterpart: str) -> Any:
    """Return the object of a module and a name in it, separated by ":"; without a name, the module."""
    module, _, name = counterpart.partition(":")
    return getattr(import_module(module), name) if name else import_module(module)


def _getter(module: ModuleType, place: str, names: dict[str, str]) -> Callable[[str], Any]:
    def get(name: str) -> Any:
        if name in names:
            value = load(names[name])
        elif name in SUBMODULES[place] and not name.startswith("__"):
            value = import_module(f"{module.__name__}.{name}")
        elif name.startswith("__"):
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
        else:
            advice = _advice(f"{place}.{name}".removeprefix("."))
            raise AttributeError(f"module {module.__name__!r} has no {name!r} here: {advice}")
        if sys.modules.get(module.__name__) is module:
            setattr(module, name, value)
        return value

    return get


def _advice(place: str) -> str:
    """Return the advice for a name or a module without a counterpart."""
    name = place.rpartition(".")[2]
    if place in REFUSED_NAMES or name in REFUSED_NAMES:
        return REFUSED_NAMES.get(place) or REFUSED_NAMES[name]
    while place:
        if place in REFUSED_MODULES:
            return REFUSED_MODULES[place]
        place = place.rpartition(".")[0]
    return _OTHERWISE


_finder = AliasFinder()


def install_aliases() -> None:
    """Make the import names of earlier code stand for camshaft's, in this process, until `remove_aliases`.

    `pytorch_lightning`, `lightning`, `lightning.pytorch`, `lightning_fabric` and the modules below them, with the names
    that code of 2019 to 2024 imports from them. Installed packages of these names are not looked at meanwhile. A name
    for which nothing stands raises `ImportError` (`AttributeError` where it is an attribute), with what to use instead.

    Call it before the first of these imports; a second call changes nothing. Processes that are started afresh, such as
    workers of a `DataLoader` with the start method "spawn", have to call it as well.

    Raises:
        RuntimeError: If an installed package of one of these names has been imported already.

    Example:
        >>> install_aliases()
        >>> import pytorch_lightning as pl
        >>> from camshaft.compat import TrainingModule
        >>> pl.LightningModule is TrainingModule
        True
        >>> remove_aliases()
    """
    if _finder in sys.meta_path:
        return
    for root in ROOTS:
        module = sys.modules.get(root)
        if module is not None:
            rule = f"called before `{root}` is imported"
            where = getattr(module, "__file__", None) or root
            action = "Call it at the start of the script, or run that with `python -m camshaft.compat run`."
            raise RuntimeError(must_be("install_aliases", rule, "imported already", where, action))
    sys.meta_path.insert(0, _finder)


def remove_aliases() -> None:
    """Remove the import names; imported objects stay usable. Without `install_aliases` nothing changes."""
    if _finder not in sys.meta_path:
        return
    sys.meta_path.remove(_finder)
    for name in [name for name, module in sys.modules.items() if is_alias(module)]:
        del sys.modules[name]


@contextmanager
def aliases_installed() -> Iterator[None]:
    """Install the import names inside a `with` statement; see `install_aliases`."""
    was_installed = _finder in sys.meta_path
    install_aliases()
    try:
        yield
    finally:
        if not was_installed:
            remove_aliases()

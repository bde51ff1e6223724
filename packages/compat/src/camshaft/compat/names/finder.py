"""The finder of modules under the import names of earlier code, and its installation."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from camshaft.compat.names.stand_ins import MissingName, accept_pl_module, add_fields, stand_in
from camshaft.compat.names.table import (
    FLAG,
    FLAGS,
    ROOTS,
    advice,
    counterparts,
    defining_places,
    released,
    released_modules,
)
from camshaft.hooks_core import Callback
from camshaft.hooks_core.support.messages import must_be

_OTHERWISE = "Nothing stands for it. Look for it in `camshaft.trainer`, `camshaft.callbacks` or `camshaft.strategies`."


class AliasFinder(MetaPathFinder):
    """A finder of modules by the names of earlier code, before Python looks for files."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the specification of a module; None if it has none of these names.

        `from module import name` ends here for a name that the module has not as an attribute. Where an earlier release
        had it, the module gets its stand-in: Python then finds that, although there is no module.

        Raises:
            ImportError: If no release had that module or that name.
        """
        place = place_of(fullname)
        if place is None:
            return None
        if place in released_modules():
            # A package, so that a name that is not there is looked for as a module, and can say what to use.
            return ModuleSpec(fullname, _AliasLoader(place), origin="camshaft.compat.names", is_package=True)
        parent, _, name = fullname.rpartition(".")
        if name in released(place_of(parent) or "").earlier:
            setattr(sys.modules[parent], name, _stand_in(place_of(parent) or "", name))
            return None
        advice = _advice(place)
        raise ImportError(f"cannot import {fullname!r}: {advice}", name=fullname)


class _AliasModule(ModuleType):
    """A module in which a name stays that name once the module of the same name below it is imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (is_alias(value) and counterpart_of(place_of(self.__name__) or "", name)):
            super().__setattr__(name, value)


class _AliasLoader(Loader):
    """A loader of a module with the counterparts of its names."""

    def __init__(self, place: str) -> None:
        self.place = place

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return an empty module."""
        return _AliasModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Give the module functions that find its names on first use."""
        names = names_in(self.place)
        modules = _submodules().get(self.place, ())
        module.__dict__["__all__"] = sorted(name for name in names if not name.startswith("_"))
        module.__dict__["__getattr__"] = _getter(module, self.place)
        module.__dict__["__dir__"] = lambda: sorted({*module.__dict__, *names, *modules})


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


def names_in(place: str) -> set[str]:
    """Return the names of a module: those of release 2.6, and earlier ones for which something stands."""
    module = released(place)
    return {*module.current, *(name for name in module.earlier if counterpart_of(place, name))}


def load(counterpart: str) -> Any:
    """Return the object of a module and a name in it, separated by ":"; without a name, the module."""
    module, _, name = counterpart.partition(":")
    found = getattr(import_module(module), name) if name else import_module(module)
    if isinstance(found, type) and issubclass(found, Callback):
        accept_pl_module(found)
        add_fields(found)
    return found


@cache
def counterpart_of(place: str, name: str) -> str | None:
    """Return what stands for a name of a module: a module and a name in it, separated by ":"; None if nothing does.

    A name that a module of Lightning's imports from another one stands for the same as there.
    """
    known, above = counterparts(), place
    while above:
        if (above, name) in known:
            return known[above, name]
        above = above.rpartition(".")[0]
    home = {**released(place).earlier, **released(place).current}.get(name)
    if home is None:
        return None
    module, _, there = home.partition(":")
    module, there = module.strip(".") if home else place, there or name
    if there == name and module != place:
        return counterpart_of(module, name)
    found = known.get(("", name)) or (f"{FLAGS}:{name}" if FLAG.fullmatch(name) else None)
    return found if there == name else counterpart_of(module, there) or found


def _getter(module: ModuleType, place: str) -> Callable[[str], Any]:
    def get(name: str) -> Any:
        counterpart = counterpart_of(place, name)
        if counterpart is not None:
            value = load(counterpart)
        elif name in _submodules().get(place, ()) and not name.startswith("__"):
            value = import_module(f"{module.__name__}.{name}")
        elif name in released(place).current or (
            name in released(place).earlier and f"{place}.{name}" in released_modules()
        ):
            value = _stand_in(place, name)  # the latter before the module of the same name, as `from ... import` has it
        elif name.startswith("__"):
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
        else:
            advice = _advice(f"{place}.{name}".removeprefix("."))
            raise AttributeError(f"module {module.__name__!r} has no {name!r} here: {advice}")
        if sys.modules.get(module.__name__) is module:
            setattr(module, name, value)
        return value

    return get


def _stand_in(place: str, name: str) -> MissingName:
    """Return the stand-in for a name of a module, the same one for every module that has it."""
    home, _, there = {**released(place).earlier, **released(place).current}[name].partition(":")
    place, name = (home.strip(".") if home else defining_places()[name]), there or name
    return stand_in(_module_at(place), name, _advice(f"{place}.{name}".removeprefix(".")))


def _module_at(place: str) -> str:
    first, _, rest = place.partition(".") if place.startswith("@") else ("", "", place)
    root = {"": "lightning.pytorch", "@fabric": "lightning.fabric", "@lightning": "lightning"}[first]
    return f"{root}.{rest}".removesuffix(".")


@cache
def _submodules() -> Mapping[str, set[str]]:
    """Return by place the modules directly below: those of release 2.6, and earlier ones that define a name of ours."""
    found: dict[str, set[str]] = defaultdict(set, {"@lightning": {"fabric", "pytorch"}})
    for place in released_modules():
        module = released(place)
        homes = {**module.earlier, **module.current}
        own = [name for name, home in homes.items() if home in ("", place) and not FLAG.fullmatch(name)]
        if not module.is_gone or any(counterpart_of(place, name) for name in own):
            while place and not (place.startswith("@") and "." not in place):
                parent, _, name = place.rpartition(".")
                found[parent].add(name)
                place = parent
    return found


def _advice(place: str) -> str:
    """Return the advice for a name or a module without a counterpart."""
    known, name = advice(), place.rpartition(".")[2]
    if place in known or name in known:
        return known.get(place) or known[name]
    while place:
        if f"{place}." in known:
            return known[f"{place}."]
        place = place.rpartition(".")[0]
    return _OTHERWISE


_finder = AliasFinder()


def install_aliases() -> None:
    """Make the import names of earlier code stand for camshaft's, in this process, until `remove_aliases`.

    `pytorch_lightning`, `lightning`, `lightning.pytorch`, `lightning_fabric` and the modules below them, with the names
    that code of 2019 to today imports from them. Installed packages of these names are not looked at meanwhile.

    - A public name of Lightning 2.6 is imported. One for which nothing stands is a class that can be subclassed and
      made; it raises `MissingNameError`, with what to use, once an object is called or passed to a trainer, or a
      function is called. `hasattr` of its module is true.
    - So is one that only earlier releases had, in `from ... import`; but as an attribute it is there only if something
      stands for it, so that `hasattr` is what it is in 2.6. Where a later release has it elsewhere, it is that one:
      code that tries an old and a new place gets what works, in either order.
    - What no release had raises `ImportError`, or `AttributeError`.

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

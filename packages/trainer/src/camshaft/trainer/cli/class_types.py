"""Types of arguments that are classes, with the short names by which a command line or a file may name them."""

from __future__ import annotations

import inspect
import sys
from abc import ABCMeta, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

import camshaft.callbacks as callbacks  # imports its exports on access
import camshaft.strategies as strategies
from camshaft.hooks_core import Callback, DataHooks, StrategyDefaults
from camshaft.hooks_core.support.registered_names import CALLBACKS, LOGGERS, load_registered, registered
from camshaft.trainer.added_commands import added_classes
from camshaft.trainer.data_module import DataModule
from camshaft.trainer.module import TrainingModule


class _Registering(ABCMeta):
    """The class of a type whose attributes are what distributions register: that gives a registered name a path."""

    def __getattr__(cls, name: str) -> Any:
        group = None if name.startswith("_") else vars(cls).get("group")
        found = None if group is None else load_registered(group, name)
        if found is None:
            raise AttributeError(f"type object {cls.__name__!r} has no attribute {name!r}", name=name, obj=cls)
        return found


class ClassType(metaclass=_Registering):
    """A type whose values are instances of classes that are named, by an import path or a short name.

    The parser asks `__subclasses__` for the classes that have a short name. A class takes the place of one with the
    same name from which it derives, so that a name means one class. A name that a distribution registers is a short
    name, too, if no class has it.
    """

    roots: ClassVar[tuple[type, ...]]
    """Classes that are accepted, with all that derive from them."""

    stock: ClassVar[Any] = None
    """A package whose exports have short names, too, as far as they are accepted."""

    group: ClassVar[str | None] = None
    """The entry points whose names are short names, too."""

    @classmethod
    def registered_names(cls) -> set[str]:
        """Return the names of the entry points."""
        return set() if cls.group is None else {one.name for one in registered(cls.group)}

    @classmethod
    def exports(cls) -> Iterable[Any]:
        """Return objects of which those that are accepted have short names."""
        return [] if cls.stock is None else [getattr(cls.stock, name) for name in cls.stock.__all__]

    @classmethod
    def accepts(cls, candidate: type) -> bool:
        """Return whether instances of a class are values."""
        return issubclass(candidate, cls.roots)

    @abstractmethod
    def cannot_be_instantiated(self) -> None:
        """Nothing: only classes that are accepted have instances."""

    @classmethod
    def named_classes(cls) -> dict[str, list[type]]:
        """Return the classes by short name; more than one where a name is ambiguous."""
        named: dict[str, list[type]] = {}
        exported = [each for each in cls.exports() if inspect.isclass(each)]
        for candidate in (*exported, *_descendants(cls.roots)):
            same = named.setdefault(candidate.__name__, [])
            if not cls.accepts(candidate) or inspect.isabstract(candidate) or candidate in same:
                continue
            if not any(issubclass(other, candidate) for other in same):
                same[:] = [other for other in same if not issubclass(candidate, other)] + [candidate]
        return {name: classes for name, classes in named.items() if classes}

    @classmethod
    def __subclasses__(cls) -> list[Any]:
        """Return a class without subclasses for each that has a short name, with its name and module."""
        named = cls.named_classes()
        paths = [(name, _exporting(one), one.__qualname__) for name, classes in named.items() for one in classes]
        further = cls.registered_names() - named.keys()
        package, _, module = cls.__module__.rpartition(".")  # in two parts, so that the parser asks for no other name
        paths += [(name, package, f"{module}.{cls.__qualname__}.{name}") for name in further]
        return [type(name, (), {"__module__": module, "__qualname__": path}) for name, module, path in paths]

    @classmethod
    def __subclasshook__(cls, candidate: type) -> bool:
        return hasattr(cls, "roots") and cls.accepts(candidate)


class CallbackClass(ClassType):
    """Callbacks."""

    roots = (Callback,)
    stock: ClassVar[Any] = callbacks
    group = CALLBACKS

    @classmethod
    def exports(cls) -> Iterable[Any]:
        """Return the stock callbacks, and what other distributions add."""
        return [*super().exports(), *added_classes()]


class LoggerClass(ClassType):
    """Loggers: classes with the methods of `camshaft.hooks_core.protocols.Logger`."""

    roots: ClassVar[tuple[type, ...]] = ()
    stock: ClassVar[Any] = callbacks
    group = LOGGERS

    @classmethod
    def exports(cls) -> Iterable[Any]:
        """Return the stock loggers, and all that derives from a base of one."""
        found = [one for one in super().exports() if inspect.isclass(one) and cls.accepts(one)]
        return _descendants({base for one in found for base in one.__mro__ if cls.accepts(base)})

    @classmethod
    def accepts(cls, candidate: type) -> bool:
        """Return whether a class has the methods."""
        return all(callable(getattr(candidate, name, None)) for name in ("log_metrics", "log_hyperparams", "finalize"))


class StrategyClass(ClassType):
    """Strategies."""

    roots = (StrategyDefaults,)
    stock: ClassVar[Any] = strategies


class ModuleClass(ClassType):
    """Module: any of torch; those that derive from `TrainingModule` have short names."""

    roots = (TrainingModule,)

    @classmethod
    def accepts(cls, candidate: type) -> bool:
        """Return whether a class is one of torch's modules."""
        return issubclass(candidate, nn.Module)


class DataModuleClass(ClassType):
    """Data module: any class with hooks for data; those that derive from `DataModule` have short names."""

    roots = (DataModule,)

    @classmethod
    def accepts(cls, candidate: type) -> bool:
        """Return whether a class has hooks for data, and is no module."""
        return issubclass(candidate, DataHooks) and not issubclass(candidate, nn.Module)


class OptimizerClass(ClassType):
    """Optimizer of torch."""

    roots = (Optimizer,)


class SchedulerClass(ClassType):
    """Scheduler of torch; `ReduceLROnPlateau` takes `monitor`, the name of a logged value."""

    roots = (LRScheduler,)


def _exporting(one: type) -> str:
    """Return the first of the modules around a class that has it, as a shorter path than its own module's."""
    parts = one.__module__.split(".")
    around = (".".join(parts[:length]) for length in range(1, len(parts) + 1))
    return next((name for name in around if vars(sys.modules.get(name, sys)).get(one.__name__) is one), one.__module__)


def _descendants(roots: Iterable[type]) -> Iterator[type]:
    """Yield classes and all that derive from them, each once."""
    seen: set[type] = set()
    waiting = list(roots)
    while waiting:
        one = waiting.pop(0)
        if one not in seen:
            seen.add(one)
            yield one
            waiting += one.__subclasses__()

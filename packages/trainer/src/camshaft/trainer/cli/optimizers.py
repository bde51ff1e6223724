"""Optimizers and schedulers of a command line: their types, and `configure_optimizers` made of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any

from torch import optim
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler


class ReduceLROnPlateau(optim.lr_scheduler.ReduceLROnPlateau):
    """torch's scheduler of the same name, with the logged value that it watches.

    Args:
        monitor: Name of the logged value.
        args, kwargs: As of torch's.
    """

    def __init__(self, optimizer: Optimizer, monitor: str, *args: Any, **kwargs: Any) -> None:
        super().__init__(optimizer, *args, **kwargs)
        self.monitor = monitor


LRSchedulerTypeTuple = (LRScheduler, ReduceLROnPlateau)
"""The base classes of schedulers, as `isinstance` takes them."""
LRSchedulerTypeUnion = LRScheduler | ReduceLROnPlateau
"""Type of a scheduler."""
LRSchedulerType = type[LRScheduler] | type[ReduceLROnPlateau]
"""Type of a class of schedulers."""

OptimizerCallable = Callable[[Iterable[Any]], Optimizer]
"""Type of a module's argument that makes an optimizer of parameters."""

LRSchedulerCallable = Callable[[Optimizer], LRScheduler | ReduceLROnPlateau]
"""Type of a module's argument that makes a scheduler of an optimizer."""


def instantiate_class(args: Any, init: Mapping[str, Any]) -> Any:
    """Return an instance of a class that a configuration names.

    Args:
        args: The first positional argument, or a tuple of them.
        init: "class_path", the import path of the class, and "init_args", its keyword arguments.
    """
    module, _, name = init["class_path"].rpartition(".")
    positional = args if isinstance(args, tuple) else (args,)
    return getattr(import_module(module), name)(*positional, **init.get("init_args", {}))


def class_and_arguments(cls: type, init_args: Any) -> dict[str, Any]:
    """Return what `instantiate_class` takes, for a class whose arguments are options."""
    arguments = init_args.as_dict() if hasattr(init_args, "as_dict") else init_args
    return {"class_path": f"{cls.__module__}.{cls.__qualname__}", "init_args": arguments or {}}

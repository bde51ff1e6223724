"""Registries of classes by name: strategies, kinds of devices, and the classes of command lines up to 1.9."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from types import ModuleType
from typing import Any

from camshaft.hooks_core.support.messages import must_be
from camshaft.trainer.configuration import STRATEGY_NAMES

_Made = Callable[..., Any]


class Registry(dict[str, dict[str, Any]]):
    """Classes by name, each with a description and the arguments that its objects get.

    Args:
        kind: What the classes are, which is the key of the class in an entry: "strategy" or "accelerator".
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        self._kind, self._where = kind, f"{kind.capitalize()}Registry"

    def register(
        self, name: str, made: _Made | None = None, description: str = "", override: bool = False, **init_params: Any
    ) -> _Made:
        """Add a class, or another function that makes an object, under a name; or decorate it.

        Args:
            name: The name.
            made: The class; None returns a decorator.
            description: A text.
            override: Whether one of that name may be replaced.
            init_params: Arguments of its constructor.

        Raises:
            ValueError: If the name is there already.
        """
        made = init_params.pop(self._kind, made)  # by its name there
        if name in self and not override:
            raise ValueError(must_be("name", "a new name", name, self._where, "Pass override=True."))
        if made is None:
            return partial(self.register, name, description=description, override=override, **init_params)
        entry = {self._kind: made, f"{self._kind}_name": name}
        self[name] = {"description": description or "", "init_params": init_params, **entry}
        return made

    def get(self, name: str, default: Any = None) -> Any:
        """Return an object of the class of that name.

        Raises:
            KeyError: If there is none, and no default.
        """
        if name in self:
            return self[name][self._kind](**self[name]["init_params"])
        if default is None:
            raise KeyError(must_be("name", f"one of {', '.join(self)}", name, self._where, "Pass one of these."))
        return default

    def remove(self, name: str) -> None:
        """Remove the class of that name."""
        self.pop(name)

    def available_strategies(self) -> list[str]:
        """Return the names."""
        return list(self)

    def available_accelerators(self) -> set[str]:
        """Return the names."""
        return set(self)


StrategyRegistry = Registry("strategy")


def needs_attaching(arguments: Mapping[str, Any]) -> bool:
    """Return whether a trainer's strategy takes something from its arguments that a strategy of today does not.

    Args:
        arguments: Arguments of the trainer.
    """
    strategy, accelerator = arguments.get("strategy"), arguments.get("accelerator")
    if isinstance(strategy, str):
        is_asked = strategy in StrategyRegistry and strategy not in STRATEGY_NAMES
    else:
        is_asked = hasattr(strategy, "attach")
    is_object = accelerator is not None and not isinstance(accelerator, str)
    return is_asked or is_object or getattr(arguments.get("precision"), "is_plugin", False)


class ClassRegistry(dict[str, type]):
    """Classes that a decorator adds by name; a command line finds them by their names anyway."""

    def __call__(self, cls: type, key: str | None = None, override: bool = False) -> type:
        """Add a class, and return it."""
        if override or (key or cls.__name__) not in self:
            self[key or cls.__name__] = cls
        return cls

    def register_classes(self, module: ModuleType, base_cls: type, override: bool = False) -> None:
        """Add the classes of a module that derive from a base."""
        for cls in _classes(module, base_cls):
            self(cls, override=override)

    @property
    def names(self) -> list[str]:
        """The names."""
        return list(self)

    @property
    def classes(self) -> tuple[type, ...]:
        """The classes."""
        return tuple(self.values())


CALLBACK_REGISTRY, DATAMODULE_REGISTRY, MODEL_REGISTRY = ClassRegistry(), ClassRegistry(), ClassRegistry()
LR_SCHEDULER_REGISTRY, OPTIMIZER_REGISTRY = ClassRegistry(), ClassRegistry()


def register_classes(registry: Any, method: str, module: ModuleType, parent: type) -> None:
    """Let the classes of a module add themselves to a registry.

    Args:
        registry: The registry.
        method: The name of the class method that does it, such as "register_strategies".
        module: The module.
        parent: The base of the classes, whose own method is not called.
    """
    for cls in _classes(module, parent):
        if getattr(cls, method).__func__ is not getattr(parent, method).__func__:
            getattr(cls, method)(registry)


def _classes(module: ModuleType, parent: type) -> list[type]:
    """Return the classes of a module that derive from another one."""
    classes = (cls for _, cls in inspect.getmembers(module, inspect.isclass))
    return [cls for cls in classes if issubclass(cls, parent) and cls is not parent]

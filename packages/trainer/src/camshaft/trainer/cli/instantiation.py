"""Instantiation of modules and data modules from a configuration, which they save as hyperparameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

from jsonargparse import ArgumentParser

from camshaft.trainer.hyperparameters import CLASS_PATH_KEY, INSTANTIATOR_KEY, constructed_with


class Instantiator:
    """Makes a module or a data module, and lets `save_hyperparameters` save the configuration of its arguments.

    Args:
        key: Key of the arguments.
        configuration: The configuration of a run, as plain values.
    """

    def __init__(self, key: str, configuration: Mapping[str, Any]) -> None:
        self._key, self._configuration = key, configuration.get(key)

    def __call__(
        self, class_type: type, *args: Any, applied_instantiation_links: Mapping[str, Any], **kwargs: Any
    ) -> Any:
        """Return an instance.

        Args:
            args, kwargs: Its arguments.
            applied_instantiation_links: By key, arguments that were taken from other objects.
        """
        arguments = self._arguments_of(class_type)
        if arguments is None:
            return class_type(*args, **kwargs)
        for target, value in applied_instantiation_links.items():
            if target.startswith(f"{self._key}."):
                _set(arguments, target.removeprefix(f"{self._key}.").removeprefix("init_args."), value)
        with constructed_with(class_type, {**arguments, INSTANTIATOR_KEY: f"{__name__}.instantiate_module"}):
            return class_type(*args, **kwargs)

    def _arguments_of(self, class_type: type) -> dict[str, Any] | None:
        """Return the arguments of a class; None if it is that of an argument of the module."""
        given = self._configuration
        if not isinstance(given, Mapping):
            return None if given is not None else {}
        if "class_path" not in given:
            return dict(given)
        if _imported(given["class_path"]) is not class_type:
            return None
        arguments = {**(given.get("init_args") or {}), **(given.get("dict_kwargs") or {})}
        return {CLASS_PATH_KEY: given["class_path"], **arguments}


def instantiate_module(cls: type, arguments: Mapping[str, Any]) -> Any:
    """Return a module or a data module with the arguments that a checkpoint holds; imports the classes named there.

    Args:
        cls: Its class, or a base of it if `arguments` name the class.
        arguments: By name, what `Instantiator` has let it save.
    """
    values = {name: value for name, value in arguments.items() if name not in (CLASS_PATH_KEY, INSTANTIATOR_KEY)}
    parser = ArgumentParser(exit_on_error=False)
    config: dict[str, Any] = values
    if CLASS_PATH_KEY in arguments:
        parser.add_subclass_arguments(cls, "module", fail_untyped=False)
        config = {"class_path": arguments[CLASS_PATH_KEY], "dict_kwargs": values}
    else:
        parser.add_class_arguments(cls, "module", fail_untyped=False)
    return parser.instantiate(parser.parse_object({"module": config})).module


def named_classes(configuration: Any) -> Iterator[str]:
    """Yield the import paths of all classes that a configuration names."""
    values: Any = ()
    if isinstance(configuration, Mapping):
        for name, value in configuration.items():
            if name in ("class_path", CLASS_PATH_KEY) and isinstance(value, str):
                yield value
        values = configuration.values()
    elif isinstance(configuration, (list, tuple)):
        values = configuration
    for value in values:
        yield from named_classes(value)


def _imported(path: str) -> Any:
    """Return the object of an import path; its class may be inside another one."""
    outer, _, name = path.rpartition(".")
    try:
        holder = import_module(outer)
    except ModuleNotFoundError:
        holder = _imported(outer)
    return getattr(holder, name, None)


def _set(values: dict[str, Any], key: str, value: Any) -> None:
    *outer, last = key.split(".")
    for name in outer:
        values = values[name]
    values[last] = value

"""A parser with arguments for trainers, modules, data modules, callbacks, optimizers and schedulers."""

from __future__ import annotations

import difflib
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, NoReturn, Union, get_args, get_origin

import torch
from jsonargparse import ArgumentError, ArgumentParser, register_unresolvable_import_paths, set_parsing_settings
from jsonargparse.typing import class_from_function
from torch.optim import Optimizer

from camshaft.hooks_core import Callback
from camshaft.hooks_core.support.messages import must_be
from camshaft.hooks_core.support.registered_names import describe, registered
from camshaft.trainer.cli.class_types import (
    CallbackClass,
    ClassType,
    DataModuleClass,
    LoggerClass,
    ModuleClass,
    OptimizerClass,
    SchedulerClass,
    StrategyClass,
)
from camshaft.trainer.cli.help_format import TopicFormatter, show_briefly, show_topics
from camshaft.trainer.cli.optimizers import LRSchedulerTypeTuple
from camshaft.trainer.data_module import DataModule
from camshaft.trainer.module import TrainingModule
from camshaft.trainer.trainer import Trainer

_EXIT_USAGE = 2


def _refused(error: Exception) -> tuple[Any, Any]:
    """Return the option that refused its value, and the value, as the calls that led to an error had them."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        option, value = frame.f_locals.get("self"), frame.f_locals.get("value")
        if hasattr(option, "_typehint") and value is not None:
            return option, value
    return None, None


def _bad_value(option: Any, value: Any) -> str:
    """Return the error for a value that is of none of the types of an option."""
    types = list(_types_in(option._typehint))
    classes = [one for one in types if hasattr(one, "named_classes")]
    if classes:
        rule = "a class, by its import path or short name"
        part = getattr(value, "key", None)
        got = repr(value) if part is None else f"its argument {part!r} without one"
        return f"--{option.dest} must be {rule}, but got {got}. {_advice(classes[0], '' if part else str(value))}"
    *first, last = dict.fromkeys("null" if one is NoneType else getattr(one, "__name__", str(one)) for one in types)
    return f"--{option.dest} must be {', '.join(first)}{' or ' if first else ''}{last}, but got {value!r}."


def _types_in(typehint: Any) -> Iterator[Any]:
    """Yield the types of a union, the items' types of a list, and the values of a literal."""
    if get_origin(typehint) is Literal:
        yield from map(repr, get_args(typehint))
    elif get_origin(typehint) in (Union, UnionType, list):
        for one in get_args(typehint):
            yield from _types_in(one)
    else:
        yield typehint


def _advice(kind: type[ClassType], name: str) -> str:
    """Return what to do about a name that is no class of a kind."""
    module, _, last = name.rpartition(".")
    named = kind.named_classes()
    if not module and len(named.get(name, ())) > 1:
        return f"Pass one of {', '.join(f'{one.__module__}.{name}' for one in named[name])}."
    if name in kind.registered_names():
        entry = next(one for one in registered(str(kind.group)) if one.name == name)
        action = "It is of another kind." if name.isidentifier() else "No Python identifier: pass the import path."
        return f"{describe(entry)} registers {entry.value} by that name. {action}"
    if not module:
        return _closest(name, {*named, *kind.registered_names()})
    try:
        found = vars(import_module(module))
    except ImportError as error:
        return f"Import of {module!r}: {error}."
    return "It is a class of another kind." if last in found else _closest(last, found)


def _closest(name: str, names: Iterable[str]) -> str:
    """Return a suggestion for a name: one that it begins, the closest, or all at its level."""
    last = name.rpartition(".")[2]
    options = sorted(one for one in names if not one.startswith("_") and not one.endswith(".help"))
    begun = [one for one in options if last and one.rpartition(".")[2].startswith(last)]
    close = begun or difflib.get_close_matches(name, options, n=1, cutoff=0.5)
    if close:
        return f"Did you mean {close[0]!r}?"
    return f"There are: {', '.join(one for one in options if one.count('.') <= name.count('.'))}."


register_unresolvable_import_paths(torch)  # some of its functions do not say where they are
if find_spec("fsspec") is not None:
    set_parsing_settings(config_read_mode_fsspec_enabled=True)

AUTOMATIC = "AUTOMATIC"
"""Link of an optimizer or a scheduler that goes into `configure_optimizers` of the module."""

_TRAINER_TYPES: Mapping[str, Any] = {
    "callbacks": list[CallbackClass] | CallbackClass | None,
    "logger": LoggerClass | list[LoggerClass] | bool | None,
    "strategy": StrategyClass | str,
    "devices": int | list[int] | str,
    "precision": int | str | None,
    "profiler": CallbackClass | bool | str | None,
    "default_root_dir": str | None,
    "report": str | None,
}
"""Types of arguments that take many forms, restricted to those of a command line or a file."""

_ANY_SUBCLASS: Mapping[Any, Any] = {
    TrainingModule: ModuleClass,
    DataModule: DataModuleClass,
    (Optimizer,): (OptimizerClass,),
    LRSchedulerTypeTuple: (SchedulerClass,),
}
"""By base classes, the types that have short names for their subclasses, and take other classes as well."""


class TrainerArgumentParser(ArgumentParser):
    """A parser of options whose names are written out, to which the arguments of classes are added.

    Its errors are short and name the closest option.

    Args:
        *args: As of `jsonargparse.ArgumentParser`.
        description: First line of the help.
        env_prefix: First word of environment variables.
        default_env: Whether environment variables are read: `CAMSHAFT_FIT__TRAINER__MAX_EPOCHS=3`.
        **kwargs: As of `jsonargparse.ArgumentParser`.

    Attributes:
        callback_keys: Keys of callbacks that were added by `add_class_args`.
        optimizers, lr_schedulers: By key, the classes and the link that were added.
    """

    _errors_inside: ClassVar[list[str]] = []
    """Errors of the parsers that jsonargparse made for classes, within the parsing under way."""

    def __init__(
        self,
        *args: Any,
        description: str = "Train and evaluate modules.",
        env_prefix: str = "CAMSHAFT",
        default_env: bool = False,
        **kwargs: Any,
    ) -> None:
        kwargs = {"formatter_class": TopicFormatter, "allow_abbrev": False, **kwargs}
        super().__init__(*args, description=description, env_prefix=env_prefix, default_env=default_env, **kwargs)
        self.callback_keys: list[str] = []
        self.optimizers: dict[str, tuple[Any, str]] = {}
        self.lr_schedulers: dict[str, tuple[Any, str]] = {}

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print the error to the standard error, and exit with 2; raise it where `exit_on_error` is false."""
        text = self._explained(message, ex)
        if not self.exit_on_error:
            self._errors_inside.append(text)
            raise ArgumentError(None, text) from ex
        self._errors_inside.clear()
        print(f"error: {text}\nSee `{self.prog.replace(' [options]', '')} --help`.", file=sys.stderr)
        self.exit(_EXIT_USAGE)
        raise AssertionError  # pragma: no cover - exit does not return

    def validate(self, namespace: Any, *args: Any, **kwargs: Any) -> None:
        """Check a configuration; an unknown key raises `KeyError` with the closest option."""
        try:
            super().validate(namespace, *args, **kwargs)
        except KeyError as error:
            unknown = [self._no_option(key) for key in namespace.keys() if not self._is_option(key)]  # noqa: SIM118
            if unknown:
                raise type(error)(unknown[0]) from error
            raise

    def _explained(self, message: str, ex: Exception | None) -> str:
        """Return the text of an error: of an unknown option, of a refused value, or else the parser's message."""
        if ex is None:
            given = [word.partition("=")[0] for word in getattr(self, "args", None) or () if word.startswith("--")]
            unknown = [self._no_option(one[2:]) for one in given if not self._is_option(one[2:].rstrip("+"))]
            return "\n".join(dict.fromkeys(unknown)) or message
        option, value = _refused(ex)
        if option is None:
            return message
        inside = next((text for text in reversed(self._errors_inside) if text in message), None)
        if inside is not None:
            return f"--{option.dest}.{inside[2:]}" if inside.startswith("--") else f"--{option.dest}: {inside}"
        return message if isinstance(value, (Mapping, list)) else _bad_value(option, value)

    def _is_option(self, key: str) -> bool:
        """Return whether a key is that of an option, or of a part or a group of options."""
        key = self._without_subcommand(key)
        return any(
            f"{name}.".startswith(f"{key}.") or (takes_parts and key.startswith(f"{name}."))
            for name, takes_parts in self._options().items()
        )

    def _no_option(self, key: str) -> str:
        key = self._without_subcommand(key)
        return f"--{key} is not an option. {_closest(key, self._options())}"

    def _without_subcommand(self, key: str) -> str:
        first, _, rest = key.partition(".")
        return rest if first in self._subparsers_by_name() and rest else key

    def _subparsers_by_name(self) -> Mapping[str, TrainerArgumentParser]:
        action: Any = getattr(self, "_subcommands_action", None)
        return {} if action is None else action.choices

    def _options(self) -> dict[str, bool]:
        """Return the keys of the options, each with whether its value may have parts with keys of their own."""
        options = {action.dest: hasattr(action, "_typehint") for action in self._actions}
        for parser in self._subparsers_by_name().values():
            options |= parser._options()
        return options

    def add_class_args(
        self, cls: Any, nested_key: str | None, subclass_mode: bool = False, required: bool = True
    ) -> list[str]:
        """Add the arguments of a class of the trainer, a module, a data module or a callback.

        Args:
            cls: The class, or a function with annotations that returns an instance of it.
            nested_key: Key of its arguments; callbacks of these keys go to the trainer. None puts a trainer's at the
                top.
            subclass_mode: Whether any subclass may be named.
            required: Whether one must be named, in subclass mode.

        Returns:
            The keys that were added.

        Raises:
            TypeError: If it is something else.
        """
        made = cls if isinstance(cls, type) or not callable(cls) else class_from_function(cls)
        if not isinstance(made, type):
            action = "Pass the class, or a function that returns an instance."
            raise TypeError(must_be("cls", "a class or a function", cls, "TrainerArgumentParser", action))
        if issubclass(made, Trainer):
            return self._add_trainer(made, nested_key)
        if issubclass(made, Callback) and nested_key is not None:
            self.callback_keys.append(nested_key)
        if subclass_mode and nested_key is not None:
            self._add_named(made, nested_key, required=required)
            return [nested_key]
        added: list[str] = self.add_class_arguments(made, nested_key, fail_untyped=False, sub_configs=True)
        return added

    def add_optimizer_args(
        self, optimizer_class: Any = (Optimizer,), nested_key: str = "optimizer", link_to: str = AUTOMATIC
    ) -> None:
        """Add the arguments of an optimizer, without `params`.

        Args:
            optimizer_class: The class; a tuple lets any subclass of its classes be named.
            nested_key: Key of the arguments.
            link_to: Key of the argument that takes class and arguments; "AUTOMATIC" makes `configure_optimizers`.
        """
        self._add_configured(optimizer_class, Optimizer, nested_key, "params")
        self.optimizers[nested_key] = (optimizer_class, link_to)

    def add_lr_scheduler_args(
        self, lr_scheduler_class: Any = LRSchedulerTypeTuple, nested_key: str = "lr_scheduler", link_to: str = AUTOMATIC
    ) -> None:
        """Add the arguments of a scheduler, without `optimizer`; see `add_optimizer_args`."""
        self._add_configured(lr_scheduler_class, LRSchedulerTypeTuple, nested_key, "optimizer")
        self.lr_schedulers[nested_key] = (lr_scheduler_class, link_to)

    def _add_configured(self, classes: Any, base: Any, nested_key: str, argument: str) -> None:
        listed = classes if isinstance(classes, tuple) else (classes,)
        for one in listed:
            if not issubclass(one, base):
                action = "Pass classes of torch, or such that derive from one."
                raise TypeError(must_be(nested_key, "optimizers or schedulers", one, "TrainerArgumentParser", action))
        settings: dict[str, Any] = {"instantiate": False, "skip": {argument}}
        if listed is not classes:
            self.add_class_arguments(classes, nested_key, fail_untyped=False, sub_configs=True, **settings)
        else:
            self._add_named(classes, nested_key, **settings)

    def _add_named(self, classes: Any, nested_key: str, **settings: Any) -> None:
        """Add an option that names a subclass, with its arguments."""
        accepted = _ANY_SUBCLASS.get(classes, classes)
        text = 'A class, or "class_path" and "init_args".'
        self.add_subclass_arguments(accepted, nested_key, fail_untyped=False, help=text, metavar="CLASS", **settings)
        show_briefly(self, nested_key)

    def _add_trainer(self, trainer_class: type, nested_key: str | None) -> list[str]:
        """Add the arguments of a trainer, sorted by topic in the help."""
        of_class = ArgumentParser()
        of_class.add_class_arguments(trainer_class, nested_key, fail_untyped=False)
        added: list[str] = self.add_class_arguments(
            trainer_class,
            nested_key,
            fail_untyped=False,
            instantiate=False,
            sub_configs=True,
            skip={*_TRAINER_TYPES, "catalogue"},  # which has no words
        )
        groups: Any = self.groups
        group: Any = self if nested_key is None else groups[nested_key]
        for option in of_class._actions:
            kind = _TRAINER_TYPES.get(option.dest.rpartition(".")[2])
            if kind is not None:
                takes_file = any(hasattr(one, "named_classes") for one in _types_in(kind))
                group.add_argument(
                    f"--{option.dest}", type=kind, default=option.default, help=option.help, sub_configs=takes_file
                )
                added.append(option.dest)
        if nested_key is not None:
            show_topics(self, nested_key)
        return added

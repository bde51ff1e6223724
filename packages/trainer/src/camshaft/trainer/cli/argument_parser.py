"""A parser with arguments for trainers, modules, data modules, callbacks, optimizers and schedulers."""

from __future__ import annotations

import difflib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NoReturn, get_type_hints

import torch
from jsonargparse import ArgumentError, ArgumentParser, register_unresolvable_import_paths, set_parsing_settings
from jsonargparse.typing import class_from_function
from torch.optim import Optimizer

from camshaft.hooks_core import Callback
from camshaft.hooks_core.messages import must_be
from camshaft.trainer.cli.class_types import (
    CLASSES,
    CallbackClass,
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

_OF_CLASS = re.compile(r"Problem with given class_path '([\w.]+)':\s+Option '([^']+)' is not accepted")
_OF_MODULE = re.compile(r"module '([\w.]+)' has no attribute '(\w+)'")
_OF_GROUP = re.compile(r"(?:Group '([\w.]+)'|Subcommand '\w+'|Parser) does not accept option '([^']+)'")
_OF_ITSELF = re.compile(r"\AOption '([^']+)' is not accepted")  # a parser that was made for a class
_OF_WORDS = re.compile(r"unrecognized arguments: (.*)", re.IGNORECASE)
_KEY = re.compile(r'^(\s*)(?:- )?Parser key "([\w.]+)":(.*)$')
_EXPECTED = re.compile(r"Expected an? (?:<class '(?:\w+\.)*(\w+)'>|typing\.Literal\[(.*?)\])")
_GOT = re.compile(r"(?:Given|Got) value: (.*)")
_NO_CLASS = re.compile(r"Expected a dot import path string: (\S+)")
_NOISE = re.compile(
    r"Does not validate against any|Subtypes: |Errors:$|Given value|Expected a path but|is abstract$|^$"
    r"|Not a valid subclass|Subclass types expect one of|a class path \(str\)|a dict with"
    r"|Does not implement|a dict without class_path|Expected an import path or a subclass spec"
)
_WORDS = {"NoneType": "null", "list": "a list"}
_EXIT_USAGE = 2


class OptionParser(ArgumentParser):
    """A parser of options whose names are written out, and whose errors are short and name what is close."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print the error and suggestions to the standard error, and exit with 2."""
        if not self.exit_on_error:
            raise ArgumentError(None, message) from ex
        guesses = [f"{name!r} is not there. {guess}" for name, guess in self._guesses(message)]
        text = "\n".join([_in_a_line(message, _short_names, _closest), *dict.fromkeys(guesses)])
        program = self.prog.replace(" [options]", "")
        print(f"error: {text}\nSee `{program} --help`.", file=sys.stderr)
        self.exit(_EXIT_USAGE)
        raise AssertionError  # pragma: no cover - exit does not return

    def _guesses(self, message: str) -> Iterator[tuple[str, str]]:
        """Yield unknown names, each with a suggestion."""
        for class_path, name in _OF_CLASS.findall(message):
            yield name, _closest(name, _parameters_of(class_path))
        for module, name in _OF_MODULE.findall(message):
            yield name, _closest(name, list(vars(import_module(module))))
        for name in _OF_ITSELF.findall(message):
            yield name, _closest(name, self._option_names())
        for group, option in _OF_GROUP.findall(message):
            name = f"{group}.{option}" if group else option
            yield name, _closest(name, self._option_names())
        for words in _OF_WORDS.findall(message):
            for word in re.findall(r"--([\w.]+)", words):
                yield word, _closest(word, self._option_names())

    def _option_names(self) -> list[str]:
        names = [option.removeprefix("--") for action in self._actions for option in action.option_strings]
        subcommands = getattr(self, "_subcommands_action", None)
        for parser in () if subcommands is None else subcommands.choices.values():
            names += parser._option_names()
        return sorted(set(names))


def _closest(name: str, names: list[str]) -> str:
    """Return a suggestion for a name: the closest, or the one that it begins, or all at its level."""
    last = name.rpartition(".")[2]
    options = [one for one in names if not one.startswith("-") and not one.endswith((".help", "+"))]
    close = difflib.get_close_matches(name, options, n=1, cutoff=0.5)
    close = [one for one in options if one.rpartition(".")[2].startswith(last)] or close
    if close:
        return f"Did you mean {close[0]!r}?"
    return f"There are: {', '.join(one for one in options if one.count('.') <= name.count('.'))}."


def _short_names(option: str) -> Iterable[str]:
    return CLASSES[option].named_classes() if option in CLASSES else ()


def _parameters_of(class_path: str) -> list[str]:
    module, _, name = class_path.rpartition(".")
    parameters = inspect.signature(getattr(import_module(module), name)).parameters.values()
    return [one.name for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]


def _in_a_line(message: str, class_names: Callable[[str], Iterable[str]], closest: Callable[..., str]) -> str:
    """Return an error in a line, if it is about the value of an option; else as it is.

    Args:
        message: The parser's error.
        class_names: Returns the short names of classes that an option takes; none if it takes other values.
        closest: Returns a suggestion for a name, among some.
    """
    lines = message.splitlines()
    found = [(at, match) for at, line in enumerate(lines) if (match := _KEY.match(line))]
    if not found:
        return message
    outer, inner = found[0][1][2], found[-1][1][2]
    option = f"--{outer}" if len(found) == 1 or inner == outer else f"--{outer}.{inner}"
    at, match = found[-1]
    told = [match[3].strip(), *_indented(lines[at + 1 :], len(match[1]))]
    text = "\n".join(told)
    got = (_GOT.findall(text) or [""])[0]
    classes = _NO_CLASS.findall(text)
    names = sorted(class_names(outer)) if classes and len(found) == 1 else []
    if names:
        return (
            f"{option} must be a class, by its import path or short name, but got {got!r}. {closest(classes[0], names)}"
        )
    others = [line for line in dict.fromkeys(told) if not _NOISE.search(line) and not _EXPECTED.search(line)]
    others = [line for line in others if not _NO_CLASS.search(line)]
    if others:
        return f"{option}: {' '.join(others)}"
    kinds = [_WORDS.get(kind, kind) or literal for kind, literal in _EXPECTED.findall(text)]
    *first, last = dict.fromkeys(kinds or ["another value"])
    return f"{option} must be {', '.join(first)}{' or ' if first else ''}{last}, but got {got!r}."


def _indented(lines: list[str], indentation: int) -> list[str]:
    """Return the leading lines that are empty or indented by more, without bullets."""
    told = []
    for line in lines:
        if line.strip() and len(line) - len(line.lstrip()) <= indentation:
            break
        told.append(line.strip().removeprefix("- ").strip())
    return told


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

_ANY_SUBCLASS: Mapping[type, type] = {TrainingModule: ModuleClass, DataModule: DataModuleClass}
"""By base class that a module must have, the type that takes other classes as well."""


class TrainerArgumentParser(OptionParser):
    """A parser of options, to which the arguments of classes are added.

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

    def __init__(
        self,
        *args: Any,
        description: str = "Train and evaluate modules.",
        env_prefix: str = "CAMSHAFT",
        default_env: bool = False,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("formatter_class", TopicFormatter)
        super().__init__(*args, description=description, env_prefix=env_prefix, default_env=default_env, **kwargs)
        self.callback_keys: list[str] = []
        self.optimizers: dict[str, tuple[Any, str]] = {}
        self.lr_schedulers: dict[str, tuple[Any, str]] = {}

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
            raise TypeError(
                must_be("cls", "a class or a function", cls, "TrainerArgumentParser.add_class_args", action)
            )
        if issubclass(made, Trainer):
            return self._add_trainer(made, nested_key)
        if issubclass(made, Callback) and nested_key is not None:
            self.callback_keys.append(nested_key)
        if subclass_mode and nested_key is not None:
            base = _ANY_SUBCLASS.get(made, made)
            self.add_subclass_arguments(
                base,
                nested_key,
                fail_untyped=False,
                required=required,
                help='A class, or "class_path" and "init_args".',
                metavar="CLASS",
            )
            show_briefly(self, nested_key)
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
        settings: dict[str, Any] = {"instantiate": False, "fail_untyped": False, "skip": {argument}}
        if listed is not classes:
            self.add_class_arguments(classes, nested_key, sub_configs=True, **settings)
        else:
            accepted = {(Optimizer,): (OptimizerClass,), LRSchedulerTypeTuple: (SchedulerClass,)}.get(classes, classes)
            self.add_subclass_arguments(
                accepted,
                nested_key,
                help='A class, or "class_path" and "init_args".',
                metavar="CLASS",
                **settings,
            )
            show_briefly(self, nested_key)

    def _add_trainer(self, trainer_class: type, nested_key: str | None) -> list[str]:
        """Add the arguments of a trainer, sorted by topic in the help."""
        typed = _typed(trainer_class)
        added: list[str] = self.add_class_arguments(
            typed, nested_key, fail_untyped=False, instantiate=False, sub_configs=True
        )
        if nested_key is not None:
            show_topics(self, nested_key)
        return added


def _typed(trainer_class: type) -> type:
    """Return a subclass of a trainer's class whose signature is written out for the parser.

    Annotations are resolved, and arguments that take many forms have the types of a command line.
    """

    def init(self: Any, **arguments: Any) -> None: ...

    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    for name, one in _parameters(trainer_class).items():
        annotation = _TRAINER_TYPES.get(name, one.annotation)
        parameters.append(one.replace(annotation=annotation, kind=one.KEYWORD_ONLY))
    init.__name__ = "__init__"
    init.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    facts = {"__init__": init, "__doc__": trainer_class.__doc__, "__module__": trainer_class.__module__}
    stands_for_function = "wrapped_function" in vars(trainer_class)
    return type(trainer_class.__name__, trainer_class.__bases__[:1] if stands_for_function else (trainer_class,), facts)


def _parameters(trainer_class: type) -> dict[str, inspect.Parameter]:
    """Return the parameters of a trainer's class; where it passes `**kwargs` on, those of its bases, too."""
    found: dict[str, inspect.Parameter] = {}
    made_by = getattr(trainer_class, "wrapped_function", None)  # of a class that stands for a function
    for maker in [made_by] if made_by else [vars(base)["__init__"] for base in _with_init(trainer_class)]:
        function = inspect.unwrap(maker, stop=lambda one: hasattr(one, "__signature__"))  # which it states itself
        try:
            hints = get_type_hints(function)
        except NameError:  # a name that only type checkers import
            hints = {}
        parameters = list(inspect.signature(function).parameters.values())[0 if made_by else 1 :]
        for one in parameters:
            if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
                found.setdefault(one.name, one.replace(annotation=hints.get(one.name, one.annotation)))
        if not any(one.kind is one.VAR_KEYWORD for one in parameters):
            break
    return found


def _with_init(cls: type) -> list[type]:
    return [base for base in cls.__mro__ if base is not object and "__init__" in vars(base)]

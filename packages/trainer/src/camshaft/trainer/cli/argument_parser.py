"""A parser with arguments for trainers, modules, data modules, callbacks, optimizers and schedulers."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, get_type_hints

import torch
from jsonargparse import register_unresolvable_import_paths, set_parsing_settings
from jsonargparse.typing import class_from_function
from torch.optim import Optimizer

from camshaft.hooks_core import Callback
from camshaft.hooks_core.messages import must_be
from camshaft.trainer.cli.class_types import (
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
from camshaft.trainer.cli.option_parser import OptionParser
from camshaft.trainer.data_module import DataModule
from camshaft.trainer.module import TrainingModule
from camshaft.trainer.trainer import Trainer

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
        function = inspect.unwrap(maker)
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

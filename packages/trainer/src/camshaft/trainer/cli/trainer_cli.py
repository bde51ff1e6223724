"""`TrainerCLI`: a command line for modules and data modules, as users of LightningCLI know it."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Mapping
from functools import partial, update_wrapper
from importlib.metadata import version
from types import MethodType
from typing import Any

import yaml  # type: ignore[import-untyped, unused-ignore]
from docstring_parser import parse as parse_docstring
from jsonargparse import Namespace
from jsonargparse.typing import class_from_function
from torch.optim import Optimizer

from camshaft.hooks_core import is_overridden, no_op
from camshaft.hooks_core.support.messages import must_be, warn_user
from camshaft.hooks_core.support.remote_files import exists, local_path
from camshaft.strategies import read_checkpoint
from camshaft.trainer.cli.argument_parser import AUTOMATIC, TrainerArgumentParser
from camshaft.trainer.cli.instantiation import Instantiator, named_classes
from camshaft.trainer.cli.optimizers import (
    LRSchedulerTypeTuple,
    ReduceLROnPlateau,
    class_and_arguments,
    instantiate_class,
)
from camshaft.trainer.cli.save_config import SaveConfigCallback
from camshaft.trainer.configuration import listed
from camshaft.trainer.data_module import DataModule
from camshaft.trainer.hyperparameters import HYPER_PARAMETERS_KEY
from camshaft.trainer.module import TrainingModule
from camshaft.trainer.seeding import GLOBAL_SEED_VARIABLE, seed_everything
from camshaft.trainer.trainer import Trainer

ArgsType = list[str] | dict[str, Any] | Namespace | None
"""Type of `TrainerCLI(args=...)`."""


class TrainerCLI:
    """A command line that makes a module, a data module and a trainer from options and files, and runs a verb.

    The first word is the verb: `python train.py fit --config run.yaml --trainer.max_epochs 3`. A subclass may define
    `before_fit`, `after_fit` and so on, called around the verb, and `fit` and so on, called in its place with the
    verb's keyword arguments.

    Args:
        model_class: The module's class, or a function with annotations that returns one. None lets `--model` name any.
        datamodule_class: The data module's, likewise; None lets `--data` name any, or none.
        save_config_callback: Saves the configuration into the log folder; None saves none.
        save_config_kwargs: Further arguments of that.
        trainer_class: The trainer's class, or a function with annotations that returns one.
        trainer_defaults: Values of the trainer's arguments where neither options nor files say otherwise; those of
            "callbacks" are always added.
        seed_everything_default: Seed for Python, NumPy and torch, set before anything is made. True takes that of the
            environment or 0, false none.
        parser_kwargs: Arguments of the parsers; those of one verb's under its name.
        parser_class: Class of the parsers.
        subclass_mode_model: Whether `--model` names a class that derives from `model_class`.
        subclass_mode_data: Likewise of `--data`.
        args: Words, or a configuration, in place of the process's command line.
        run: If false there is no verb; the objects are made, and are attributes.
        auto_configure_optimizers: Whether there are `--optimizer` and `--lr_scheduler`, which take the place of the
            module's `configure_optimizers`.
        load_from_checkpoint_support: Whether `save_hyperparameters` saves what options and files said, with names of
            classes in place of objects.

    Attributes:
        parser, config, config_init: The parser, the configuration, and the same with the objects made from it.
        config_dump: The configuration of the run, in plain values.
        subcommand: The verb, or None.
        model, datamodule, trainer: The objects.
    """

    model: Any
    datamodule: Any
    trainer: Any

    def __init__(
        self,
        model_class: Any = None,
        datamodule_class: Any = None,
        save_config_callback: type[SaveConfigCallback] | None = SaveConfigCallback,
        save_config_kwargs: dict[str, Any] | None = None,
        trainer_class: Any = Trainer,
        trainer_defaults: dict[str, Any] | None = None,
        seed_everything_default: bool | int = True,
        parser_kwargs: dict[str, Any] | None = None,
        parser_class: type[TrainerArgumentParser] = TrainerArgumentParser,
        subclass_mode_model: bool = False,
        subclass_mode_data: bool = False,
        args: ArgsType = None,
        run: bool = True,
        auto_configure_optimizers: bool = True,
        load_from_checkpoint_support: bool = True,
    ) -> None:
        self.model_class, self.datamodule_class = model_class, datamodule_class
        self._model_class, self._datamodule_class = model_class or TrainingModule, datamodule_class or DataModule
        self.subclass_mode_model = subclass_mode_model or model_class is None
        self.subclass_mode_data = subclass_mode_data or datamodule_class is None
        self.save_config_callback, self.save_config_kwargs = save_config_callback, save_config_kwargs or {}
        self.trainer_class, self.trainer_defaults = trainer_class, trainer_defaults or {}
        self.seed_everything_default = seed_everything_default
        self.parser_kwargs, self.parser_class = parser_kwargs or {}, parser_class
        self.auto_configure_optimizers = auto_configure_optimizers
        self.load_from_checkpoint_support = load_from_checkpoint_support
        self._subcommand_parsers: dict[str, TrainerArgumentParser] = {}
        self._subcommand_method_arguments: dict[str, list[str]] = {}

        of_verbs = {name: value for name, value in self.parser_kwargs.items() if name in self.subcommands()}
        of_all = {name: value for name, value in self.parser_kwargs.items() if name not in of_verbs}
        self.setup_parser(run, of_all, of_verbs)
        self.parse_arguments(self.parser, args)
        self.subcommand: str | None = self.config["subcommand"] if run else None
        self._take_arguments_of_checkpoint()
        self._seed()
        self.before_instantiate_classes()
        self.instantiate_classes()
        self.after_instantiate_classes()
        if self.subcommand is not None:
            self._run_subcommand(self.subcommand)

    # the parser

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Return the verbs, each with the arguments that are no options. Override it to add one of the trainer's."""
        return {
            "fit": {"model", "train_dataloaders", "val_dataloaders", "datamodule"},
            "validate": {"model", "dataloaders", "datamodule"},
            "test": {"model", "dataloaders", "datamodule"},
            "predict": {"model", "dataloaders", "datamodule"},
        }

    def function_of(self, subcommand: str) -> Callable[..., Any] | None:
        """Return the function that a subcommand calls with the trainer; None for a method of the trainer.

        Args:
            subcommand: A name in `subcommands`.
        """
        return None

    def init_parser(self, **kwargs: Any) -> TrainerArgumentParser:
        """Return a parser with the option `--config`."""
        kwargs.setdefault("dump_header", [f"camshaft-trainer=={version('camshaft-trainer')}"])
        parser = self.parser_class(**kwargs)
        parser.add_argument("-c", "--config", action="config", help="A file in YAML with any of these options.")
        return parser

    def setup_parser(
        self, add_subcommands: bool, main_kwargs: dict[str, Any], subparser_kwargs: dict[str, dict[str, Any]]
    ) -> None:
        """Make the parser, with one for each verb or without verbs.

        Args:
            add_subcommands: Whether there is a parser for each verb.
            main_kwargs: Arguments of the parser's class.
            subparser_kwargs: Those of each verb's parser, by verb.
        """
        self.parser = self.init_parser(**main_kwargs)
        if not add_subcommands:
            self._add_arguments(self.parser)
            return
        verbs = self.parser.add_subcommands()
        trainer_class = _class_of(self.trainer_class)
        for name, given in self.subcommands().items():
            function = self.function_of(name)
            described = parse_docstring((function or getattr(trainer_class, name)).__doc__ or "").short_description
            about = described and described.removesuffix(" Collective.")
            parser = self.init_parser(**{"description": about, **subparser_kwargs.get(name, {})})
            self._add_arguments(parser)
            if function is None:
                added = parser.add_method_arguments(trainer_class, name, skip=set(given), fail_untyped=False)
            else:
                added = parser.add_function_arguments(function, skip=set(given), fail_untyped=False)
            for group in parser._action_groups:
                group.title = group.title and group.title.removesuffix(". Collective")
            self._subcommand_parsers[name], self._subcommand_method_arguments[name] = parser, added
            verbs.add_subcommand(name, parser, help=about)

    def add_default_arguments_to_parser(self, parser: TrainerArgumentParser) -> None:
        """Add the option `--seed_everything`."""
        parser.add_argument(
            "--seed_everything",
            type=bool | int,
            default=self.seed_everything_default,
            help="Seed for Python, NumPy and torch; true takes that of the environment or 0, false none.",
        )

    def add_core_arguments_to_parser(self, parser: TrainerArgumentParser) -> None:
        """Add the options of trainer, module and data module."""
        parser.add_class_args(self.trainer_class, "trainer")
        defaults = {f"trainer.{name}": value for name, value in self.trainer_defaults.items() if name != "callbacks"}
        parser.set_defaults(defaults)
        parser.add_class_args(self._model_class, "model", self.subclass_mode_model)
        parser.add_class_args(
            self._datamodule_class, "data", self.subclass_mode_data, required=self.datamodule_class is not None
        )

    def add_arguments_to_parser(self, parser: TrainerArgumentParser) -> None:
        """Override it to add options, or to link them: `parser.link_arguments("data.size", "model.size")`."""

    @staticmethod
    def link_optimizers_and_lr_schedulers(parser: TrainerArgumentParser) -> None:
        """Link optimizers and schedulers that were added with a `link_to`."""
        for key, (classes, link_to) in {**parser.optimizers, **parser.lr_schedulers}.items():
            if link_to != AUTOMATIC:
                names_class = isinstance(classes, tuple)
                parser.link_arguments(
                    key, link_to, compute_fn=None if names_class else partial(class_and_arguments, classes)
                )

    def parse_arguments(self, parser: TrainerArgumentParser, args: ArgsType) -> None:
        """Parse words or a configuration into `config`.

        Args:
            args: The words, or a configuration; None takes the process's own words.
        """
        if args is not None and len(sys.argv) > 1:
            warn_user(
                f"`args` of {type(self).__name__} overrides the command line: {sys.argv[1:]} is ignored. Leave `args` "
                "out to use it."
            )
        is_given = isinstance(args, (dict, Namespace))
        self.config: Any = parser.parse_object(args) if is_given else parser.parse_args(args)  # type: ignore[arg-type]

    def _add_arguments(self, parser: TrainerArgumentParser) -> None:
        self.add_default_arguments_to_parser(parser)
        self.add_core_arguments_to_parser(parser)
        self.add_arguments_to_parser(parser)
        if self.auto_configure_optimizers:
            if not parser.optimizers:
                parser.add_optimizer_args((Optimizer,))
            if not parser.lr_schedulers:
                parser.add_lr_scheduler_args(LRSchedulerTypeTuple)
        self.link_optimizers_and_lr_schedulers(parser)

    # the objects

    def before_instantiate_classes(self) -> None:
        """Override it to run code before the objects are made."""

    def instantiate_classes(self) -> None:
        """Make the data module, the module and the trainer, and set the attributes."""
        try:
            self.config_init: Any = self.parser.instantiate(self.config, instantiators=self._instantiators())
        except ValueError as error:
            cause = error.__cause__
            if cause is None or _is_raised_by_parser(cause):
                raise
            raise cause from None  # of a constructor, which the parser hides where an option takes several types
        self.datamodule = self._get(self.config_init, "data")
        self.model = self._get(self.config_init, "model")
        self._add_configure_optimizers_method_to_model(self.subcommand)
        self.trainer = self.instantiate_trainer()

    def _instantiators(self) -> list[tuple[Instantiator, type, bool]]:
        """Return what makes module and data module; sets `config_dump`."""
        parser = self._parser(self.subcommand)
        text = parser.dump(self.config_of_run, skip_link_targets=False, skip_unset=False, format="yaml")
        self.config_dump = yaml.safe_load(text)
        if not self.load_from_checkpoint_support:
            return []
        return [
            (Instantiator(key, self.config_dump), _class_of(base), takes_subclasses)
            for key, base, takes_subclasses in (
                ("model", self._model_class, self.subclass_mode_model),
                ("data", self._datamodule_class, self.subclass_mode_data),
            )
        ]

    def after_instantiate_classes(self) -> None:
        """Override it to run code after the objects were made."""

    def instantiate_trainer(self, **kwargs: Any) -> Any:
        """Return a trainer with the arguments of the configuration.

        Args:
            kwargs: Arguments that take the place of those.
        """
        made = [self._get(self.config_init, key) for key in self._parser(self.subcommand).callback_keys]
        return self._instantiate_trainer({**dict(self._get(self.config_init, "trainer") or {}), **kwargs}, made)

    def _instantiate_trainer(self, config: dict[str, Any], callbacks: list[Any]) -> Any:
        """Return a trainer with arguments, and with callbacks beside those in them."""
        if "callbacks" not in config:
            warn_user(
                f"The `{_class_of(self.trainer_class).__qualname__}` class does not expose the `callbacks` argument, "
                "so none is added to it. Take `callbacks` in its `__init__`."
            )
            return self.trainer_class(**config)
        by_default = listed(self.trainer_defaults.get("callbacks"))
        made = [instantiate_class((), one) if isinstance(one, dict) else one for one in by_default]
        chosen = [*listed(config["callbacks"]), *callbacks, *made]
        if self.save_config_callback is not None and not config.get("fast_dev_run"):
            parser, save = self._parser(self.subcommand), self.save_config_callback
            chosen.append(save(parser, self.config_of_run, **self.save_config_kwargs))
        return self.trainer_class(**{**config, "callbacks": chosen})

    def _parser(self, subcommand: str | None) -> TrainerArgumentParser:
        """Return the parser of a verb, or the only one."""
        return self.parser if subcommand is None else self._subcommand_parsers[subcommand]

    @property
    def config_of_run(self) -> Any:
        """The configuration of the verb, or the only one."""
        return self.config if self.subcommand is None else self.config[self.subcommand]

    def _get(self, config: Any, key: str, default: Any = None) -> Any:
        """Return a value of a configuration, that of the verb if there is one."""
        return config.get(str(self.subcommand), config).get(key, default)

    def _seed(self) -> None:
        seed = self.config_of_run.get("seed_everything")
        if seed is True:
            seed = os.environ.get(GLOBAL_SEED_VARIABLE, 0)
        if seed is not False and seed is not None:
            self.config_of_run["seed_everything"] = seed_everything(seed, workers=True)  # type: ignore[arg-type, unused-ignore]

    # optimizers

    @staticmethod
    def configure_optimizers(lightning_module: Any, optimizer: Any, lr_scheduler: Any = None) -> Any:
        """Return what the module's `configure_optimizers` returns. Override it for more.

        Args:
            optimizer: The optimizer of `--optimizer`.
            lr_scheduler: The scheduler of `--lr_scheduler`, or None.
        """
        if lr_scheduler is None:
            return optimizer
        if isinstance(lr_scheduler, ReduceLROnPlateau):
            monitored = {"scheduler": lr_scheduler, "monitor": lr_scheduler.monitor}
            return {"optimizer": optimizer, "lr_scheduler": monitored}
        return [optimizer], [lr_scheduler]

    def _add_configure_optimizers_method_to_model(self, subcommand: str | None) -> None:
        """Let the module's `configure_optimizers` return those of the command line, if one was chosen."""
        if not self.auto_configure_optimizers:
            return
        parser = self._parser(subcommand)
        optimizers, schedulers = _automatic(parser.optimizers), _automatic(parser.lr_schedulers)
        if len(optimizers) > 1 or len(schedulers) > 1:
            rule = "given to all but one optimizer and one scheduler"
            action = "Pass it, and make them in `configure_optimizers` with `instantiate_class`."
            raise ValueError(must_be("link_to", rule, [*optimizers, *schedulers], type(self).__name__, action))
        chosen, scheduler = self._chosen(parser.optimizers, optimizers), self._chosen(parser.lr_schedulers, schedulers)
        if chosen is None:
            return
        if is_overridden(self.model, "configure_optimizers"):
            warn_user(
                f"`{type(self.model).__name__}.configure_optimizers` will be overridden by "
                f"`{type(self).__name__}.configure_optimizers`. Leave out the optimizer's options to keep the module's."
            )
        optimizer = instantiate_class(self.model.parameters(), chosen)
        of_fit = None if scheduler is None else instantiate_class(optimizer, scheduler)
        function = partial(self.configure_optimizers, optimizer=optimizer, lr_scheduler=of_fit)
        update_wrapper(function, self.configure_optimizers)
        self.model.configure_optimizers = MethodType(function, self.model)

    def _chosen(self, added: Mapping[str, tuple[Any, str]], keys: list[str]) -> dict[str, Any] | None:
        """Return class and arguments of the one key, if there is one and something was chosen."""
        if not keys:
            return None
        classes, given = added[keys[0]][0], self._get(self.config_init, keys[0])
        if not isinstance(classes, tuple):
            return class_and_arguments(classes, given)
        plain: Any = given.as_dict() if isinstance(given, Namespace) else given
        return None if plain is None else dict(plain)

    # checkpoints

    def _take_arguments_of_checkpoint(self) -> None:
        """Let the hyperparameters in a checkpoint, `--ckpt_path`, take the place of the module's arguments."""
        config = self.config_of_run
        path = None if self.subcommand is None else config.get("ckpt_path")
        if not path or not exists(local_path(path)):  # "best" and "last" are found by the trainer
            return
        saved = read_checkpoint(path, mmap=True).get(HYPER_PARAMETERS_KEY)
        hparams = {name: value for name, value in dict(saved or {}).items() if name != "_instantiator"}
        if not hparams:
            return
        model = config.get("model")
        known = set(named_classes(model.as_dict() if isinstance(model, Namespace) else model))
        unknown = sorted(set(named_classes(hparams)) - known)
        if unknown and config.get("weights_only") is not False:
            rule = "a checkpoint of classes that are chosen beside it (such as with --model), as no other is imported"
            action = "Choose them, or pass --weights_only=false if you trust the file."
            self.parser.error(must_be("ckpt_path", rule, unknown, path, action))
        if "_class_path" in hparams:
            hparams = {"class_path": hparams.pop("_class_path"), "dict_kwargs": hparams}
        before = self.config.clone()
        try:
            self.config = self.parser.parse_object({self.subcommand: {"model": hparams}}, self.config)
        except SystemExit:
            sys.stderr.write(f"Parsing of ckpt_path hyperparameters failed: {path}\n")
            raise
        self._warn_of_changes(before[self.subcommand], path)

    def _warn_of_changes(self, before: Any, path: str) -> None:
        """Warn of arguments that the checkpoint has changed."""
        was, now = dict(before.items()), self.config_of_run.items()
        changed = [
            f"{name} = {value!r} (was {was[name]!r})"
            for name, value in now
            if name.startswith("model.") and name in was and was[name] != value
        ]
        if changed:
            warn_user(
                f"The hyperparameters in {path} override options: {', '.join(changed)}. Call `load_from_checkpoint` in "
                "code to choose others."
            )

    # verbs

    def _run_subcommand(self, subcommand: str) -> None:
        """Run a verb, with the methods around it."""
        getattr(self, f"before_{subcommand}", no_op)()
        run, function = getattr(self, subcommand, None), self.function_of(subcommand)
        if run is None:
            run = getattr(self.trainer, subcommand) if function is None else partial(function, self.trainer)
        run(**self._prepare_subcommand_kwargs(subcommand))
        getattr(self, f"after_{subcommand}", no_op)()

    def _prepare_subcommand_kwargs(self, subcommand: str) -> dict[str, Any]:
        """Return the arguments of a verb."""
        config = self.config_init[subcommand]
        options = {name: config[name] for name in self._subcommand_method_arguments[subcommand] if name in config}
        options["model"] = self.model
        if self.datamodule is not None:
            options["datamodule"] = self.datamodule
        return options


def _class_of(maker: Any) -> type:
    """Return a class; for a function the one that stands for it."""
    return maker if isinstance(maker, type) else class_from_function(maker)


def _is_raised_by_parser(error: BaseException) -> bool:
    """Return whether an error comes from the parser's own code."""
    frames = list(traceback.walk_tb(error.__traceback__))
    return not frames or str(frames[-1][0].f_globals.get("__name__")).startswith("jsonargparse")


def _automatic(added: Mapping[str, tuple[Any, str]]) -> list[str]:
    return [key for key, (_, link_to) in added.items() if link_to == AUTOMATIC]

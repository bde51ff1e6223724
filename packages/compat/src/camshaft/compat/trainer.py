"""`Trainer` with the arguments, attributes and calls of earlier releases, for modules of every era."""

from __future__ import annotations

import inspect
import math
import os
import sys
from collections.abc import Iterable, Mapping
from functools import cached_property, partial, wraps
from importlib import import_module
from operator import attrgetter
from typing import Any, ClassVar

import attrs
import torch
from lightning_utilities.core.rank_zero import rank_zero_only
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

import camshaft.callbacks as callbacks  # what it exports is imported when it is asked for
import camshaft.compat.private_parts as parts
from camshaft.compat import eras
from camshaft.compat.arguments import today
from camshaft.compat.arguments.argparse_arguments import ArgparseArguments
from camshaft.compat.arguments.table import EARLIER_ARGUMENTS
from camshaft.compat.arguments.translation import EarlierSettings, set_attributes, translate_arguments
from camshaft.compat.checkpoints.format import VERSION_KEY, ReleaseFormat
from camshaft.compat.eras.processes import delegate_early
from camshaft.compat.eras.reading import read_era
from camshaft.compat.eras.releases import LIMITS_ARE_NUMBERS, behaviour_in, may_evaluate_nothing, release_of
from camshaft.compat.gradient_scaler import scaler_of
from camshaft.compat.module import scheduler_settings
from camshaft.compat.names.finder import is_alias, load
from camshaft.compat.names.plugins.registries import needs_attaching
from camshaft.compat.names.stand_ins import check_not_missing
from camshaft.compat.names.table import advice, members
from camshaft.compat.names.utilities.types_and_flags import (
    LIGHTNING_VERSION,
    RunningStage,
    TrainerFn,
    TrainerStatus,
)
from camshaft.compat.private_loops import LOOPS, follow_hooks, loops_of_lightning
from camshaft.hooks_core import Receiver, is_overridden
from camshaft.hooks_core.eras.hooks import EARLIER_ERAS
from camshaft.hooks_core.support.messages import must_be, warn_user
from camshaft.loops import Run
from camshaft.strategies import SingleDeviceStrategy
from camshaft.trainer import CheckpointFormat
from camshaft.trainer import Trainer as _Trainer
from camshaft.trainer.configuration import listed
from camshaft.trainer.hyperparameters import DATA_PREFIX, HYPER_PARAMETERS_KEY, NAME_KEY, parameters_of
from camshaft.trainer.running import VerbCall
from camshaft.trainer.tuner import search

_Path = str | os.PathLike[str]

_DEFAULTS: Mapping[str, Any] = {
    name: parameter.default for name, parameter in inspect.signature(_Trainer).parameters.items()
}
"""Today's arguments of the trainer."""

_RESULTS = "camshaft.compat.results"
"""The module of what steps of 0.9 returned, imported where a step may return it."""

_LOGGERS = "camshaft.compat.names.trainer.loggers"
"""The module of loggers under the import names, imported where one is made."""

_CHECKPOINT = "camshaft.compat.names.trainer.model_checkpoint:ModelCheckpoint"
_OF_INIT = ("on_init_start", "on_init_end")
_PLUGINS = "camshaft.compat.names.plugins"
_ATTACH = f"{_PLUGINS}.strategies:attach_strategy"
_STRATEGIES: Mapping[str, str] = {
    "SingleDeviceStrategy": f"{_PLUGINS}.base_strategy:SingleDeviceStrategy",
    "DDPStrategy": f"{_PLUGINS}.strategies:DDPStrategy",
    "ShardedStrategy": f"{_PLUGINS}.fsdp:FSDPStrategy",
}
"""By the class of a strategy that a name stands for, the one with the attributes of Lightning's."""

_READ_ONLY: Mapping[str, str] = {"precision": "Use `Trainer(precision=...)`, which makes `trainer.strategy.precision`."}
"""Advice for attributes that were set in earlier releases."""


def _call(verb: str, trainer: Any, args: Any, kwargs: Any, today: str, **earlier: Any) -> inspect.BoundArguments:
    """Return the arguments of a verb, where loaders may be passed under an earlier name.

    Raises:
        TypeError: If there is no such argument, or one is missing.
        ValueError: If they were passed under both.
    """
    try:
        call = inspect.signature(getattr(_Trainer, verb)).bind(trainer, *args, **kwargs)
    except TypeError as error:
        raise TypeError(f"Trainer.{verb}() {error}. See `help(Trainer.{verb})`.") from None
    call.apply_defaults()
    for name, given in earlier.items():
        if given is not None and call.arguments[today] is not None:
            rule = "left out where the loader is passed under its name of today"
            raise ValueError(must_be(name, rule, given, f"Trainer.{verb}", "Leave one of the two out."))
        call.arguments[today] = call.arguments[today] if given is None else given
    return call


def _evaluation(verb: str, earlier: str) -> Any:
    """Return a verb that evaluates, as earlier releases did: with an earlier name for loaders, without a step, and with
    a loop that may print in its own way."""
    evaluate, step = getattr(_Trainer, verb), {"validate": "validation_step"}.get(verb, f"{verb}_step")

    @wraps(evaluate)
    def evaluated(self: Any, *args: Any, **kwargs: Any) -> list[dict[str, float]]:
        call = _call(verb, self, args, kwargs, "dataloaders", **{earlier: kwargs.pop(earlier, None)})
        module = self.model if call.arguments["model"] is None else call.arguments["model"]
        has_step = module is None or is_overridden(module, step)
        if not has_step and may_evaluate_nothing(module, is_earlier=self._is_earlier):
            warn_user(f"`{verb}` does nothing, as up to 1.4: {type(module).__qualname__} has no `{step}`. Define it.")
            return []
        loop, is_verbose = getattr(self, f"{verb}_loop"), call.arguments["verbose"]
        prints_itself = is_verbose and getattr(loop, "prints_itself", False)
        call.arguments["verbose"] = is_verbose and not prints_itself
        results: list[dict[str, float]] = evaluate(*call.args, **call.kwargs)
        if results and behaviour_in(self.current_run).returns_logs:  # an epoch's end may return more than its `log`
            results[0] = {name: float(value) for name, value in self.callback_metrics.items()} | results[0]
        if prints_itself and self.is_global_zero:
            loop.print_logged(results)
        return results

    return evaluated


class Trainer(ArgparseArguments, _Trainer):
    """A trainer of modules, data modules and callbacks of every era; see `camshaft.trainer.Trainer`.

    It takes the arguments of releases 0.4 to 1.9 as well (see `camshaft.compat.arguments.table`), with a note that
    names today's, and has the attributes that trainers had then, to be read.

    Attributes:
        tuning: Whether `tune` is searching.

    Raises:
        TypeError, ValueError: As `camshaft.trainer.Trainer`, or if nothing corresponds to an argument.
    """

    checkpoint_formats: ClassVar[tuple[CheckpointFormat, ...]] = (ReleaseFormat(),)
    earlier_arguments: ClassVar[Mapping[str, Any]] = EARLIER_ARGUMENTS
    objects_in_place: ClassVar[bool] = True
    saves_each_row: ClassVar[bool] = True
    loop_classes: ClassVar[Any] = LOOPS

    _accelerator_connector: Any = cached_property(parts.ConnectorView)
    _callback_connector: Any = cached_property(parts.CallbackConnector)
    _checkpoint_connector: Any = cached_property(parts.CheckpointConnector)
    _data_connector: Any = cached_property(parts.DataConnector)
    _logger_connector: Any = cached_property(parts.LoggerConnector)
    _signal_connector: Any = cached_property(parts.SignalConnector)

    tuning: bool = False
    _is_sealed: bool = False
    _steps_are_none: bool = False
    _earlier: EarlierSettings
    _is_earlier: bool  # by an argument, or a way to make it, that was removed
    _untold: list[Any]
    _assigned_data: tuple[Any, ...] = ()  # the last run until then, and the data module

    @wraps(_Trainer.__init__)  # type: ignore[misc]
    def __init__(self, *positional: Any, **given: Any) -> None:
        names = [*_DEFAULTS, *EARLIER_ARGUMENTS]
        given = {**today.from_environment(type(self).__name__, names), **today.by_name(positional, given), **given}
        today.log_meaning_of_one(given)
        given = today.flags_as_counts(given)
        self._steps_are_none = given.get("max_steps", -1) is None
        self._is_earlier = any(name in EARLIER_ARGUMENTS and name not in _DEFAULTS for name in given)
        arguments, self._earlier = translate_arguments(given, _DEFAULTS, EARLIER_ARGUMENTS)
        arguments["precision"] = today.precision_of(arguments)
        further = today.callbacks_of_packages()
        if self._earlier.of_module:
            further.insert(0, callbacks.LambdaCallback(setup=partial(set_attributes, self._earlier.of_module)))
        if further:
            arguments["callbacks"] = [*listed(arguments.get("callbacks")), *further]
        arguments["callbacks"] = today.with_timer(arguments.get("callbacks"), arguments.get("max_time"))
        check_not_missing(*given.values(), *listed(arguments.get("callbacks")), *listed(arguments.get("logger")))
        plugins = {name: getattr(self._earlier, name) for name in ("cluster_environment", "checkpoint_io")}
        if needs_attaching(arguments) or any(plugin is not None for plugin in plugins.values()):
            load(_ATTACH)(arguments, **plugins)
        told: list[Any] = []
        self._untold = []
        for one in listed(arguments.get("callbacks")):
            if not isinstance(one, type) and any(is_overridden(one, hook) for hook in _OF_INIT):
                is_earlier = self._is_earlier or not read_era(one, Receiver.CALLBACK).is_of_today
                (told if is_earlier else self._untold).append(one)
        if told:
            import_module("camshaft.compat.callback")  # so that they can call `super()`
        _tell(told, "on_init_start", self)
        super().__init__(**arguments)
        vars(self)["_is_sealed"] = True
        if isinstance(arguments.get("strategy", ""), str):
            load(_STRATEGIES[type(self.strategy).__name__]).adopt(self.strategy)
        own = [*listed(given.get("callbacks")), given.get("checkpoint_callback")]
        for one in self.checkpoint_callbacks:
            if type(one) is callbacks.ModelCheckpoint and not any(one is other for other in own):
                load(_CHECKPOINT).adopt(one)
        parts.attach_loops(self)
        _tell(told, "on_init_end", self)

    __init__.__signature__ = today.signature_of(inspect.signature(_Trainer.__init__))  # type: ignore[attr-defined]

    @classmethod
    def from_argparse_args(cls, args: Any, **kwargs: Any) -> Any:
        """Return a trainer of a program written for an earlier release, since 2.0 removed this; see there."""
        trainer = super().from_argparse_args(args, **kwargs)
        trainer._is_earlier = True
        return trainer

    def __getattr__(self, name: str) -> Any:
        """Raise `AttributeError` with the counterpart of an attribute of earlier releases."""
        if hasattr(type(self), name):
            return object.__getattribute__(self, name)  # raises what the property raised
        message = f"{type(self).__name__!r} object has no attribute {name!r}"
        if f"Trainer.{name}" in advice():
            message += f" any more. {advice()[f'Trainer.{name}']}"
        raise AttributeError(message, name=name, obj=self)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; for one of earlier releases, raise `AttributeError` with its counterpart.

        A subclass may set what it likes before it calls the constructor, whose arguments count.
        """
        if not self._is_sealed and _is_property_of_ours(type(self), name):
            return
        is_own = hasattr(type(self), name) or not type(self).__module__.startswith("camshaft.")
        told = _READ_ONLY.get(name) or (None if is_own else advice().get(f"Trainer.{name}"))
        if self._is_sealed and told is not None:
            message = f"{type(self).__name__!r} object has no attribute {name!r} to be set. {told}"
            raise AttributeError(message, name=name, obj=self)
        if self._is_sealed:
            _refuse_misspelt(self, name)
        super().__setattr__(name, value)

    # what `camshaft.trainer.Trainer` lets a subclass add

    def connect(self, module: nn.Module) -> None:
        """Join the processes, as the module does it where it overrides `init_ddp_connection`. Collective."""
        if hasattr(self.strategy, "take_module"):
            self.strategy.trainer = self
            self.strategy.take_module(module)
        delegate_early(module, self.strategy, self)
        super().connect(module)
        rank_zero_only.rank = self.global_rank  # type: ignore[attr-defined]
        if self.is_global_zero and self.loggers:
            import_module(_LOGGERS).start_runs(self.loggers)

    def extend_run(self, run: Run) -> None:
        """Adapt the run to receivers of any era, to the results of 0.9, and to Lightning's limits.

        Raises:
            ValueError: If a `datamodule` was assigned since the last verb that is not that of this verb.
        """
        assigned = self._assigned_data[1] if self._has_assigned_data else None
        if assigned is not None and assigned is not run.data:
            rule, action = "passed to the verb, too", f"Write trainer.{run.verb}(model, datamodule=trainer.datamodule)."
            raise ValueError(must_be("datamodule", rule, assigned, f"Trainer.{run.verb}", action))
        run.adapters.append(follow_hooks)
        limits = self.fit_loop.limits
        if run.verb == "fit" and limits.min_epochs is None:  # there `min_steps` alone asks for an epoch, too
            min_epochs = int(limits.min_steps is not None and limits.epoch_limit > 0)
            self.fit_loop.limits = limits.with_number("min_epochs", min_epochs)
        imported = sys.modules.get("pytorch_lightning")
        # Also under the import names: a step may be the first to ask for results, and hooks are resolved by then.
        may_return_results = _RESULTS in sys.modules or (imported is not None and is_alias(imported))
        read_result = import_module(_RESULTS).read_result if may_return_results else None
        eras.extend(run, read_result, is_earlier=self._is_earlier)
        run.adapters.append(self._tell_later)
        if hasattr(self.strategy, "adapt"):
            run.adapters.append(self.strategy.adapt)

    def _tell_later(self, run: Run) -> None:
        """Tell callbacks that the trainer was made whose era is known since they run with a module of one."""
        if behaviour_in(run).era in EARLIER_ERAS:
            untold, self._untold = self._untold, []
            for hook in _OF_INIT:
                _tell(untold, hook, self)

    def checkpoint_facts(self, run: Run) -> dict[str, Any]:
        """Return what checkpoints say of module and data module, also by the keys that Lightning adds."""
        facts = super().checkpoint_facts(run)
        for owner, prefix in ((run.module, ""), (run.data, DATA_PREFIX)):
            if prefix + HYPER_PARAMETERS_KEY in facts and "kwargs" not in parameters_of(type(owner)):
                facts.setdefault(prefix + NAME_KEY, "kwargs")
        of_fit = {"loops": loops_of_lightning(self.fit_loop)} if run.module is self.verb_state.fitted else {}
        return facts | of_fit | {VERSION_KEY: LIGHTNING_VERSION}

    def begin_logging(self, run: Run) -> None:
        """Give the loggers hyperparameters and module when a verb begins, and let those without `begin_fit` save."""
        super().begin_logging(run)
        for logger in self.loggers:
            if not hasattr(logger, "begin_fit"):
                logger.save()

    def make_default_logger(self) -> Any:
        """Return a logger in `lightning_logs`: for TensorBoard where that is installed, else a CSV logger."""
        return import_module(_LOGGERS).default_logger(self.default_root_dir)

    # verbs

    @wraps(_Trainer.fit)
    def fit(self, *args: Any, train_dataloader: Any = None, **kwargs: Any) -> None:  # type: ignore[override]
        """Train a module; see `camshaft.trainer.Trainer.fit`. Collective.

        Args:
            args, kwargs: As there; no `ckpt_path` takes `resume_from_checkpoint`, if the trainer was made with it.
            train_dataloader: A name that `train_dataloaders` had.
        """
        call = _call("fit", self, args, kwargs, "train_dataloaders", train_dataloader=train_dataloader)
        call.arguments["ckpt_path"] = _choose_ckpt_path(call.arguments["ckpt_path"], self._earlier.ckpt_path)
        limits = self.fit_loop.limits
        if self.max_epochs is None and limits.epoch_limit != math.inf:
            warn_user(
                f"`max_epochs` is not set: training ends after {limits.epoch_limit} epochs. Set it, or pass "
                "max_epochs=-1 for no limit."
            )
        super().fit(*call.args[1:], **call.kwargs)

    validate: Any = _evaluation("validate", "val_dataloaders")
    test: Any = _evaluation("test", "test_dataloaders")

    def tune(
        self,
        model: Any,
        train_dataloaders: Any = None,
        val_dataloaders: Any = None,
        datamodule: Any = None,
        scale_batch_size_kwargs: Mapping[str, Any] | None = None,
        lr_find_kwargs: Mapping[str, Any] | None = None,
        *,
        train_dataloader: Any = None,
    ) -> dict[str, Any]:
        """Search a batch size, then a learning rate, and set what was found; nothing is trained. Collective.

        Of callbacks of the trainer only `setup` and `teardown` are called, and loggers get nothing.

        Args:
            model: The module.
            train_dataloaders: As in `fit`; a search for the batch size asks module or data module again and again.
            val_dataloaders: As in `fit`.
            datamodule: A data module.
            scale_batch_size_kwargs: Options of `BatchSizeFinder`.
            lr_find_kwargs: Options of `LearningRateFinder`.
            train_dataloader: A name that `train_dataloaders` had.

        Returns:
            The size as "scale_batch_size" and the `LearningRateCurve` as "lr_find", where searched for.

        Raises:
            RuntimeError: If the trainer was made with neither `auto_lr_find` nor `auto_scale_batch_size`.
            TypeError, ValueError, MemoryError: As the finders and `fit`.
        """
        size = _with_options(self._earlier.scale_batch_size, "mode", scale_batch_size_kwargs)
        rate = _with_options(self._earlier.lr_find, "attr_name", lr_find_kwargs)
        if size is None and rate is None:
            rule = "made with `auto_lr_find` or `auto_scale_batch_size`"
            action = "Pass one of them, or add a finder to the callbacks of a fit."
            raise RuntimeError(must_be("trainer", rule, None, "Trainer.tune", action))
        data = (model, train_dataloaders, val_dataloaders, datamodule)
        call = _call("fit", self, data, {}, "train_dataloaders", train_dataloader=train_dataloader)
        loaders = {"train": call.arguments["train_dataloaders"], "validate": val_dataloaders}
        self.tuning = True
        try:
            finders = [finder for finder in (size, rate) if finder is not None]
            search(self, finders, VerbCall("fit", model, loaders, datamodule))
        finally:
            self.tuning = False
        found = {
            "scale_batch_size": getattr(size, "optimal_batch_size", None),
            "lr_find": getattr(rate, "optimal_lr", None),
        }
        return {name: value for name, value in found.items() if value is not None}

    @wraps(_Trainer.save_checkpoint)
    def save_checkpoint(self, *args: Any, storage_options: Any = None, **kwargs: Any) -> None:  # type: ignore[override]
        """Save a checkpoint; see `camshaft.trainer.Trainer.save_checkpoint`. Collective.

        Args:
            args, kwargs: As there.
            storage_options: Nothing takes them, as in Lightning without a plugin for files.

        Raises:
            TypeError: If there are any.
        """
        if storage_options is not None:
            rule, action = "left out, since nothing takes them", "Write a strategy whose `save_checkpoint` has them."
            raise TypeError(must_be("storage_options", rule, storage_options, "Trainer.save_checkpoint", action))
        super().save_checkpoint(*args, **kwargs)

    # progress

    @property
    def max_epochs(self) -> int | None:
        """Epochs to train in all; -1 if unlimited, None before the first fit if it was left out.

        Set it to train on in the next fit.
        """
        run = self.current_run
        has_begun = self.verb_state.fitted is not None or (run is not None and run.verb == "fit")
        if self.fit_loop.limits.max_epochs is None and not has_begun:
            return None
        return self.fit_loop.max_epochs

    @max_epochs.setter
    def max_epochs(self, value: int | None) -> None:
        self.fit_loop.max_epochs = value

    @property  # type: ignore[override]  # an int there
    def max_steps(self) -> int | None:
        """Updates to train in all; -1 if unlimited, or None if it was given so, or for a module of up to 1.4."""
        steps: int = self.fit_loop.limits.max_steps
        is_none = self._steps_are_none or release_of(self.current_run) < LIMITS_ARE_NUMBERS
        return None if steps == -1 and is_none else steps

    @max_steps.setter
    def max_steps(self, value: int | None) -> None:
        self.fit_loop.limits = self.fit_loop.limits.with_number("max_steps", -1 if value is None else value)

    @property
    def current_epoch(self) -> int:
        """The index of the training epoch; after it has ended, of the next.

        From the end of a fit on, that of the last epoch for a module of a release before 1.6, as it was there.
        """
        loop = self.fit_loop
        epoch = loop.current_epoch
        if loop.has_ended and not loop.progress.is_inside_epoch and behaviour_in(self.current_run).keeps_last_epoch:
            return max(0, epoch - 1)
        return epoch

    batch_idx = property(lambda self: max(0, self.fit_loop.progress.batches.ready - 1))
    """Index of the training batch in its epoch; 0 before the first."""
    nb_val_batches = property(lambda self: sum(self.num_val_batches))
    """Validation batches of all loaders."""
    nb_test_batches = property(lambda self: sum(self.num_test_batches))
    """Test batches of all loaders."""

    @property
    def total_batches(self) -> int | float:
        """Batches of an epoch, those of training and of each validation in it."""
        num_training = 0 if self.fit_loop.loader is None else self.num_training_batches
        interval = self.val_check_interval
        every = self.check_val_every_n_epoch
        validates = every is not None and (self.current_epoch + 1) % every == 0
        if not num_training or not validates or not isinstance(interval, (int, float)):
            return num_training
        batches_between = interval if isinstance(interval, int) else max(1, int(num_training * interval))
        return num_training + sum(self.num_val_batches) * (num_training // batches_between)

    # what is running

    def get_model(self) -> Any:
        """Return `model`."""
        return self.model

    def is_overridden(self, method_name: str, model: Any = None) -> bool:
        """Return whether the module overrides a hook.

        Args:
            method_name: The hook's name.
            model: The module; None takes the trainer's.
        """
        return is_overridden(self.model if model is None else model, method_name)

    @property
    def state(self) -> Any:
        """State of the trainer; its parts are members of the enumerations under the import names."""
        state = super().state
        function: Any = TrainerFn.TUNING if self.tuning else state.fn and TrainerFn(state.fn)
        stage: Any = RunningStage.TUNING if self.tuning else state.stage and RunningStage(state.stage)
        status: Any = TrainerStatus(state.status)
        return attrs.evolve(state, status=status, fn=function, stage=stage)

    # devices and processes

    @property
    def accelerator(self) -> Any:
        """The kind of device, an `Accelerator`."""
        own = getattr(self.strategy, "accelerator", None)
        return own or load("camshaft.compat.names.plugins.accelerators:find_accelerator")(self.strategy.device.type)

    _results = property(parts.ResultsView)

    _detect_anomaly = property(lambda self: any(getattr(one, "detect_anomaly", False) for one in self.callbacks))

    @property
    def _evaluation_loop(self) -> Any:
        if self._verb == "test":
            return self.test_loop
        return self.validate_loop if self._verb == "validate" else self.fit_loop.validation

    @property
    def _active_loop(self) -> Any:
        if self.training:
            return self.fit_loop
        return self._evaluation_loop if self.evaluating else self.predict_loop if self.predicting else None

    @property
    def device_ids(self) -> list[int]:
        """Index of each device of this machine that is used, from 0 where devices have no index."""
        if self.num_devices == 1:
            return [torch.device(self.strategy.device).index or 0]
        return list(getattr(self.strategy, "device_ids", range(self.num_devices)))

    node_rank = property(lambda self: self.global_rank // self.num_devices)
    """Index of this machine."""

    @property
    def distributed_sampler_kwargs(self) -> dict[str, int] | None:
        """Arguments of torch's `DistributedSampler` for this process's share of data; None on a single device."""
        if isinstance(self.strategy, SingleDeviceStrategy):
            return None
        return {"num_replicas": self.strategy.num_data_ranks, "rank": self.strategy.data_rank}

    received_sigterm = property(lambda self: any(getattr(one, "received_sigterm", False) for one in self.callbacks))
    """True if the last fit got a SIGTERM that a `PreemptionCheckpoint` caught; without one SIGTERM ends it."""

    val_check_batch = property(attrgetter("fit_loop.num_batches_between_validations"))
    """Batches between validations of fit; None before loaders are there, and where time counts."""
    use_ddp = property(lambda self: self.world_size > 1)
    """True with several processes."""
    use_dp = property(lambda _: False)
    """False, since one process computes on one device."""
    use_ddp2 = use_single_gpu = use_tpu = on_tpu = use_horovod = data_parallel = use_dp
    distributed_backend = property(lambda self: "ddp" if self.use_ddp else None)
    """ "ddp" with several processes, else None."""
    on_gpu = property(lambda self: self.strategy.device.type == "cuda")
    """True on a GPU."""
    root_gpu = property(lambda self: (self.strategy.device.index or 0) if self.on_gpu else None)
    """Index of this process's GPU; None on the CPU."""
    num_gpus = property(lambda self: self.num_devices if self.on_gpu else 0)
    """GPUs of a machine that train."""

    use_amp = property(lambda self: str(self.precision).endswith("-mixed"))
    """True with mixed precision."""

    # data, metrics, files

    def find_log_dir(self) -> str:
        """Return the folder of the run of a CSV or TensorBoard logger, `save_dir` of another one, as in Lightning."""
        found = import_module(_LOGGERS).log_dir_of(self.logger) if self.loggers else None
        return found or self.default_root_dir

    @property
    def checkpoint_dir(self) -> str:
        """Directory of checkpoints whose callback has no `dirpath`, by the first logger's names, as in Lightning."""
        if not self.loggers:
            return super().checkpoint_dir
        return str(import_module(_LOGGERS).checkpoint_dir_of(self.logger, self.default_root_dir))

    @property
    def datamodule(self) -> Any:
        """Data module of the current or last verb, or that assigned since, for code outside of verbs; None without."""
        return self._assigned_data[1] if self._has_assigned_data else super().datamodule

    @datamodule.setter
    def datamodule(self, datamodule: Any) -> None:
        self._assigned_data = (self.current_run, datamodule)

    @property
    def _has_assigned_data(self) -> bool:
        return bool(self._assigned_data) and self._assigned_data[0] is self.current_run

    lightning_module = property(attrgetter("model"))
    """Module of the current or last verb, or None."""

    @property
    def enable_validation(self) -> bool:
        """True if fit validates."""
        has_step = self.model is not None and is_overridden(self.model, "validation_step")
        return has_step and bool(self._validation_loop.loaders) and self.limit_val_batches != 0

    disable_validation = property(lambda self: not self.enable_validation)
    """True if fit does not validate."""
    scaler = property(lambda self: scaler_of(self.strategy))
    """Gradient scaler with the methods of torch's `GradScaler`; None unless precision is mixed."""

    @property
    def lr_schedulers(self) -> list[dict[str, Any]]:
        """The schedulers of the current or last fit, a dictionary for each."""
        return [
            {**scheduler_settings(config), "reduce_on_plateau": isinstance(config.scheduler, ReduceLROnPlateau)}
            for config in self.lr_scheduler_configs
        ]

    @property
    def progress_bar_metrics(self) -> Mapping[str, float | int | str]:
        """The metrics of a progress bar, by `get_progress_bar_dict` or `get_tqdm_dict` of the module."""
        is_earlier = behaviour_in(self.current_run).era in EARLIER_ERAS
        for name in ("get_progress_bar_dict", "get_tqdm_dict") if is_earlier else ():
            if self.model is not None and is_overridden(self.model, name):
                return dict(getattr(self.model, name)())
        return super().progress_bar_metrics

    progress_bar_dict = property(lambda self: dict(self.progress_bar_metrics))
    """`progress_bar_metrics`, as a dictionary of its own."""

    experiment = property(lambda self: getattr(self.logger, "experiment", self.logger))
    """The `experiment` of the first logger, or the logger itself if it has none; None without a logger."""

    @property
    def weights_summary(self) -> str | None:
        """ "top", "full", or None if no summary is shown."""
        summary = next((one for one in self.callbacks if isinstance(one, callbacks.ModelSummary)), None)
        if summary is None or summary.max_depth == 0:
            return None
        return "full" if summary.max_depth in (-1, math.inf) else "top"

    weights_save_path = property(
        lambda self: str(getattr(self.checkpoint_callback, "dirpath", None) or self.default_root_dir)
    )
    """The directory of the first checkpoint callback, if it was set; else the default directory."""


_MISSPELT = 0.8  # how much of two names is the same, as difflib tells it
_MISSPELT_READABLE = 0.9  # `train_loader` may be the user's own beside our `train_dataloader`


def _refuse_misspelt(owner: object, name: str) -> None:
    """Raise `AttributeError` for a new attribute whose name is nearly that of an attribute of a trainer of ours.

    One that differs only in underscores from what can only be read, as `logdir`, is the user's own.
    """
    kind, attributes = type(owner), vars(owner)
    if name.startswith("_") or name in attributes or hasattr(kind, name) or not kind.__module__.startswith("camshaft."):
        return
    if any(name in vars(klass).get("__annotations__", ()) for klass in kind.__mro__):
        return
    import difflib  # for such names alone

    found = {one: inspect.getattr_static(kind, one) for one in dir(kind) if not one.startswith("_")}
    settable = {one for one, value in found.items() if getattr(value, "fset", None) is not None} | attributes.keys()
    readable = {one for one, value in found.items() if isinstance(value, property)} - settable
    public = sorted(one for one in settable if not one.startswith("_"))
    closest = difflib.get_close_matches(name, public, n=1, cutoff=_MISSPELT)
    others = sorted(one for one in readable if one.replace("_", "") != name.replace("_", ""))
    closest = closest or difflib.get_close_matches(name, others, n=1, cutoff=_MISSPELT_READABLE)
    if closest:
        where, meant = kind.__qualname__, closest[0]
        told = f"`{name}` must be an attribute of {where} to be set, but there is none. Did you mean `{meant}`?"
        told += " It can only be read." if meant in readable else ""
        raise AttributeError(told, name=name, obj=owner)


def _is_property_of_ours(kind: type, name: str) -> bool:
    owner = next((one for one in kind.__mro__ if name in vars(one)), None)
    return owner is not None and owner.__module__.startswith("camshaft.") and isinstance(vars(owner)[name], property)


def _tell(callbacks: Iterable[Any], hook: str, trainer: Any) -> None:
    """Call a hook on the callbacks that have it."""
    for callback in callbacks:
        if is_overridden(callback, hook):
            getattr(callback, hook)(trainer)


def _choose_ckpt_path(given: _Path | None, resume_from_checkpoint: _Path | None) -> _Path | None:
    """Return the checkpoint from which fit resumes: the argument of fit, or of the constructor.

    Raises:
        ValueError: If these are two.
    """
    if given is None or resume_from_checkpoint is None or os.fspath(given) == os.fspath(resume_from_checkpoint):
        return resume_from_checkpoint if given is None else given
    rule = f"left out, since the trainer was made with resume_from_checkpoint={resume_from_checkpoint!r}"
    raise ValueError(must_be("ckpt_path", rule, given, "Trainer.fit", "Leave one of the two out."))


def _with_options(finder: Any, own: str, options: Mapping[str, Any] | None) -> Any:
    """Return a finder of the same kind with other options beside its own one, under their names in earlier releases."""
    if finder is None or not options:
        return finder
    of_today = {"num_training_steps" if name == "num_training" else name: one for name, one in options.items()}
    return type(finder)(**{own: getattr(finder, own), **of_today})


def _of_evaluation(name: str) -> property:
    """Return the property of loaders of evaluation: for modules of releases before 2.0 a list, as it was there."""
    today = getattr(_Trainer, name)

    def loaders(trainer: Trainer) -> Any:
        given = today.__get__(trainer)
        is_one = given is not None and not isinstance(given, (list, tuple))
        return [given] if is_one and behaviour_in(trainer.current_run).since < (2,) else given

    return property(loaders, doc=today.__doc__)


for _name in ("val_dataloaders", "test_dataloaders", "predict_dataloaders"):
    setattr(Trainer, _name, _of_evaluation(_name))
for _name, _path in members()["Trainer"].items():
    setattr(Trainer, _name, parts.OwnFirst(attrgetter(_path), f"`{_path}`."))

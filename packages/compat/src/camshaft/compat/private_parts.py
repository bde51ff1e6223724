"""Parts of Lightning's trainer that have private names there, with the attributes that libraries read of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

import attrs
import torch

import camshaft.callbacks as stock
from camshaft.hooks_core import is_overridden
from camshaft.hooks_core.support.messages import must_be
from camshaft.loops.fit.resume import restore_callbacks, restore_data_module, restore_module, restore_training
from camshaft.strategies import ParallelStrategy
from camshaft.trainer.checkpoints import checkpoint_of, read_requested


class OwnFirst:
    """An attribute that a function reads of its owner, unless the owner was given one of its own.

    Args:
        read: The function.
        doc: Documentation of the attribute.
    """

    def __init__(self, read: Callable[[Any], Any], doc: str) -> None:
        self._read, self.__doc__ = read, doc

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        return self if owner is None else self._read(owner)


def settable(path: str, doc: str) -> Any:
    """Return a property that reads and sets an attribute at a path, such as `trainer.ckpt_path`."""
    owner, _, name = path.rpartition(".")
    find: Callable[[Any], Any] = attrgetter(owner) if owner else lambda one: one
    return property(attrgetter(path), lambda one, value: setattr(find(one), name, value), doc=doc)


class ConnectorView:
    """Devices and strategy of a trainer; `trainer._accelerator_connector`. The names are those of its counterpart.

    What earlier releases kept there and the trainer has today is read of the trainer.

    Args:
        trainer: The trainer.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        return getattr(self._trainer, name)

    _precision_plugin_flag = None  # precisions are chosen by name
    _precision_flag = property(attrgetter("_trainer.precision"))
    _strategy_flag = property(attrgetter("_trainer.strategy"))
    _num_nodes_flag = property(attrgetter("_trainer.num_nodes"))
    _accelerator_flag = property(attrgetter("_trainer.strategy.device.type"))

    @property
    def _devices_flag(self) -> int | list[int]:
        of_cpu = self._accelerator_flag == "cpu"
        return int(self._trainer.num_devices) if of_cpu else list(self._trainer.device_ids)

    _parallel_devices = property(lambda self: list(self.accelerator.get_parallel_devices(self._devices_flag)))

    precision_plugin = property(lambda one: getattr(one.strategy, "precision_plugin", None) or one.strategy.precision)
    """The precision of the strategy."""

    def _check_and_init_precision(self) -> Any:
        return self.precision_plugin

    is_distributed = property(lambda self: isinstance(self.strategy, ParallelStrategy) or self.strategy.world_size > 1)
    """True if the strategy is one for several processes, be it of one at the moment."""

    @property
    def use_distributed_sampler(self) -> bool:
        """True if several processes share the data of loaders. Setting it counts for loaders asked for later."""
        return bool(self._trainer.fit_loop.loader_settings.use_distributed_sampler)

    @use_distributed_sampler.setter
    def use_distributed_sampler(self, value: bool) -> None:
        trainer = self._trainer
        of_evaluation = (trainer.fit_loop.validation, trainer.validate_loop, trainer.test_loop, trainer.predict_loop)
        for owner in (trainer.fit_loop.loader_settings, *of_evaluation):
            owner.use_distributed_sampler = value

    @property
    def cluster_environment(self) -> Any:
        """The environment in which the processes were started."""
        import camshaft.compat.names.plugins.environments as environments  # rarely needed

        chosen = getattr(self.strategy, "cluster_environment", None)
        if chosen is not None:
            return chosen
        kinds = (environments.SLURMEnvironment, environments.TorchElasticEnvironment)
        environment: Any = next((one for one in kinds if one.detect()), environments.LightningEnvironment)()
        environment.set_world_size(self._trainer.world_size)
        environment.set_global_rank(self._trainer.global_rank)
        return environment


class _Part:
    """A part of a trainer.

    Args:
        trainer: The trainer.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer


class CallbackConnector(_Part):
    """Callbacks of a trainer; `trainer._callback_connector`. They are attached when a verb begins."""

    def _attach_model_callbacks(self) -> None:
        self._check_running("_attach_model_callbacks")

    def _attach_model_logging_functions(self) -> None:
        self._check_running("_attach_model_logging_functions")

    def _check_running(self, name: str) -> None:
        """Raise `RuntimeError` unless a verb runs, which has done already what a method is to do."""
        if not self.trainer.is_running:
            rule, action = "called while a verb runs", "Call fit, validate, test or predict."
            raise RuntimeError(must_be(name, rule, self.trainer.state.status, "Trainer", action))

    @staticmethod
    def _reorder_callbacks(callbacks: list[Any]) -> list[Any]:
        finders = (stock.BatchSizeFinder, stock.LearningRateFinder)
        return sorted(callbacks, key=lambda one: 2 * isinstance(one, stock.Checkpoint) - isinstance(one, finders))


class CheckpointConnector(_Part):
    """Checkpoints of a trainer; `trainer._checkpoint_connector`.

    Args:
        trainer: The trainer.
        resume_from_checkpoint: A checkpoint from which the next fit resumes.
    """

    _ckpt_path = settable("trainer.ckpt_path", "`trainer.ckpt_path`.")

    def __init__(self, trainer: Any, resume_from_checkpoint: Any = None) -> None:
        super().__init__(trainer)
        self._loaded_checkpoint: dict[str, Any] = {}
        if resume_from_checkpoint is not None:
            self.resume_from_checkpoint_fit_path = resume_from_checkpoint

    @property
    def resume_from_checkpoint_fit_path(self) -> Any:
        """The checkpoint from which a fit resumes, or resumed; one that is set is that of the next fit."""
        return self.trainer.resume_from_checkpoint or self._ckpt_path

    @resume_from_checkpoint_fit_path.setter
    def resume_from_checkpoint_fit_path(self, path: Any) -> None:
        self.trainer._earlier = attrs.evolve(self.trainer._earlier, ckpt_path=path)

    resume_checkpoint_path = resume_from_checkpoint_fit_path
    _run = property(attrgetter("trainer.current_run"))

    def dump_checkpoint(self, weights_only: bool = False) -> dict[str, Any]:
        """Return a checkpoint of now. Collective."""
        run, was_fitted = self._run, self._run.module is self.trainer.verb_state.fitted
        return checkpoint_of(run, self.trainer.fit_loop, was_fitted=was_fitted, weights_only=bool(weights_only))

    def resume_start(self, checkpoint_path: Any = None, weights_only: bool | None = None) -> None:
        """Read a checkpoint, for the methods that restore from it. Collective."""
        if checkpoint_path is not None:
            start = read_requested(self.trainer, checkpoint_path, self._run.verb, weights_only=weights_only)
            self._loaded_checkpoint, self._run.checkpoint_adapter = start.checkpoint or {}, start.adapter

    def resume_end(self) -> None:
        """Forget the checkpoint."""
        self._loaded_checkpoint = {}

    def restore(self, checkpoint_path: Any = None, weights_only: bool | None = None) -> None:
        """Restore everything from a checkpoint, between the epochs of a fit or after it. Collective."""
        self._restore_modules_and_callbacks(checkpoint_path, weights_only)
        self.restore_training_state()
        self.resume_end()

    def _restore_modules_and_callbacks(self, checkpoint_path: Any = None, weights_only: bool | None = None) -> None:
        self.resume_start(checkpoint_path, weights_only)
        self.restore_model()
        self.restore_datamodule()
        self.restore_callbacks()

    def restore_model(self) -> None:
        """Restore the weights. Hooks: on_load_checkpoint."""
        if self._loaded_checkpoint:
            self._run.hooks.on_load_checkpoint(self._loaded_checkpoint)
            restore_module(self._run, self._loaded_checkpoint)

    def restore_datamodule(self) -> None:
        """Restore the state of the data module."""
        restore_data_module(self._run, self._loaded_checkpoint)

    def restore_callbacks(self) -> None:
        """Restore the states of callbacks."""
        if self._loaded_checkpoint:
            restore_callbacks(self._run, self._loaded_checkpoint)

    def restore_training_state(self) -> None:
        """Restore the progress, optimizers and schedulers of a fit.

        Raises:
            RuntimeError: While an epoch runs, which could not go on.
        """
        if self._run.verb != "fit" or "optimizer_states" not in self._loaded_checkpoint:
            return
        if self.trainer.is_running and self.trainer.fit_loop.progress.is_inside_epoch:
            rule, action = "called between epochs", "Pass `ckpt_path` to fit."
            raise RuntimeError(must_be("restore", rule, self._run.position(), "Trainer", action))
        self.restore_loops()
        self.restore_optimizers_and_schedulers()

    def restore_loops(self) -> None:
        """Restore the numbers of epochs and updates."""
        if "fit" in self._loaded_checkpoint.get("loops", {}):
            self.trainer.fit_loop.progress.load_state_dict(self._loaded_checkpoint["loops"]["fit"])

    def restore_optimizers_and_schedulers(self) -> None:
        """Restore optimizers and schedulers."""
        if self._loaded_checkpoint:
            restore_training(self._run, self._loaded_checkpoint, self.trainer.fit_loop.optimization)


class DataConnector(_Part):
    """Data of a trainer; `trainer._data_connector`."""

    _train_dataloader_source = property(attrgetter("trainer.fit_loop._data_source"))
    _val_dataloader_source = property(attrgetter("trainer.validate_loop._data_source"))
    _test_dataloader_source = property(attrgetter("trainer.test_loop._data_source"))
    _predict_dataloader_source = property(attrgetter("trainer.predict_loop._data_source"))

    _datahook_selector = property(lambda self: DataHooksOfRun(self.trainer.lightning_module, self.trainer.datamodule))


@attrs.frozen
class DataHooksOfRun:
    """The module and the data module of a verb, of which the one that has a hook of data is asked.

    Args:
        model: The module.
        datamodule: The data module, if any.
    """

    model: Any
    datamodule: Any

    def get_instance(self, hook_name: str) -> Any:
        """Return the data module if it overrides a hook, else the module."""
        overrides = self.datamodule is not None and is_overridden(self.datamodule, hook_name)
        return self.datamodule if overrides else self.model

    def get_hook(self, hook_name: str) -> Any:
        """Return the hook of that one."""
        return getattr(self.get_instance(hook_name), hook_name)


class LoggerConnector(_Part):
    """Logged values of a trainer; `trainer._logger_connector`."""

    callback_metrics = _callback_metrics = property(attrgetter("trainer.callback_metrics"))
    """As of the trainer."""
    logged_metrics = _logged_metrics = property(attrgetter("trainer.logged_metrics"))
    """As of the trainer."""
    progress_bar_metrics = property(attrgetter("trainer.progress_bar_metrics"))
    """As of the trainer."""

    @property
    def should_update_logs(self) -> bool:
        """True in batches after which values of steps are sent to loggers."""
        trainer, loop = self.trainer, self.trainer._active_loop
        if not trainer.log_every_n_steps or loop is None:
            return bool(trainer.log_every_n_steps)
        step: int = loop._batches_that_stepped + 1 if loop is trainer.fit_loop else loop.progress.ready
        return step % trainer.log_every_n_steps == 0 or bool(trainer.should_stop)

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Send values to the loggers."""
        values: Any = {name: one.item() if isinstance(one, torch.Tensor) else one for name, one in metrics.items()}
        if step is None:
            step = values.pop("step", None)
        if step is None and values:
            values.setdefault("epoch", self.trainer.current_epoch)
            step = self.trainer.fit_loop._batches_that_stepped
        for logger in self.trainer.loggers if values else ():
            logger.log_metrics(metrics=values, step=step)
            logger.save()

    @property
    def metrics(self) -> dict[str, Any]:
        """The values of all three readers."""
        return {"callback": self.callback_metrics, "log": self.logged_metrics, "pbar": self.progress_bar_metrics}


class ResultsView(_Part):
    """Logged values of the epoch that runs; `trainer._results`."""

    def metrics(self, on_step: bool) -> dict[str, Any]:
        """Return the values by reader; those of steps and epochs alike."""
        return dict(self.trainer._logger_connector.metrics)

    @property
    def dataloader_idx(self) -> int | None:
        """Index of the loader whose batch runs; None with one loader."""
        run = self.trainer.current_run
        return run.metrics.dataloader_idx if run.num_loaders > 1 and run.metrics is not None else None


class SignalConnector(_Part):
    """Signals that a trainer got; `trainer._signal_connector`."""

    @property
    def received_sigterm(self) -> bool:
        """As `trainer.received_sigterm`."""
        return bool(self.trainer.received_sigterm)

    @received_sigterm.setter
    def received_sigterm(self, value: bool) -> None:
        rule, action = "read only", "Call `trainer.preempt(path)`, or set `trainer.should_stop`."
        raise AttributeError(must_be("received_sigterm", rule, value, "Trainer", action))


@attrs.define
class LoaderSource:
    """The source of a loop's loaders: passed to the verb, or a hook of the data module or the module.

    It is `trainer.fit_loop.epoch_loop.val_loop._data_source`, and likewise in the other loops.

    Args:
        _trainer: The trainer.
        stage: The stage of the loaders.
        name: The hook.
    """

    _trainer: Any
    stage: str
    name: str

    @property
    def instance(self) -> Any:
        """The loaders passed to the verb, else the data module or the module that has the hook; None without any.

        Loaders that are set are taken when the loop asks for its loaders the next time.
        """
        run = self._trainer.current_run
        if run is None or run.loaders.get(self.stage) is not None:
            return None if run is None else run.loaders[self.stage]
        return next((one for one in (run.data, run.module) if one is not None and is_overridden(one, self.name)), None)

    @instance.setter
    def instance(self, loaders: Any) -> None:
        run = self._trainer.current_run
        run.loaders = {**run.loaders, self.stage: loaders}

    def dataloader(self) -> Any:
        """Return the loaders that were passed, or those that the hook returns now."""
        source = self.instance
        return getattr(source, self.name)() if self.is_module() else source

    def is_defined(self) -> bool:
        """Return whether there is a source, whatever the limit of batches."""
        return self.instance is not None

    def is_module(self) -> bool:
        """Return whether it is a hook."""
        return self.is_defined() and self._trainer.current_run.loaders.get(self.stage) is None


def attach_loops(trainer: Any) -> None:
    """Give the loops of a trainer their `trainer` and their `_data_source`."""
    for loop, stage, hook in (
        (trainer.fit_loop, "train", "train_dataloader"),
        (trainer.fit_loop.validation, "validate", "val_dataloader"),
        (trainer.validate_loop, "validate", "val_dataloader"),
        (trainer.test_loop, "test", "test_dataloader"),
        (trainer.predict_loop, "predict", "predict_dataloader"),
    ):
        # the loops take no attributes of others
        vars(loop).update(trainer=trainer, _data_source=LoaderSource(trainer, stage, hook))

"""What a trainer shows of itself to callbacks, modules and users, read from where it is kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from camshaft.callbacks import EarlyStopping, ModelCheckpoint
from camshaft.callbacks.progress.progress_bar import ProgressBar
from camshaft.hooks_core import Hooks, is_overridden
from camshaft.hooks_core.known_attributes import check_known
from camshaft.hooks_core.messages import must_be
from camshaft.loops import FitLoop, PredictLoop, Run, TestLoop, ValidationLoop
from camshaft.loops.metrics import MetricLog
from camshaft.trainer.configuration import choose_log_interval, num_devices_of, num_nodes_of
from camshaft.trainer.loggers import SilentLogger, choose_loggers


class LoopView:
    """The attributes of a trainer that are kept in its loops."""

    fit_loop: FitLoop
    validate_loop: ValidationLoop
    test_loop: TestLoop
    predict_loop: PredictLoop
    fast_dev_run: bool | int
    _run: Run | None

    # progress and limits

    @property
    def current_epoch(self) -> int:
        """Index of the training epoch; after it has ended, of the next."""
        return self.fit_loop.current_epoch

    @property
    def global_step(self) -> int:
        """Number of optimizer updates so far, whatever the number of optimizers."""
        return self.fit_loop.progress.global_step

    @property
    def max_epochs(self) -> int | None:
        """The largest number of epochs; None if there is no limit. Set it to train on in the next fit."""
        return self.fit_loop.max_epochs

    @max_epochs.setter
    def max_epochs(self, value: int | None) -> None:
        self.fit_loop.max_epochs = value

    @property
    def min_epochs(self) -> int | None:
        """Epochs that `should_stop` cannot cut short."""
        return self.fit_loop.min_epochs

    @min_epochs.setter
    def min_epochs(self, value: int | None) -> None:
        self.fit_loop.min_epochs = value

    @property
    def max_steps(self) -> int:
        """The largest number of updates; -1 if there is no limit."""
        return self.fit_loop.max_steps

    @max_steps.setter
    def max_steps(self, value: int) -> None:
        self.fit_loop.max_steps = value

    @property
    def min_steps(self) -> int | None:
        """Updates that `should_stop` cannot cut short."""
        return self.fit_loop.min_steps

    @min_steps.setter
    def min_steps(self, value: int | None) -> None:
        self.fit_loop.min_steps = value

    @property
    def should_stop(self) -> bool:
        """Whether training is to stop at the next opportunity; set it to true from anywhere."""
        return self.fit_loop.should_stop

    @should_stop.setter
    def should_stop(self, value: bool) -> None:
        self.fit_loop.should_stop = value

    @property
    def is_preempted(self) -> bool:
        """Whether the current or latest fit ends because `preempt` asked all processes to save and leave."""
        return self.fit_loop.is_preempted

    @property
    def accumulate_grad_batches(self) -> int:
        """Batches whose gradients make one update.

        What is set in `on_train_epoch_start` or before counts from the epoch's first batch on, what is set later from
        the next epoch on. Set it in every process alike.

        Raises:
            TypeError, ValueError: On setting what is no positive int, or what the fit that runs cannot do.
        """
        return self.fit_loop.accumulate_grad_batches

    @accumulate_grad_batches.setter
    def accumulate_grad_batches(self, value: int) -> None:
        self.fit_loop.accumulate_grad_batches = value

    @property
    def gradient_clip_val(self) -> float | None:
        """The largest norm or absolute value of the gradients; None if nothing is clipped.

        What is set while a fit runs counts from its next update on.
        """
        return self.fit_loop.settings.gradient_clip_val

    @gradient_clip_val.setter
    def gradient_clip_val(self, value: float | None) -> None:
        self.fit_loop.set_clipping(value, self.gradient_clip_algorithm)

    @property
    def gradient_clip_algorithm(self) -> str:
        """ "norm" or "value"; set as `gradient_clip_val`."""
        return self.fit_loop.settings.gradient_clip_algorithm

    @gradient_clip_algorithm.setter
    def gradient_clip_algorithm(self, value: str | None) -> None:
        self.fit_loop.set_clipping(self.gradient_clip_val, value)

    # what is set of the following while a fit runs counts from the next time that loaders are asked for

    @property
    def limit_train_batches(self) -> int | float:
        """How much of a training epoch is taken: an int is a number of batches, a float a share."""
        return self.fit_loop.limits.train_limit[0]

    @limit_train_batches.setter
    def limit_train_batches(self, value: int | float) -> None:
        self._set_limit("limit_train_batches", value)

    @property
    def limit_val_batches(self) -> int | float:
        """Likewise of each validation loader, in fit and in `validate`.

        In a fit that runs 0 ends validation at once, and another number after 0 begins it with the next epoch.
        """
        return self.validate_loop.limit_batches

    @limit_val_batches.setter
    def limit_val_batches(self, value: int | float) -> None:
        self.validate_loop.limit_batches = self.fit_loop.validation.limit_batches = value

    @property
    def limit_test_batches(self) -> int | float:
        """Likewise of each test loader."""
        return self.test_loop.limit_batches

    @limit_test_batches.setter
    def limit_test_batches(self, value: int | float) -> None:
        self.test_loop.limit_batches = value

    @property
    def limit_predict_batches(self) -> int | float:
        """Likewise of each prediction loader."""
        return self.predict_loop.limit_batches

    @limit_predict_batches.setter
    def limit_predict_batches(self, value: int | float) -> None:
        self.predict_loop.limit_batches = value

    @property
    def overfit_batches(self) -> int | float:
        """How much of an epoch is taken again and again; 0 if it is not about overfitting."""
        return self.fit_loop.limits.overfit_batches

    @overfit_batches.setter
    def overfit_batches(self, value: int | float) -> None:
        self._set_limit("overfit_batches", value)

    @property
    def val_check_interval(self) -> int | float:
        """How often validation runs within an epoch."""
        return self.fit_loop.limits.val_check_interval

    @val_check_interval.setter
    def val_check_interval(self, value: int | float) -> None:
        self._set_limit("val_check_interval", value)

    # what is set of the following while a fit runs counts at once

    @property
    def check_val_every_n_epoch(self) -> int | None:
        """In which epochs validation runs."""
        return self.fit_loop.limits.check_val_every_n_epoch

    @check_val_every_n_epoch.setter
    def check_val_every_n_epoch(self, value: int | None) -> None:
        self._set_limit("check_val_every_n_epoch", value)

    @property
    def num_sanity_val_steps(self) -> int | float:
        """Validation batches of each loader that are tried before training; infinite if all are."""
        steps = self.fit_loop.limits.num_sanity_val_steps
        return float("inf") if steps == -1 else steps

    @num_sanity_val_steps.setter
    def num_sanity_val_steps(self, value: int | float) -> None:
        self._set_limit("num_sanity_val_steps", -1 if value == float("inf") else value)

    @property
    def reload_dataloaders_every_n_epochs(self) -> int:
        """Before every how many epochs the loaders are asked for again; 0 asks once."""
        return self.fit_loop.limits.reload_dataloaders_every_n_epochs

    @reload_dataloaders_every_n_epochs.setter
    def reload_dataloaders_every_n_epochs(self, value: int) -> None:
        self._set_limit("reload_dataloaders_every_n_epochs", value)

    def _set_limit(self, name: str, value: Any) -> None:
        self.fit_loop.limits = self.fit_loop.limits.with_number(name, value)

    # data

    @property
    def is_last_batch(self) -> bool:
        """Whether the training batch is known to be its epoch's last."""
        return self.fit_loop.is_last_batch

    @property
    def num_training_batches(self) -> int | float:
        """Batches of a training epoch; infinite if unknown."""
        return self.fit_loop.num_batches

    @property
    def num_val_batches(self) -> list[int | float]:
        """Batches of each validation loader."""
        return self._validation_loop.num_batches

    @property
    def num_sanity_val_batches(self) -> list[int | float]:
        """Batches that the sanity check takes of each validation loader."""
        return self.fit_loop.num_sanity_batches

    @property
    def num_test_batches(self) -> list[int | float]:
        """Batches of each test loader."""
        return self.test_loop.num_batches

    @property
    def num_predict_batches(self) -> list[int | float]:
        """Batches of each prediction loader."""
        return self.predict_loop.num_batches

    @property
    def train_dataloader(self) -> Any:
        """The training loader of the fit that runs or ran last, as it was given: one loader, a list, a dictionary.

        None before fit has asked for it, and from another verb on. Of several processes each has its share in a
        loader's place; see `use_distributed_sampler`.
        """
        return self.fit_loop.given_loader if self._verb == "fit" else None

    @property
    def val_dataloaders(self) -> Any:
        """The validation loaders as they were given, likewise; None if there are none."""
        return self._validation_loop.given_loaders if self._verb in ("fit", "validate") else None

    @property
    def test_dataloaders(self) -> Any:
        """The test loaders as they were given, likewise."""
        return self.test_loop.given_loaders if self._verb == "test" else None

    @property
    def predict_dataloaders(self) -> Any:
        """The prediction loaders as they were given, likewise."""
        return self.predict_loop.given_loaders if self._verb == "predict" else None

    # optimization

    @property
    def estimated_stepping_batches(self) -> int | float:
        """Number of updates that the whole fit will make, for schedulers; infinite if nothing limits it.

        Every epoch counts with the `accumulate_grad_batches` of now. Where it is not known how many updates an epoch
        makes, of a stream or of batches that are split, it is `max_steps`.

        Raises:
            RuntimeError: Before `configure_optimizers`, when the training loader is not known yet.
        """
        loop = self.fit_loop
        if loop.loader is None:
            rule = "read from configure_optimizers on, when the training loader is known"
            action = "Move what needs it there."
            raise RuntimeError(must_be("estimated_stepping_batches", rule, None, "Trainer", action))
        limits, num_batches = loop.limits, loop.num_batches
        if num_batches == float("inf") or self._splits_batches:
            return limits.step_limit if limits.epoch_limit else 0
        per_epoch = -(-num_batches // loop.accumulate_grad_batches)
        in_epochs = limits.epoch_limit * per_epoch if per_epoch else 0
        return min(in_epochs, limits.step_limit)

    @property
    def optimizers(self) -> list[Any]:
        """The optimizers of the current or last fit."""
        return self.fit_loop.optimization.optimizers

    @property
    def lr_scheduler_configs(self) -> list[Any]:
        """The schedulers of the current or last fit, each with its settings."""
        return self.fit_loop.optimization.schedulers

    @property
    def _splits_batches(self) -> bool:
        module = None if self._run is None else self._run.module
        return bool(self.fit_loop.settings.truncated_bptt_steps or getattr(module, "truncated_bptt_steps", None))

    @property
    def _validation_loop(self) -> ValidationLoop:
        return self.validate_loop if self._verb == "validate" else self.fit_loop.validation

    @property
    def _verb(self) -> str | None:
        return None if self._run is None else self._run.verb


_SET_BY_CONSTRUCTOR = frozenset({"strategy", "fast_dev_run", "barebones"})


class TrainerView(LoopView):
    """The attributes of a trainer that are kept in its parts."""

    callbacks: list[Any]
    strategy: Any
    _loggers: list[Any]
    _log_every_n_steps: int
    _default_root_dir: str
    _metric_log: MetricLog | None
    _log_dir: str | None = None  # the first process's, where there are several
    _is_running: bool = False
    _is_sealed: bool = False

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; one whose name resembles a setting's is refused, with that name.

        Other attributes are the user's own, and all are in a subclass of one's own.

        Raises:
            AttributeError: If there is none of this name, or it is the constructor's to set.
            RuntimeError: If `callbacks` are replaced while a verb runs, whose hooks are bound.
        """
        if self._is_sealed:
            if name in _SET_BY_CONSTRUCTOR:
                rule = "set by the constructor, which other parts have taken it from"
                action = "Make another trainer."
                raise AttributeError(must_be(name, rule, value, type(self).__qualname__, action), name=name, obj=self)
            if name == "callbacks" and self._is_running:
                action = "Set them before, or let `configure_callbacks` of the module return them."
                raise RuntimeError(must_be(name, "set while no verb runs", value, type(self).__qualname__, action))
            check_known(self, name, takes_own=True)
        object.__setattr__(self, name, value)

    # what is running

    @property
    def training(self) -> bool:
        """Whether training batches are running."""
        return self._stage == "train"

    @property
    def validating(self) -> bool:
        """Whether validation is running, in fit or by itself; false in the sanity check."""
        return self._stage == "validate" and not self.sanity_checking

    @property
    def testing(self) -> bool:
        """Whether a test is running."""
        return self._stage == "test"

    @property
    def predicting(self) -> bool:
        """Whether prediction is running."""
        return self._stage == "predict"

    @property
    def evaluating(self) -> bool:
        """Whether validation or a test is running, the sanity check included."""
        return self._stage in ("validate", "test")

    @property
    def enable_validation(self) -> bool:
        """Whether fit validates."""
        model = self.model
        has_step = model is not None and is_overridden(model, "validation_step")
        return has_step and bool(self._validation_loop.loaders) and self.limit_val_batches != 0

    @property
    def sanity_checking(self) -> bool:
        """Whether the sanity check is running."""
        return self.fit_loop.sanity_checking

    @property
    def hooks(self) -> Hooks:
        """The resolved hooks of the current run.

        Raises:
            RuntimeError: If nothing runs or ran.
        """
        if self._run is None:
            raise RuntimeError(must_be("run", "started", None, "Trainer.hooks", "Call fit or another verb first."))
        return self._run.hooks

    @property
    def lightning_module(self) -> Any:
        """The module, under the name that Lightning's users know."""
        return self.model

    @property
    def model(self) -> Any:
        """The module of the current or last verb, or None."""
        return None if self._run is None else self._run.module

    @property
    def datamodule(self) -> Any:
        """The data module of the current or last verb, or None."""
        return None if self._run is None else self._run.data

    # processes

    @property
    def world_size(self) -> int:
        """Number of processes."""
        return int(self.strategy.world_size)

    @property
    def global_rank(self) -> int:
        """Index of this process among all."""
        return int(self.strategy.global_rank)

    @property
    def local_rank(self) -> int:
        """Index of this process on its machine."""
        return int(self.strategy.local_rank)

    @property
    def num_devices(self) -> int:
        """Number of processes a machine, each with a device."""
        return num_devices_of(self.strategy)

    @property
    def num_nodes(self) -> int:
        """Number of machines."""
        return num_nodes_of(self.strategy)

    @property
    def node_rank(self) -> int:
        """Index of this machine."""
        return self.global_rank // self.num_devices

    @property
    def scaler(self) -> Any:
        """What scales gradients, under the names of torch's `GradScaler`; None unless precision is mixed."""
        from camshaft.trainer.gradient_scaler import scaler_of  # seldom needed

        return scaler_of(self.strategy)

    @property
    def is_global_zero(self) -> bool:
        """Whether this process is the one that writes."""
        return self.global_rank == 0

    # metrics, loggers, callbacks

    @property
    def callback_metrics(self) -> Mapping[str, Tensor]:
        """Every logged value by name."""
        return {} if self._metric_log is None else self._metric_log.callback_metrics

    @property
    def logged_metrics(self) -> Mapping[str, Any]:
        """What was last sent to the loggers."""
        return {} if self._metric_log is None else self._metric_log.logged_metrics

    @property
    def progress_bar_metrics(self) -> Mapping[str, float | int | str]:
        """What a progress bar shows; reading it waits for the device."""
        return {} if self._metric_log is None else self._metric_log.progress_bar_metrics

    @property
    def logger(self) -> Any:
        """The first logger, or None. Setting it replaces all, as setting `loggers` does."""
        return self._loggers[0] if self._loggers else None

    @logger.setter
    def logger(self, logger: Any) -> None:
        self.loggers = logger

    @property
    def loggers(self) -> list[Any]:
        """All loggers. What is set, in the form of the constructor's `logger`, gets what is logged from then on.

        Raises:
            TypeError: On setting what is no logger; None means none here.
        """
        return self._loggers

    @loggers.setter
    def loggers(self, loggers: Any) -> None:
        self._loggers = self._writing(choose_loggers(loggers or False, self._default_root_dir))
        if self._metric_log is not None:
            self._metric_log.write_to(self._loggers)

    def _writing(self, loggers: list[Any]) -> list[Any]:
        """The loggers, or as many that write nothing, in a trial and in all processes but the first."""
        if self.fast_dev_run or not self.is_global_zero:
            return [SilentLogger() for _ in loggers]
        return loggers

    @property
    def log_every_n_steps(self) -> int:
        """Updates between two entries of step values in the loggers; 0 for none. What is set counts at once.

        Raises:
            TypeError, ValueError: On setting what is no int, or a negative one.
        """
        return self._log_every_n_steps

    @log_every_n_steps.setter
    def log_every_n_steps(self, value: int) -> None:
        self._log_every_n_steps = choose_log_interval(value)
        if self._metric_log is not None:
            self._metric_log.send_every(self._log_every_n_steps)

    @property
    def default_root_dir(self) -> str:
        """Where files go by default."""
        return self._default_root_dir

    @property
    def log_dir(self) -> str:
        """Directory of the first logger's run; the default directory if no logger writes to disk.

        Of several processes the first one's, once a verb has begun.
        """
        if self._log_dir is not None:
            return self._log_dir
        return getattr(self.logger, "log_dir", None) or self._default_root_dir

    @property
    def checkpoint_callback(self) -> ModelCheckpoint | None:
        """The first `ModelCheckpoint`, or None."""
        return next(iter(self.checkpoint_callbacks), None)

    @property
    def checkpoint_callbacks(self) -> list[ModelCheckpoint]:
        """Every `ModelCheckpoint`."""
        return [callback for callback in self.callbacks if isinstance(callback, ModelCheckpoint)]

    @property
    def early_stopping_callback(self) -> EarlyStopping | None:
        """The first `EarlyStopping`, or None."""
        return next(iter(self.early_stopping_callbacks), None)

    @property
    def early_stopping_callbacks(self) -> list[EarlyStopping]:
        """Every `EarlyStopping`."""
        return [callback for callback in self.callbacks if isinstance(callback, EarlyStopping)]

    @property
    def progress_bar_callback(self) -> ProgressBar | None:
        """The first progress bar, or None."""
        return next((callback for callback in self.callbacks if isinstance(callback, ProgressBar)), None)

    @property
    def _stage(self) -> str | None:
        return None if self._run is None else self._run.stage

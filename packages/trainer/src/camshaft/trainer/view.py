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
from camshaft.loops.metrics import MetricLog
from camshaft.trainer.defaults import choose_log_interval
from camshaft.trainer.loggers import choose_loggers
from camshaft.trainer.loop_view import LoopView
from camshaft.trainer.silent_logger import SilentLogger
from camshaft.trainer.strategy_choice import num_devices_of, num_nodes_of

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

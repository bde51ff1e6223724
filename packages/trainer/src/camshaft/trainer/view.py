"""What a trainer shows of itself to callbacks, modules and users, read from where it is kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from camshaft.callbacks import EarlyStopping, ModelCheckpoint, RichProgressBar
from camshaft.hooks_core import Hooks
from camshaft.hooks_core.messages import must_be
from camshaft.loops import FitLoop, PredictLoop, Run, TestLoop, ValidationLoop
from camshaft.trainer.metric_log import MetricLog


class TrainerView:
    """The attributes of a trainer that are kept in its parts."""

    callbacks: list[Any]
    strategy: Any
    fit_loop: FitLoop
    validate_loop: ValidationLoop
    test_loop: TestLoop
    predict_loop: PredictLoop
    log_every_n_steps: int
    _loggers: list[Any]
    _default_root_dir: str
    _metric_log: MetricLog | None
    _run: Run | None

    # progress and limits

    @property
    def current_epoch(self) -> int:
        """Index of the training epoch; after it has ended, of the next."""
        return self.fit_loop.progress.current_epoch

    @property
    def global_step(self) -> int:
        """Number of optimizer updates so far, whatever the number of optimizers."""
        return self.fit_loop.progress.global_step

    @property
    def max_epochs(self) -> int | None:
        """The largest number of epochs; None if there is no limit."""
        limit = self.fit_loop.limits.epoch_limit
        return None if limit == float("inf") else int(limit)

    @property
    def min_epochs(self) -> int | None:
        """Epochs that `should_stop` cannot cut short."""
        return self.fit_loop.limits.min_epochs

    @property
    def max_steps(self) -> int:
        """The largest number of updates; -1 if there is no limit."""
        return self.fit_loop.limits.max_steps

    @property
    def min_steps(self) -> int | None:
        """Updates that `should_stop` cannot cut short."""
        return self.fit_loop.limits.min_steps

    @property
    def should_stop(self) -> bool:
        """Whether training is to stop at the next opportunity; set it to true from anywhere."""
        return self.fit_loop.should_stop

    @should_stop.setter
    def should_stop(self, value: bool) -> None:
        self.fit_loop.should_stop = value

    @property
    def accumulate_grad_batches(self) -> int:
        """Batches whose gradients make one update."""
        return self.fit_loop.accumulate_grad_batches

    @property
    def val_check_interval(self) -> int | float:
        """How often validation runs within an epoch."""
        return self.fit_loop.limits.val_check_interval

    @property
    def check_val_every_n_epoch(self) -> int | None:
        """In which epochs validation runs."""
        return self.fit_loop.limits.check_val_every_n_epoch

    @property
    def fast_dev_run(self) -> bool:
        """Whether the run is only a trial; always false, as trials are not supported yet."""
        return False

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
        """The training loader, once fit has asked for it."""
        return self.fit_loop.loader

    @property
    def val_dataloaders(self) -> list[Any]:
        """The validation loaders, once they were asked for."""
        return self._validation_loop.loaders

    @property
    def test_dataloaders(self) -> list[Any]:
        """The test loaders, once they were asked for."""
        return self.test_loop.loaders

    @property
    def predict_dataloaders(self) -> list[Any]:
        """The prediction loaders, once they were asked for."""
        return self.predict_loop.loaders

    @property
    def estimated_stepping_batches(self) -> int | float:
        """Number of updates that the whole fit will make, for schedulers; infinite if nothing limits it.

        Known from `configure_optimizers` on.
        """
        loop = self.fit_loop
        per_epoch = -(-loop.num_batches // loop.accumulate_grad_batches)
        in_epochs = loop.limits.epoch_limit * per_epoch if loop.num_batches else 0
        return min(in_epochs, loop.limits.step_limit)

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

    @property
    def optimizers(self) -> list[Any]:
        """The optimizers of the current or last fit."""
        return self.fit_loop.optimization.optimizers

    @property
    def lr_scheduler_configs(self) -> list[Any]:
        """The schedulers of the current or last fit, each with its settings."""
        return self.fit_loop.optimization.schedulers

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
        """The first logger, or None."""
        return self._loggers[0] if self._loggers else None

    @property
    def loggers(self) -> list[Any]:
        """All loggers."""
        return self._loggers

    @property
    def default_root_dir(self) -> str:
        """Where files go by default."""
        return self._default_root_dir

    @property
    def log_dir(self) -> str | None:
        """Directory of the first logger's run; the default directory if no logger writes to disk."""
        return (self.logger.log_dir if self.logger is not None else None) or self._default_root_dir

    @property
    def checkpoint_callback(self) -> Any:
        """The first `ModelCheckpoint`, or None."""
        return self._first(ModelCheckpoint)

    @property
    def early_stopping_callback(self) -> Any:
        """The first `EarlyStopping`, or None."""
        return self._first(EarlyStopping)

    @property
    def progress_bar_callback(self) -> Any:
        """The first progress bar, or None."""
        return self._first(RichProgressBar)

    def _first(self, kind: type) -> Any:
        return next((callback for callback in self.callbacks if isinstance(callback, kind)), None)

    @property
    def _stage(self) -> str | None:
        return None if self._run is None else self._run.stage

    @property
    def _validation_loop(self) -> ValidationLoop:
        is_alone = self._run is not None and self._run.verb == "validate"
        return self.validate_loop if is_alone else self.fit_loop.validation

    def _new_metric_log(self) -> MetricLog:
        return MetricLog(
            loggers=self._loggers, log_every_n_steps=self.log_every_n_steps, progress=self.fit_loop.progress
        )

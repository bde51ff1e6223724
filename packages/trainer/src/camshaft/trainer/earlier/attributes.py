"""What a trainer of earlier releases showed of itself: names with an equal of today, and what to use for others."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch.optim.lr_scheduler import ReduceLROnPlateau

from camshaft.callbacks import ModelSummary
from camshaft.hooks_core import is_overridden
from camshaft.trainer.earlier.argument_translation import EarlierSettings
from camshaft.trainer.view import TrainerView

_OPTIMIZERS = "`trainer.optimizers` and `trainer.lr_scheduler_configs`"
_LOOPS = "`trainer.fit_loop`, `trainer.validate_loop` or `trainer.test_loop`"

ABSENT_ATTRIBUTES: Mapping[str, str] = {
    "accelerator": "`trainer.strategy`",
    "accelerator_backend": "`trainer.strategy`",
    "accelerator_connector": "`trainer.strategy`",
    "amp_backend": "`trainer.strategy.precision`",
    "amp_level": "`trainer.strategy.precision`",
    "available_gpus": "`torch.cuda.device_count()`",
    "call_hook": "a method of your own",
    "data_connector": "`trainer.train_dataloader` and its like",
    "data_parallel_device_ids": "`trainer.num_devices` and `trainer.strategy.device`",
    "dev_debugger": "a callback",
    "evaluation_loop": _LOOPS,
    "get_train_dataloader": "`trainer.train_dataloader`",
    "get_val_dataloaders": "`trainer.val_dataloaders`",
    "get_test_dataloaders": "`trainer.test_dataloaders`",
    "gpus": "`trainer.num_devices`",
    "hpc_save": "`trainer.preempt` or `PreemptionCheckpoint`",
    "init_optimizers": _OPTIMIZERS,
    "logger_connector": "`self.log` in the module",
    "lr_find": (
        "`LearningRateFinder` of `camshaft.callbacks`, or `Trainer(auto_lr_find=True)` with `trainer.tune(model)`"
    ),
    "model_connector": "`trainer.model`",
    "optimizer_connector": _OPTIMIZERS,
    "optimizer_frequencies": "`trainer.fit_loop.optimization.frequencies`",
    "precision": "`trainer.strategy.precision.name`",
    "precision_plugin": "`trainer.strategy.precision`",
    "process_position": "a callback that shows progress",
    "profiler": "`HookTimeline` of `camshaft.callbacks`, or `torch.profiler.record_function`",
    "restore": "`trainer.fit(..., ckpt_path=...)`",
    "run_evaluation": "`trainer.validate` or `trainer.test`, outside of fit",
    "running_loss": "`trainer.callback_metrics`",
    "scale_batch_size": (
        "`BatchSizeFinder` of `camshaft.callbacks`, or `Trainer(auto_scale_batch_size=True)` with `trainer.tune(model)`"
    ),
    "slurm_job_id": "`os.environ['SLURM_JOB_ID']`",
    "tng_tqdm_dic": "`trainer.progress_bar_metrics`",
    "train_loop": "`trainer.fit_loop`",
    "training_type_plugin": "`trainer.strategy`",
    "tuner": "`trainer.tune(model)`",
}
"""What to use in place of attributes that have no equal."""


class EarlierAttributes(TrainerView):
    """Read-only attributes under the names of earlier releases."""

    _earlier: EarlierSettings
    _was_interrupted: bool = False

    def __getattr__(self, name: str) -> Any:
        """Say what to use in place of an attribute of earlier releases."""
        if hasattr(type(self), name):
            return object.__getattribute__(self, name)  # raises what the property raised
        message = f"{type(self).__name__!r} object has no attribute {name!r}"
        if name in ABSENT_ATTRIBUTES:
            message += f" any more. Use {ABSENT_ATTRIBUTES[name]}."
        raise AttributeError(message, name=name, obj=self)

    def __setattr__(self, name: str, value: Any) -> None:
        """Say what to use in place of an attribute of earlier releases that is set."""
        if self._is_sealed and name in ABSENT_ATTRIBUTES and not hasattr(type(self), name):
            message = f"{type(self).__name__!r} object has no attribute {name!r} to be set. Use "
            raise AttributeError(f"{message}{ABSENT_ATTRIBUTES[name]}.", name=name, obj=self)
        super().__setattr__(name, value)

    # progress

    @property
    def current_epoch(self) -> int:
        """Index of the training epoch; after it has ended, of the next.

        From the end of a fit on, that of the last epoch for a module of a release before 1.6, as it was there.
        """
        loop = self.fit_loop
        epoch = loop.current_epoch
        if loop.has_ended and not loop.progress.is_inside_epoch and self._keeps_last_epoch:
            return max(0, epoch - 1)
        return epoch

    @property
    def _keeps_last_epoch(self) -> bool:
        hooks = getattr(self._run, "hooks", None)  # a run that was refused has none
        return hooks is not None and hooks.behaviour.keeps_last_epoch

    @property
    def batch_idx(self) -> int:
        """Index of the training batch in its epoch; 0 before the first."""
        return max(0, self.fit_loop.progress.batches.ready - 1)

    batch_nb = batch_idx

    @property
    def total_batch_idx(self) -> int:
        """Training batches done in all epochs."""
        return self.fit_loop.progress.total_batches

    total_batch_nb = total_batch_idx

    @property
    def nb_training_batches(self) -> int | float:
        """`num_training_batches`."""
        return self.num_training_batches

    nb_tng_batches = nb_training_batches

    @property
    def total_batches(self) -> int | float:
        """Batches of an epoch: of training, and of each validation in it."""
        num_training = self.num_training_batches
        if not num_training or not self._validates_epoch:
            return num_training
        interval = self.val_check_interval
        batches_between = interval if isinstance(interval, int) else max(1, int(num_training * interval))
        return num_training + self.nb_val_batches * (num_training // batches_between)

    @property
    def _validates_epoch(self) -> bool:
        every = self.check_val_every_n_epoch
        return every is not None and (self.current_epoch + 1) % every == 0

    @property
    def nb_sanity_val_steps(self) -> int:
        """Validation batches of the sanity check; -1 for all."""
        return self.fit_loop.limits.num_sanity_val_steps

    @property
    def nb_val_batches(self) -> int | float:
        """Validation batches of all loaders."""
        return sum(self.num_val_batches)

    @property
    def nb_test_batches(self) -> int | float:
        """Test batches of all loaders."""
        return sum(self.num_test_batches)

    @property
    def max_nb_epochs(self) -> int | None:
        """`max_epochs`."""
        return self.max_epochs

    @property
    def min_nb_epochs(self) -> int | None:
        """`min_epochs`."""
        return self.min_epochs

    # what is running

    @property
    def running_sanity_check(self) -> bool:
        """`sanity_checking`."""
        return self.sanity_checking

    @property
    def evaluating(self) -> bool:
        """Whether validation or a test is running, the sanity check included."""
        return self._stage in ("validate", "test")

    @property
    def interrupted(self) -> bool:
        """Whether the user interrupted the latest fit."""
        return self._was_interrupted

    @contextmanager
    def _noting_interrupt(self) -> Iterator[None]:
        self._was_interrupted = False
        try:
            yield
        except KeyboardInterrupt:
            self._was_interrupted = True
            raise

    def get_model(self) -> Any:
        """`model`."""
        return self.model

    def is_overridden(self, method_name: str, model: Any = None) -> bool:
        """Whether the module overrides a hook."""
        return is_overridden(self.model if model is None else model, method_name)

    # devices and processes

    @property
    def proc_rank(self) -> int:
        """`global_rank`."""
        return self.global_rank

    @property
    def node_rank(self) -> int:
        """Index of this machine."""
        return self.global_rank // self.num_devices

    @property
    def num_processes(self) -> int:
        """`num_devices`."""
        return self.num_devices

    @property
    def use_ddp(self) -> bool:
        """Whether several processes train together."""
        return self.world_size > 1

    @property
    def use_dp(self) -> bool:
        """False: one process computes on one device."""
        return False

    use_ddp2 = use_single_gpu = use_tpu = on_tpu = use_horovod = data_parallel = use_dp

    @property
    def distributed_backend(self) -> str | None:
        """ "ddp" with several processes, else None."""
        return "ddp" if self.use_ddp else None

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return bool(self.strategy.device.type == "cuda")

    @property
    def root_gpu(self) -> int | None:
        """Index of this process's GPU; None on the CPU."""
        return (self.strategy.device.index or 0) if self.on_gpu else None

    @property
    def num_gpus(self) -> int:
        """GPUs of a machine that train."""
        return self.num_devices if self.on_gpu else 0

    @property
    def use_amp(self) -> bool:
        """Whether precision is mixed."""
        name = getattr(getattr(self.strategy, "precision", None), "name", "")
        return str(name).endswith("-mixed")

    use_native_amp = use_amp

    @property
    def scaler(self) -> Any:
        """What scales gradients, under the names of torch's `GradScaler`; None unless precision is mixed."""
        from camshaft.trainer.earlier.gradient_scaler import scaler_of

        return scaler_of(self.strategy)

    # data, metrics, files

    @property
    def disable_validation(self) -> bool:
        """Whether there is nothing to validate in fit."""
        model = self.model
        has_step = model is not None and is_overridden(model, "validation_step")
        return not has_step or not self._validation_loop.loaders or self.limit_val_batches == 0

    @property
    def enable_validation(self) -> bool:
        """Whether fit validates."""
        return not self.disable_validation

    @property
    def lr_schedulers(self) -> list[dict[str, Any]]:
        """The schedulers of the current or last fit, a dictionary for each."""
        return [
            {
                "scheduler": config.scheduler,
                "name": config.name,
                "interval": config.interval,
                "frequency": config.frequency,
                "monitor": config.monitor,
                "strict": config.strict,
                "reduce_on_plateau": isinstance(config.scheduler, ReduceLROnPlateau),
            }
            for config in self.lr_scheduler_configs
        ]

    @property
    def progress_bar_dict(self) -> dict[str, Any]:
        """`progress_bar_metrics`, as a dictionary of its own."""
        return dict(self.progress_bar_metrics)

    tqdm_metrics = progress_bar_dict

    @property
    def early_stop_callback(self) -> Any:
        """`early_stopping_callback`."""
        return self.early_stopping_callback

    @property
    def row_log_interval(self) -> int:
        """`log_every_n_steps`."""
        return self.log_every_n_steps

    add_log_row_interval = add_row_log_interval = row_log_interval

    @property
    def experiment(self) -> Any:
        """The `experiment` of the first logger, or the logger itself if it has none; None without a logger."""
        logger = self.logger
        return getattr(logger, "experiment", logger)

    @property
    def weights_summary(self) -> str | None:
        """ "top", "full", or None if no summary is shown."""
        summary = next((one for one in self.callbacks if isinstance(one, ModelSummary)), None)
        if summary is None or summary.max_depth == 0:
            return None
        return "full" if summary.max_depth in (-1, math.inf) else "top"

    @property
    def resume_from_checkpoint(self) -> Any:
        """What every fit resumes from, if it was passed to the constructor."""
        return self._earlier.ckpt_path

    @property
    def weights_save_path(self) -> str:
        """Where the first checkpoint callback saves, if that was chosen; else the default directory."""
        callback = self.checkpoint_callback
        return str((callback and callback.dirpath) or self.default_root_dir)

    @property
    def default_save_path(self) -> str:
        """`default_root_dir`."""
        return self.default_root_dir

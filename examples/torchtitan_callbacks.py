"""Callbacks and loggers of camshaft in torchtitan, of which nothing is changed: `CallbackTrainer` is its trainer.

A run is one epoch. Callbacks monitor what torchtitan logs, are told no batch and no module, and cannot resume it."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch.distributed import all_gather_object, checkpoint, get_rank, get_world_size
from torchtitan.trainer import Trainer

from camshaft.hooks_core import StrategyDefaults, resolve
from custom_trainer_state import TrainerState


class State(TrainerState, StrategyDefaults):  # type: ignore[misc]  # both save, and callbacks let the trainer do so
    def all_gather(self, value: Any) -> list[Any]:
        all_gather_object(values := [None] * self.world_size, value)
        return values

    def _write(self, path: str, weights_only: bool, on_saved: Any) -> None:
        titan = self.module
        weights = {name: value for part in titan.model_parts for name, value in part.state_dict().items()}
        others = {"optimizer": titan.optimizers, "lr_scheduler": titan.lr_schedulers, "train_state": titan}
        checkpoint.save(weights if weights_only else {**weights, **others}, checkpoint_id=path)  # type: ignore[attr-defined]
        (on_saved or (lambda: None))()


class CallbackTrainer(Trainer):
    def __init__(self, config: Trainer.Config, callbacks: Any = (), loggers: Any = ()) -> None:
        super().__init__(config)
        known: Any = State([*callbacks], 1, [*loggers], config.dump_folder, 1, config.metrics.log_freq)
        known.global_rank, known.local_rank, known.world_size = get_rank(), self.device.index or 0, get_world_size()
        known.strategy, known.device, known.is_global_zero = known, self.device, known.global_rank == 0
        self.known, known.module, known.optimizers = known, self, [*self.optimizers]
        calls = dict.fromkeys(("after_save_checkpoint", "finalize", "log_metrics", "save"), lambda *_, **__: None)
        silent = SimpleNamespace(**calls, log_dir=known.broadcast(None if known.global_rank else known.log_dir))
        known.loggers = [silent] * len(loggers) if known.global_rank else known.loggers
        schedulers = [SimpleNamespace(scheduler=one, name=None, interval="step") for one in self.lr_schedulers]
        known.lr_scheduler_configs, self.hooks = schedulers, resolve(callbacks=known.callbacks, trainer=known)
        self.metrics_processor.logger.log = partial(self.log, self.metrics_processor.logger.log)
        if config.validator.enable:
            known.num_val_batches, known.check_val_every_n_epoch = [float("inf")], None
            self.validator.validate = partial(self.validate, self.validator.validate)

    def log(self, log: Any, metrics: dict[str, Any], step: int) -> None:
        log(metrics, step)
        self.known.callback_metrics |= {name: torch.tensor(float(value)) for name, value in metrics.items()}

    def validate(self, validate: Any, *arguments: Any) -> None:
        before = self.hooks.on_validation_start, self.hooks.on_validation_epoch_start, partial(validate, *arguments)
        for step in (*before, self.hooks.on_validation_epoch_end, self.hooks.on_validation_end):
            step()

    def train(self) -> None:
        hooks, known = self.hooks, self.known
        try:
            before = partial(hooks.setup, "fit"), hooks.on_fit_start, hooks.on_train_start, hooks.on_train_epoch_start
            after = hooks.on_train_epoch_end, hooks.on_train_end, known.save_point, hooks.on_fit_end
            for step in (*before, super().train, *after, *(partial(one.finalize, "success") for one in known.loggers)):
                step()
        except BaseException as error:
            hooks.on_exception(error)
            raise
        finally:
            hooks.teardown("fit")

    def train_step(self, data_iterator: Any) -> None:
        if self.known.global_step != self.step - 1:
            raise RuntimeError(f"`step` must begin at 1, but got {self.step} in CallbackTrainer. Train from the start.")
        self.hooks.on_train_batch_start(None, self.step - 1)
        super().train_step(data_iterator)
        self.known.global_step = self.step
        self.hooks.on_train_batch_end(None, None, self.step - 1)

    def should_continue_training(self) -> bool:
        self.known.save_point()  # after the validation, if there was one
        return super().should_continue_training() and not self.known.should_stop

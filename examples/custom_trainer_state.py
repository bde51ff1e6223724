"""What callbacks know of the loop `fit_torch`: all that `camshaft.hooks_core.protocols.TrainerProtocol` asks for."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from camshaft.hooks_core import Hooks, StrategyDefaults
from camshaft.hooks_core.protocols import Logger, TrainerProtocol


class OneProcess(StrategyDefaults):
    """Where the loop computes, as far as callbacks ask for it."""

    device = torch.device("cpu")
    global_rank = local_rank = 0
    world_size = 1


@dataclass(eq=False)
class TrainerState:
    """Where training is, what callbacks ask for, and what the loop keeps for them.

    Args:
        callbacks: The callbacks, in the order in which they run.
        max_epochs: How many epochs to train.
        loggers: Where metrics go.
        default_root_dir: Where files go by default.
        accumulate_grad_batches: Batches whose gradients make one update.
        log_every_n_steps: Updates between two losses that the loggers get; 0 for none.
    """

    callbacks: list[Any] = field(default_factory=list)
    max_epochs: int | None = 1
    loggers: list[Any] = field(default_factory=list)
    default_root_dir: str = "."
    accumulate_grad_batches: int = 1
    log_every_n_steps: int = 50
    strategy: Any = field(default_factory=OneProcess)

    module: Any = None
    hooks: Hooks | None = None
    train_dataloader: Any = None
    optimizers: list[Any] = field(default_factory=list)
    lr_scheduler_configs: list[Any] = field(default_factory=list)
    current_epoch: int = 0
    global_step: int = 0
    should_stop: bool = False
    is_preempted: bool = False
    is_last_batch: bool = False
    window_length: int | float = 1
    ends_window: bool = True
    holds_gradients: bool = False
    callback_metrics: dict[str, torch.Tensor] = field(default_factory=dict)
    logged_metrics: dict[str, Any] = field(default_factory=dict)
    requested: list[Callable[[], None]] = field(default_factory=list)
    is_at_save_point: bool = False

    # what this loop has none of
    sanity_checking = False
    fast_dev_run = False
    is_global_zero = True
    val_check_interval = 1.0
    check_val_every_n_epoch = 1

    def __post_init__(self) -> None:
        nothing: list[int | float] = []
        self.num_val_batches = self.num_sanity_val_batches = nothing
        self.num_test_batches = self.num_predict_batches = nothing

    @property
    def goes_on(self) -> bool:
        """Whether another epoch is to begin."""
        return not self.should_stop and (self.max_epochs is None or self.current_epoch < self.max_epochs)

    @property
    def num_training_batches(self) -> int | float:
        return len(self.train_dataloader) if hasattr(self.train_dataloader, "__len__") else float("inf")

    @property
    def logger(self) -> Logger | None:
        return self.loggers[0] if self.loggers else None

    @property
    def log_dir(self) -> str:
        return getattr(self.logger, "log_dir", None) or self.default_root_dir

    @property
    def progress_bar_metrics(self) -> dict[str, float | int | str]:
        return {name: float(value) for name, value in self.callback_metrics.items()}

    def start(self, module: Any, batches: Any, hooks: Hooks) -> None:
        """Take in what is trained, before `configure_optimizers`."""
        self.module, self.train_dataloader, self.hooks = module, batches, hooks

    def take_optimizers(self, configured: Any) -> Any:
        """Keep what `configure_optimizers` returned: an optimizer, or a dictionary with a scheduler beside it."""
        parts = configured if isinstance(configured, dict) else {"optimizer": configured}
        self.optimizers = [parts["optimizer"]]
        if "lr_scheduler" in parts:
            config = {"name": None, "interval": "epoch", "scheduler": parts["lr_scheduler"]}
            config |= parts["lr_scheduler"] if isinstance(parts["lr_scheduler"], dict) else {}
            self.lr_scheduler_configs = [SimpleNamespace(**config)]
        return parts["optimizer"]

    def start_batch(self, batch_idx: int) -> None:
        """Find out where a batch is in its accumulation window."""
        length, num_batches = self.accumulate_grad_batches, self.num_training_batches
        if batch_idx == 0:
            self.holds_gradients = False
        self.is_last_batch = batch_idx + 1 == num_batches
        position = batch_idx % length
        self.ends_window = position + 1 == length or self.is_last_batch
        self.window_length = min(length, num_batches - batch_idx + position)

    def count_update(self) -> None:
        """Count an update, and step the schedulers that go by updates."""
        self.holds_gradients = False
        self.global_step += 1
        self._step_schedulers("step")

    def note_loss(self, loss: torch.Tensor | None) -> None:
        """Let callbacks see a loss, and log it now and then."""
        if loss is None:
            return
        self.callback_metrics["loss"] = loss
        if self.loggers and self.log_every_n_steps and self.global_step % self.log_every_n_steps == 0:
            self.logged_metrics = {"loss": float(loss)}
            for logger in self.loggers:
                logger.log_metrics(self.logged_metrics, step=max(self.global_step - 1, 0))

    def end_epoch(self) -> None:
        """Step the schedulers that go by epochs, and count."""
        self._step_schedulers("epoch")
        self.current_epoch += 1
        self.save_point()

    def save_checkpoint(
        self, path: str, weights_only: bool = False, on_saved: Callable[[], None] | None = None
    ) -> None:
        """Ask for a checkpoint at the next save point; at once if that is where we are."""
        write = partial(self._write, path, weights_only, on_saved)
        if self.is_at_save_point:
            write()
        else:
            self.requested.append(write)

    def after_batch(self, function: Callable[[], None]) -> None:
        """Call a function when the batch and its validation are over: at once, since this loop does not validate."""
        function()

    def at_save_point(self, function: Callable[[], None]) -> None:
        """Call a function at the next save point, where what it saves is written at once."""
        self.requested.append(function)

    def preempt(self, path: str) -> None:
        """Ask for a checkpoint, and for an end of training."""
        self.save_checkpoint(path)
        self.should_stop = self.is_preempted = True

    @contextmanager
    def trial(self, *, reload: bool = False) -> Iterator[Iterable[Any]]:
        """Lend the batches to a callback that trains by itself, and put random numbers and modes back."""
        if reload or iter(self.train_dataloader) is self.train_dataloader:
            raise ValueError(f"this loop has one loader, {self.train_dataloader!r}: it cannot ask for it anew")
        modes = [(part, part.training) for part in self.module.modules()]
        numbers = random.getstate(), np.random.get_state(), torch.get_rng_state()
        try:
            yield self.train_dataloader
        finally:
            random.setstate(numbers[0])
            np.random.set_state(numbers[1])
            torch.set_rng_state(numbers[2])
            for part, training in modes:
                part.training = training

    def save_point(self) -> None:
        """Write the checkpoints that were asked for; the loop comes here when no step is half done."""
        self.is_at_save_point = True
        try:
            while self.requested:
                self.requested.pop(0)()
        finally:
            self.is_at_save_point = False

    def _write(self, path: str, weights_only: bool, on_saved: Callable[[], None] | None) -> None:
        checkpoint: dict[str, Any] = {"state_dict": self.module.state_dict(), "global_step": self.global_step}
        checkpoint["epoch"] = self.current_epoch
        if not weights_only:
            checkpoint["optimizer_states"] = [optimizer.state_dict() for optimizer in self.optimizers]
            checkpoint["callbacks"] = {callback.state_key: callback.state_dict() for callback in self.callbacks}
        if self.hooks is not None:
            self.hooks.on_save_checkpoint(checkpoint)
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        torch.save(checkpoint, f"{path}.part")
        os.replace(f"{path}.part", path)
        if on_saved is not None:
            on_saved()

    def _step_schedulers(self, interval: str) -> None:
        for config in self.lr_scheduler_configs:
            if config.interval == interval:
                config.scheduler.step()


_: TrainerProtocol = TrainerState()  # type checkers prove it

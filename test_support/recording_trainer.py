"""A trainer without a loop: tests set its counters, call hooks, and say when a save point comes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from attrs import define, field

from camshaft.hooks_core import Callback, StrategyDefaults
from camshaft.hooks_core.protocols import Logger


class OneProcess(StrategyDefaults):
    """A strategy as far as callbacks ask for it."""

    global_rank = local_rank = 0
    world_size = 1


@define(eq=False)
class RecordingTrainer:
    """Carries out requested saves at `save_point`: real files that hold the callbacks' state."""

    default_root_dir: str
    callbacks: list[Any] = field(factory=list)
    should_stop: bool = False
    current_epoch: int = 0
    global_step: int = 0
    max_epochs: int | None = 3
    sanity_checking: bool = False
    fast_dev_run: bool | int = False
    is_global_zero: bool = True
    is_last_batch: bool = False
    log_dir: str | None = None
    logger: Logger | None = None
    loggers: list[Any] = field(factory=list)
    callback_metrics: dict[str, torch.Tensor] = field(factory=dict)
    logged_metrics: dict[str, Any] = field(factory=dict)
    progress_bar_metrics: dict[str, float | int | str] = field(factory=dict)
    num_training_batches: int | float = 10
    num_val_batches: list[int | float] = field(factory=lambda: [2])
    num_sanity_val_batches: list[int | float] = field(factory=lambda: [1])
    num_test_batches: list[int | float] = field(factory=lambda: [3])
    num_predict_batches: list[int | float] = field(factory=lambda: [4])
    val_check_interval: int | float = 1.0
    check_val_every_n_epoch: int | None = 1
    accumulate_grad_batches: int = 1
    optimizers: list[Any] = field(factory=list)
    lr_scheduler_configs: list[Any] = field(factory=list)
    log_every_n_steps: int = 1
    train_dataloader: Any = None
    strategy: Any = field(factory=OneProcess)
    requested: list[tuple[str, bool, Callable[[], None] | None]] = field(factory=list)
    saved: list[tuple[str, bool]] = field(factory=list)
    is_preempted: bool = False
    after_batch_functions: list[Callable[[], None]] = field(factory=list)
    save_point_functions: list[Callable[[], None]] = field(factory=list)
    writes_at_once: bool = False
    ckpt_path: str | None = None

    def save_checkpoint(
        self, path: str, weights_only: bool = False, on_saved: Callable[[], None] | None = None
    ) -> None:
        self.requested.append((path, weights_only, on_saved))
        if self.writes_at_once:
            self.write_requested()

    def after_batch(self, function: Callable[[], None]) -> None:
        self.after_batch_functions.append(function)

    def at_save_point(self, function: Callable[[], None]) -> None:
        self.save_point_functions.append(function)

    def end_batch(self) -> None:
        """What waited for the batch and its validation."""
        while self.after_batch_functions:
            self.after_batch_functions.pop(0)()

    def save_point(self, order: Iterable[int] | None = None) -> None:
        """Write every requested checkpoint, then report them durable, in `order` of the requests."""
        self.end_batch()
        self.writes_at_once = True
        while self.save_point_functions:
            self.save_point_functions.pop(0)()
        self.writes_at_once = False
        self.write_requested(order)

    def write_requested(self, order: Iterable[int] | None = None) -> None:
        requested, self.requested = self.requested, []
        for path, weights_only, _ in requested:
            if self.is_global_zero:
                self.write(path)
            self.saved.append((path, weights_only))
        for idx in order if order is not None else range(len(requested)):
            on_saved = requested[idx][2]
            if on_saved is not None:
                on_saved()

    def write(self, path: str) -> None:
        state = {one.state_key: one.state_dict() for one in self.callbacks if isinstance(one, Callback)}
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        torch.save({"callbacks": state, "global_step": self.global_step}, f"{path}.part")
        os.replace(f"{path}.part", path)

    def begin(self, stage: str = "fit") -> None:
        for callback in self.callbacks:
            callback.setup(self, None, stage)

    def end(self, stage: str = "fit") -> None:
        for callback in self.callbacks:
            callback.teardown(self, None, stage)

    def train_batch(self, batch_idx: int = 0, is_update: bool = True) -> None:
        self.end_batch()
        self.global_step += is_update
        for callback in self.callbacks:
            callback.on_train_batch_end(self, None, None, None, batch_idx)

    def validate(self, **metrics: float) -> None:
        self.log(**metrics)
        for callback in self.callbacks:
            callback.on_validation_end(self, None)
        self.end_batch()

    def end_epoch(self, **metrics: float) -> None:
        self.end_batch()
        self.log(**metrics)
        for callback in self.callbacks:
            callback.on_train_epoch_end(self, None)
        self.save_point()
        self.current_epoch += 1

    def log(self, **metrics: float) -> None:
        self.callback_metrics.update({name: torch.tensor(value) for name, value in metrics.items()})


def load_callback_state(path: str | Path, callback: Callback) -> dict[str, Any]:
    """What a checkpoint holds for a callback, read as safely as the project reads it."""
    state: dict[str, Any] = torch.load(path, weights_only=True)["callbacks"][callback.state_key]
    return state


def run_fit(bar: Any, num_batches: int = 6, **state: Any) -> RecordingTrainer:
    """Call the hooks of a progress bar: a sanity check, an epoch, a validation at its end, and a test."""
    trainer = RecordingTrainer(".", callbacks=[bar], num_training_batches=num_batches, num_val_batches=[2, 1], **state)
    trainer.begin()
    trainer.sanity_checking = True
    bar.on_validation_start(trainer, None)
    bar.on_validation_batch_end(trainer, None, None, None, 0)
    bar.on_validation_end(trainer, None)
    trainer.sanity_checking = False
    bar.on_train_start(trainer, None)
    bar.on_train_epoch_start(trainer, None)
    for batch_idx in range(num_batches):
        trainer.progress_bar_metrics["loss"] = 0.25
        bar.on_train_batch_end(trainer, None, None, None, batch_idx)
    bar.on_validation_start(trainer, None)
    for batch_idx, dataloader_idx in ((0, 0), (1, 0), (0, 1)):
        bar.on_validation_batch_end(trainer, None, None, None, batch_idx, dataloader_idx)
    bar.on_validation_end(trainer, None)
    bar.on_train_epoch_end(trainer, None)
    bar.on_train_end(trainer, None)
    trainer.end()
    bar.setup(trainer, None, "test")
    bar.on_test_start(trainer, None)
    for batch_idx in range(3):
        bar.on_test_batch_end(trainer, None, None, None, batch_idx)
    bar.on_test_end(trainer, None)
    return trainer

"""What one recorded run does, as data that both frameworks understand."""

from __future__ import annotations

from typing import Any, Literal

import attrs

VERBS = ("fit", "validate", "test", "predict")


@attrs.frozen(kw_only=True)
class Scheduling:
    """A learning-rate scheduler: `monitor` makes it a ReduceLROnPlateau, else it decays exponentially."""

    interval: Literal["epoch", "step"] = "epoch"
    frequency: int = 1
    monitor: str | None = None


@attrs.frozen(kw_only=True)
class Configuration:
    """Everything that a run depends on; the names that trainers share mean what they mean there.

    Args:
        verbs: What runs, one after the other, on the same trainer and module.
        num_batches: Length of the training loader.
        num_eval_batches: Length of each validation, test and prediction loader; empty for none.
        is_ragged: Whether every loader's last batch is smaller than the others.
        is_stream: Whether training data comes from an iterable dataset, whose length nobody knows.
        loaders_from: Who provides the loaders.
        trainer: Further arguments of both trainers; `max_epochs` is 2 if it is not among them.
        optimizer: Which optimizer; with `is_manual` there are two of it. "own" and "sam" are not torch's classes, and
            evaluate a closure once and twice; "duck" is no `Optimizer` at all; "none" stands for none.
        scheduling: The learning-rate scheduler, if any.
        is_manual: Whether `training_step` optimizes by itself.
        gives_closures: Whether `training_step` hands each optimizer's step a closure; with `is_manual` alone.
        returns: What `training_step` returns.
        no_loss_at: Batches of each epoch for which `training_step` returns None.
        overrides: The defaults of the module that are overridden, each by a call of `super()`.
        skips_from: `on_train_batch_start` of the module returns -1 at this batch of each epoch.
        callback_skips: Whether it is a callback that returns -1 instead.
        stops_at: A callback sets `should_stop` at the end of this (epoch, batch).
        stops_in: A callback sets `should_stop` in this hook, which comes before the first batch.
        raises_in: A callback raises in this hook, the first time after the sanity check.
        checkpoints: Arguments of the stock ModelCheckpoint; None for none.
        resumes_to: After the verbs, a new module resumes from the last checkpoint and trains up to this epoch.
        early_stopping: Arguments of the stock EarlyStopping; None for none.
        monitoring_first: Whether the monitoring callback is passed before the others.
        signatures: How evaluation steps and batch hooks take arguments: by name, by `*args`, by `*args, **kwargs`
            behind the first one, or by those of a decorator that names what it wraps.
        optimizers_as: The form in which `configure_optimizers` returns optimizer and scheduler.
        steps_schedulers: When a module that optimizes by itself steps its schedulers; with `is_manual` alone.
        logs_again: Whether `on_train_epoch_end` and `on_validation_epoch_end` log names that a step has logged.
        callback_logs: Whether a callback logs in its own name.
        batches: What batches are: lists, or dictionaries that refuse changes, as those of Hugging Face do.
        loaders: What loaders are: torch's, or iterables: "own" ones are their own iterators and raise behind their end,
            "drawing" ones draw their order when they are begun.
        continues_to: After the verbs, `fit_loop.max_epochs` is set to this and `fit` called once more.
        samplers_know_epoch: Whether loaders have a sampler with `set_epoch`, whose calls are recorded.
        has_generators: Whether torch's loaders shuffle, those of evaluation too, by a generator of their own each.
        draws_at_start: Whether losses are scaled by a random number that `on_train_start` draws.
    """

    verbs: tuple[str, ...] = ("fit",)
    num_batches: int = 3
    num_eval_batches: tuple[int, ...] = (2,)
    is_ragged: bool = False
    is_stream: bool = False
    loaders_from: Literal["arguments", "module", "data"] = "arguments"
    trainer: dict[str, Any] = attrs.field(factory=dict)
    optimizer: str = "sgd"
    scheduling: Scheduling | None = None
    is_manual: bool = False
    gives_closures: bool = False
    returns: Literal["tensor", "dict"] = "tensor"
    no_loss_at: frozenset[int] = attrs.field(default=frozenset(), converter=frozenset)
    overrides: frozenset[str] = attrs.field(default=frozenset(), converter=frozenset)
    skips_from: int | None = None
    callback_skips: bool = False
    stops_at: tuple[int, int] | None = None
    stops_in: str | None = None
    raises_in: str | None = None
    checkpoints: dict[str, Any] | None = None
    resumes_to: int | None = None
    early_stopping: dict[str, Any] | None = None
    monitoring_first: bool = False
    signatures: Literal["named", "args", "rest", "decorated"] = "named"
    optimizers_as: Literal["nested", "flat", "lists", "tuple"] = "nested"
    steps_schedulers: Literal["never", "batch", "epoch"] = "never"
    logs_again: bool = False
    callback_logs: bool = False
    batches: Literal["list", "guarded"] = "list"
    loaders: Literal["torch", "own", "drawing"] = "torch"
    continues_to: int | None = None
    samplers_know_epoch: bool = False
    dropout: float = 0.25
    shuffle: bool = True
    has_generators: bool = False
    draws_at_start: bool = False

    @property
    def window(self) -> int:
        """Batches of an accumulation window."""
        return int(self.trainer.get("accumulate_grad_batches", 1))

    @property
    def num_epoch_batches(self) -> int:
        """Batches of an epoch that nothing cuts short."""
        limit = self.trainer.get("overfit_batches") or self.trainer.get("limit_train_batches", 1.0)
        return min(self.num_batches, limit if isinstance(limit, int) else int(self.num_batches * limit))

    @property
    def num_trained_batches(self) -> int:
        """Batches of an epoch that `training_step` gets."""
        return self.num_epoch_batches if self.skips_from is None else min(self.skips_from, self.num_epoch_batches)

    @property
    def short_window(self) -> int:
        """Length of an epoch's last accumulation window if it is shorter than the others, else 0."""
        return self.num_epoch_batches % self.window

    def real_window(self, batch_idx: int) -> int:
        """Length of the accumulation window that a batch belongs to."""
        start = batch_idx - batch_idx % self.window
        return min(self.window, self.num_epoch_batches - start)

    @property
    def may_end_early(self) -> bool:
        """Whether something can end fit inside an epoch."""
        stops = self.stops_at is not None or self.stops_in is not None
        return stops or self.trainer.get("max_steps", -1) != -1

    @property
    def loads_again(self) -> bool:
        """Whether loaders are asked for after the first epoch has begun."""
        return self.continues_to is not None or bool(self.trainer.get("reload_dataloaders_every_n_epochs"))

    @property
    def is_random(self) -> bool:
        """Whether anything draws random numbers."""
        return self.shuffle or self.samplers_know_epoch or self.dropout > 0 or self.loaders == "drawing"

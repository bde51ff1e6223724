"""What the packages expect of each other; whoever satisfies a protocol can take a part's place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from torch.optim import Optimizer

Moment = Literal["batch", "epoch"]
"""Where a value that a module logs belongs by default: to the step, or to the epoch."""


class Strategy(Protocol):
    """Where and how a model computes. It receives hooks and never emits them.

    Attributes:
        device: Where this process computes.
        global_rank: Index of this process among all.
        local_rank: Index of this process on its machine.
        world_size: Number of processes.
    """

    device: torch.device
    global_rank: int
    local_rank: int
    world_size: int

    def setup_module(self, module: nn.Module) -> nn.Module:
        """Move a module to its device, in place, and prepare what is to surround its steps. Collective.

        Called once per run, after the module is configured and its weights are loaded, before its optimizers are built.

        Returns:
            What computes, for whoever sets a module up by hand. The loops do not use it: they go on with the module
            that they passed, and reach whatever is around it through the steps that `wrap_step` returned.
        """

    def setup_optimizers(self, optimizers: Sequence[Optimizer]) -> list[Optimizer]:
        """Prepare optimizers that were built on the module after `setup_module`. Collective. Called once per fit.

        Returns:
            As many optimizers in the same order. The loops use these from then on, and need of each what torch's
            `Optimizer` has: `param_groups`, `zero_grad`, `state_dict` and `load_state_dict`, the step hooks
            (`register_step_pre_hook` and `register_step_post_hook`), by which they learn of updates, and `step` with
            the signature of the original, which tells whether it evaluates the loss by a closure itself. Where prepared
            ones lack any of it, return the originals and step the prepared ones in `optimizer_step`.
        """

    def batch_to_device(self, batch: Any) -> Any:
        """Move a batch to `device`. Returns the batch on the device, in the same structure.

        Not called where `device` is a CPU and nobody implements a transfer hook, nor where somebody implements
        `transfer_batch_to_device`.
        """

    def wrap_step(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Let a step run in this strategy's context, such as autocast or a wrapped forward.

        Called once for each step of the module (`training_step`, `validation_step`, `test_step`, `predict_step`) when a
        run resolves its hooks. That is before `setup_module`: what that makes is to be looked up when a step is called.
        Prediction with a module that has no `predict_step` wraps a call of the module likewise, when it begins.

        Args:
            step: The step; it is called with positional and keyword arguments, as its signature asks for them.

        Returns:
            What is called in its place, with the same arguments, and returns what it returns.
        """

    def backward(self, loss: Tensor) -> None:
        """Differentiate a scalar loss. Collective if gradients are reduced."""

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        """Update the weights; the closure, if any, computes the loss with its gradients first. Collective."""

    def clip_gradients(self, optimizer: Optimizer, clip_val: float, algorithm: str) -> None:
        """Clip an optimizer's gradients to a norm ("norm") or to an absolute value ("value"). Collective."""

    def save_checkpoint(self, checkpoint: Mapping[str, Any], path: str) -> None:
        """Write a checkpoint so that it is durable and whole when this returns. Collective."""

    def load_checkpoint(self, path: str) -> dict[str, Any]:
        """Read a checkpoint, tensors on the CPU. Collective."""

    def teardown(self) -> None:
        """Let go of what was set up. Collective."""


class Logger(Protocol):
    """Where metrics and hyperparameters are written.

    Attributes:
        name: Name of the experiment.
        version: Name or number of the run.
        save_dir: Directory that holds all experiments; None if nothing is written to disk.
        log_dir: Directory of this run; None if nothing is written to disk.
    """

    @property
    def name(self) -> str | None: ...

    @property
    def version(self) -> int | str | None: ...

    @property
    def save_dir(self) -> str | None: ...

    @property
    def log_dir(self) -> str | None: ...

    @property
    def experiment(self) -> Any:
        """The underlying library's own object."""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Write values for a step, counted in optimizer updates."""

    def log_hyperparams(self, params: Mapping[str, Any]) -> None:
        """Write hyperparameters, once per run."""

    def save(self) -> None:
        """Write what is still held back."""

    def finalize(self, status: str) -> None:
        """Close; `status` is "success" or "failed"."""


class MetricSink(Protocol):
    """What loops tell whoever collects logged values. Attributes are set on the per-step path, so they stay plain.

    Attributes:
        moment: What a value logged now belongs to by default, or None where logging makes no sense.
        batch: The batch that is worked on; epoch means weigh values by its size.
        dataloader_idx: Index of the loader that is worked on.
        callback_metrics: Every value by name, those of the running epoch reduced so far; schedulers monitor them.
    """

    moment: Moment | None
    batch: Any
    dataloader_idx: int

    @property
    def callback_metrics(self) -> Mapping[str, Tensor]: ...

    def start_epoch(self, stage: str, num_dataloaders: int = 1, *, is_trial: bool = False) -> None:
        """Forget the stage's earlier values and collect for its new epoch; the moment becomes "epoch".

        Nothing of a trial, such as the sanity check, may reach loggers: `discard` ends it in place of `end_epoch`.
        """

    def enter(self, stage: str, moment: Moment | None) -> None:
        """Go on collecting for a stage, after another one ran within it."""

    def end_train_batch(self, is_update: bool) -> None:
        """Publish what the batch, or a split of it, logged; `is_update` says whether it ended with an update."""

    def end_epoch(self) -> list[dict[str, float]]:
        """Reduce and publish the values of the stage's epoch. Collective. Returns them per loader, as numbers."""

    def discard(self) -> None:
        """Forget the values of the stage's epoch unpublished: a trial leaves no trace."""

    def state_dict(self) -> dict[str, Any]:
        """What was published, and the values of the training epoch that runs: tensors and plain values only.

        Changes nothing. Taken between two batches, or between epochs; later values do not change it.
        """

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on as if the run from which the state was taken had not stopped.

        Called after `start_epoch("train")`; what was logged since then is forgotten.
        """


@runtime_checkable
class TrainerProtocol(Protocol):
    """What a callback may rely on of the trainer that it is handed.

    Attributes:
        callbacks: All callbacks, in the order in which they run.
        current_epoch: Index of the training epoch.
        global_step: Number of optimizer updates so far, whatever the number of optimizers.
        max_epochs: The limit, or None.
        should_stop: Set it to true to stop at the next opportunity.
        sanity_checking: Whether the sanity check is running.
        fast_dev_run: Whether (or how many batches) the run is only a trial.
        is_global_zero: Whether this process is the one that writes.
        is_last_batch: Whether the training batch is known to be its epoch's last.
        default_root_dir: Where files go by default.
        log_dir: Directory of the first logger's run, or `default_root_dir`.
        logger: The first logger, or None.
        loggers: All loggers.
        callback_metrics: Every logged value by name, as tensors.
        logged_metrics: What was sent to the loggers.
        progress_bar_metrics: What a progress bar shows, as numbers; reading it may wait for the device.
        num_training_batches: Batches of a training epoch; infinite if unknown.
        num_val_batches: Batches of each validation loader; likewise the three others.
        val_check_interval: How often validation runs within an epoch.
        check_val_every_n_epoch: In which epochs it runs.
    """

    callbacks: list[Any]
    should_stop: bool

    @property
    def current_epoch(self) -> int: ...

    @property
    def global_step(self) -> int: ...

    @property
    def max_epochs(self) -> int | None: ...

    @property
    def sanity_checking(self) -> bool: ...

    @property
    def fast_dev_run(self) -> bool | int: ...

    @property
    def is_global_zero(self) -> bool: ...

    @property
    def is_last_batch(self) -> bool: ...

    @property
    def default_root_dir(self) -> str: ...

    @property
    def log_dir(self) -> str | None: ...

    @property
    def logger(self) -> Logger | None: ...

    @property
    def loggers(self) -> list[Any]: ...

    @property
    def callback_metrics(self) -> Mapping[str, Tensor]: ...

    @property
    def logged_metrics(self) -> Mapping[str, Any]: ...

    @property
    def progress_bar_metrics(self) -> Mapping[str, float | int | str]: ...

    @property
    def num_training_batches(self) -> int | float: ...

    @property
    def num_val_batches(self) -> list[int | float]: ...

    @property
    def num_sanity_val_batches(self) -> list[int | float]: ...

    @property
    def num_test_batches(self) -> list[int | float]: ...

    @property
    def num_predict_batches(self) -> list[int | float]: ...

    @property
    def val_check_interval(self) -> int | float: ...

    @property
    def check_val_every_n_epoch(self) -> int | None: ...

    def save_checkpoint(
        self, path: str, weights_only: bool = False, on_saved: Callable[[], None] | None = None
    ) -> None:
        """Save: at once outside of a run; inside, at the next save point, after which `on_saved` is called."""

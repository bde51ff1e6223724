"""Protocols between the packages; whatever satisfies one can take a part's place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from torch.optim import Optimizer

__all__ = [
    "Collectives",
    "Logger",
    "MetricSink",
    "Moment",
    "PendingSave",
    "ReduceOp",
    "Strategy",
    "TrainerProtocol",
]

T = TypeVar("T")

ReduceOp = Literal["mean", "sum", "max", "min"]
"""How the values of all processes become one."""


class PendingSave(Protocol):
    """A checkpoint that is still being written while training goes on."""

    def wait(self) -> None:
        """Return when it is durable and whole. Collective. Raises what its writing raised, on every process."""


class Collectives(Protocol):
    """What the processes of a run tell each other. Every process must call the same ones in the same order."""

    def broadcast(self, value: T, src: int = 0) -> T:
        """The value of the process `src` on every process. Collective. It is anything that can be pickled."""

    def all_gather(self, value: T) -> list[T]:
        """The values of all processes, in their order. Collective. They are anything that can be pickled."""

    def reduce(self, tensor: Tensor, op: ReduceOp = "mean") -> Tensor:
        """A tensor of all processes' tensors, element by element; the argument stays as it is. Collective."""

    def barrier(self) -> None:
        """Return when every process is here. Collective."""


class Strategy(Collectives, Protocol):
    """Where and how a model computes. It receives hooks and never emits them.

    `camshaft.hooks_core.StrategyDefaults` has what a strategy need not define itself.

    Attributes:
        device: Where this process computes.
        global_rank: Index of this process among all.
        local_rank: Index of this process on its machine.
        world_size: Number of processes.
        has_skipped_step: Whether the latest `optimizer_step` left the weights as they were, as a gradient scaler does
            after an overflow.
    """

    device: torch.device
    global_rank: int
    local_rank: int
    world_size: int
    has_skipped_step: bool

    @property
    def data_rank(self) -> int:
        """Index of this process among those that share the data out; ranks of one model replica have the same."""

    @property
    def num_data_ranks(self) -> int:
        """Among how many the data is shared out."""

    def connect(self) -> None:
        """Join the other processes; once that is done, do nothing. Collective.

        Called when a run begins, before anything else of the strategy but its attributes.
        """

    def model_context(self, module: nn.Module) -> AbstractContextManager[None]:
        """What surrounds the hooks that build the model (`configure_sharded_model`, `configure_model`). Collective."""

    def setup_module(self, module: nn.Module) -> nn.Module:
        """Move a module to its device, in place, and prepare what is to surround its steps. Collective.

        Called once per run, after the module is configured, before its weights are loaded and its optimizers are built.

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

    def idle_step(self) -> None:
        """Take part in what other processes do together in a step of evaluation, without a batch of one's own.

        Called once for each batch that another process evaluates after this one has had its last. Collective among
        those that have none left and those that do, whose step it answers.
        """

    def set_gradient_sync(self, is_on: bool) -> None:
        """Say whether the steps that follow end with the same gradients on all processes; at first they do.

        Called before each step of an accumulation window of several: true at its last one.
        """

    def backward(self, loss: Tensor, differentiate: Callable[[Tensor], Any] | None = None) -> None:
        """Differentiate a scalar loss, by `loss.backward()` or by what the module overrides that with.

        Either gets the loss as it is to be differentiated, scaled if need be. Collective if gradients are reduced.
        """

    def unscale_gradients(self, optimizer: Optimizer) -> None:
        """Give an optimizer's gradients their true size, where `backward` scaled them; once per update. Collective.

        Called before `on_before_optimizer_step` and clipping; `optimizer_step` does it itself where nobody did, and a
        second call changes nothing.
        """

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        """Update the weights; the closure, if any, computes the loss with its gradients first. Collective."""

    def clip_gradients(self, optimizer: Optimizer, clip_val: float, algorithm: str) -> None:
        """Clip an optimizer's gradients to a norm ("norm") or to an absolute value ("value"). Collective."""

    def load_module_state(self, module: nn.Module, state: Mapping[str, Any]) -> None:
        """Give a module that was set up the weights of a checkpoint, as `load_checkpoint` returned them. Collective.

        A strategy that can do more takes `strict: bool = True` as well. It gets False for a module with
        `strict_loading = False`: names that only one of the two has are no error then.
        """

    def load_optimizer_state(self, optimizer: Optimizer, state: Mapping[str, Any]) -> None:
        """Give an optimizer that was set up the state of one in a checkpoint, likewise. Collective."""

    def place_like(self, value: Tensor, parameter: Tensor) -> Tensor:
        """A new tensor with a value that `load_checkpoint` returned, placed as a parameter of its shape. Collective."""

    def state_dict(self) -> dict[str, Any]:
        """What this strategy itself has learned, such as the scale of losses: plain values, the same on all ranks."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with what a strategy of this kind, or none, had learned; the state of another kind changes nothing."""

    def save_checkpoint(self, checkpoint: Mapping[str, Any], path: str) -> PendingSave | None:
        """Write a checkpoint. Collective; the first process's plain values count, and every one's sharded tensors.

        What fails on one process raises on all of them.

        Returns:
            None if it is durable and whole now; else what waits until it is. Of the checkpoint's tensors nothing is
            needed any more when this returns.
        """

    def load_checkpoint(self, path: str) -> dict[str, Any]:
        """Read a checkpoint, tensors on the CPU. Collective.

        A strategy that can do more takes `weights_only: bool | None = None` as well. It gets False where the user
        trusts the file, so that objects in it may be unpickled.
        """

    def note_failure(self, error: BaseException) -> None:
        """Learn that this process failed, before anybody else does: from now on it joins in nothing collective."""

    def teardown(self) -> None:
        """Let go of what was set up for one run. Not collective: after an error other processes may not come here."""


Moment = Literal["batch", "epoch"]
"""Where a value that a module logs belongs by default: to the step, or to the epoch."""


class Logger(Protocol):
    """Where metrics and hyperparameters are written.

    `log_metrics` is called by keyword, the others by position. A logger may also have `begin_fit(module)`, called when
    a fit begins (one without it: `log_graph(module)`), and `after_save_checkpoint(callback)`, called by a callback that
    saves checkpoints once one is durable, on the first process.

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

    One may have an attribute `hook` as well: then it is told the name of the hook that runs; see `compilation.Place`.

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
        accumulate_grad_batches: Batches whose gradients make one update; what is set at an epoch's start, in
            `on_train_epoch_start`, counts from its first batch on.
        is_preempted: Whether the current or latest fit ends because `preempt` asked all processes to save and leave.
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
        optimizers: The optimizers of the fit.
        lr_scheduler_configs: The schedulers of the fit; each has attributes `scheduler`, `name` (None if the user gave
            none) and `interval` ("epoch" or "step").
        log_every_n_steps: Updates between two entries of step values in the loggers; 0 for none.
        train_dataloader: What training batches come from; None before fit has asked for it.
        strategy: Where the module computes; by its collectives the callbacks of all processes come to one decision.
    """

    callbacks: list[Any]
    should_stop: bool
    accumulate_grad_batches: int

    @property
    def optimizers(self) -> list[Any]: ...

    @property
    def lr_scheduler_configs(self) -> list[Any]: ...

    @property
    def log_every_n_steps(self) -> int: ...

    @property
    def train_dataloader(self) -> Any: ...

    @property
    def strategy(self) -> Strategy: ...

    @property
    def current_epoch(self) -> int: ...

    @property
    def global_step(self) -> int: ...

    @property
    def max_epochs(self) -> int | None: ...

    @property
    def is_preempted(self) -> bool: ...

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

    def after_batch(self, function: Callable[[], None]) -> None:
        """Call a function when the training batch and the validation that it triggers are over; else at once."""

    def at_save_point(self, function: Callable[[], None]) -> None:
        """Call a function at the next save point; what it saves there is written before `save_checkpoint` returns."""

    def preempt(self, path: str) -> None:
        """Save and end training as soon as no step is half done; one of several processes may ask for all of them."""

    def trial(self, *, reload: bool = False) -> AbstractContextManager[Iterable[Any]]:
        """A context for training steps that a callback makes by itself, before training or before an epoch. Collective.

        Inside, what is logged reaches nobody. Afterwards the place in the training data, random numbers of every kind,
        states of metrics, train/eval modes and logged values are as before. Weights, gradients, optimizers and
        schedulers are the callback's to put back.

        Args:
            reload: Whether to ask for the training loader anew. What trains then asks for its loaders again before its
                next epoch.

        Returns:
            A context that gives the training batches, on their device; each pass over them begins anew. `len` tells
            how many there are, where that is known, and their `batch_size` is that of the loader, if it has one.

        Raises:
            RuntimeError: If nothing is being trained, or a batch is.
            ValueError: If the training loader cannot be read without a trace, or not be asked for again.
        """

"""Protocols between the packages; whatever satisfies one can take a part's place. A strategy is checked for that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, runtime_checkable

from camshaft.hooks_core.support.messages import must_be

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from torch.optim import Optimizer

T = TypeVar("T")

ReduceOp = Literal["mean", "sum", "max", "min"]
"""Reduction of the values of all processes to one."""


class PendingSave(Protocol):
    """Checkpoint that is still being written while training goes on."""

    def wait(self) -> None:
        """Return when it is durable and whole. Collective. Raises what its writing raised, on every process."""


class Collectives(Protocol):
    """Communication between the processes of a run. Every process must make the same calls in the same order."""

    def broadcast(self, value: T, src: int = 0) -> T:
        """Return the value of the process `src`, anything that can be pickled, on every process. Collective."""

    def all_gather(self, value: T) -> list[T]:
        """Return the values of all processes, anything that can be pickled, in the order of ranks. Collective."""

    def reduce(self, tensor: Tensor, op: ReduceOp = "mean") -> Tensor:
        """Return the reduction of all processes' tensors by element; the argument stays as it is. Collective.

        Args:
            tensor: The tensor, of the same shape in every process.
            op: "mean", "sum", "max" or "min".
        """

    def barrier(self) -> None:
        """Return when every process has called it. Collective."""


class Strategy(Collectives, Protocol):
    """Device, processes and precision of a model. A strategy receives hooks and never emits them.

    `camshaft.hooks_core.StrategyDefaults` has what a strategy need not define itself. One of many processes may have
    `start_max(values)` as well, which begins to find the maxima of ints over all processes, and returns a function that
    waits for their list. With it, processes that agree when to stop do not wait for one another at each round.

    A strategy may play logical ranks: training is defined on K of them, of which each process plays L in turn, and any
    number of processes has the same bits. It then has these members:

    - `num_logical_ranks` is K, or None if the strategy was not asked to; `logical_ranks` the range of this process's;
      `logical_rank` the one that was entered last, None outside of steps.
    - `enter_logical_rank(index)` makes the training step and the backward that follow those of a logical rank, with the
      buffers of logical rank 0. Collective. A step enters each of this process's once, in their order.
    - `leave_logical_ranks()` ends the step's microbatches. Where they ended an accumulation window (see
      `set_gradient_sync`, called before the first one), gradients are now, or from `unscale_gradients`,
      `clip_gradients` or `optimizer_step` on, their mean over all K. Gradients that the first one's backward finds are
      those with which all begin. Parameters that require no gradients in that step, as while another optimizer is at
      work, keep the gradients of each logical rank.
    - `logical_gradients()` returns the gradients of an open window, by logical rank and parameter's name: of all K on
      the first process, of its own on others, none between windows. Collective. `load_logical_gradients(gradients)`
      continues that window, on any number of processes, with what the first process returned.
    - `gradient_norm(optimizer)`, if it has it, returns the 2-norm of an optimizer's reduced gradients, with the same
      bits on any number of processes; None without gradients. Collective.
    - `play_logical_ranks(step, switch=None)` takes the place of entering and leaving for steps that update themselves
      (manual optimization). It returns what `step(index)` returns for each; several take turns, in threads, and an
      optimizer steps once for all, with the first one entered. `switch(index)` is called whenever another one goes on.
      `together(name, function)` calls a function once for all in such steps, and at once elsewhere.

    Attributes:
        device: Device of this process.
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
        """Data-parallel index of this process; ranks of one model replica have the same."""

    @property
    def num_data_ranks(self) -> int:
        """Number of data-parallel shares."""

    def connect(self) -> None:
        """Join the other processes; once that is done, do nothing. Collective.

        Called when a run begins, before anything else of the strategy but its attributes.
        """

    def model_context(self, module: nn.Module) -> AbstractContextManager[None]:
        """Return the context of `configure_sharded_model` and `configure_model`, which build the model. Collective."""

    def setup_module(self, module: nn.Module) -> nn.Module:
        """Move a module to its device, in place, and prepare what is to surround its steps. Collective.

        Called once per run, after the module is configured, before its weights are loaded and its optimizers are built.

        Returns:
            The prepared module, for callers that set one up by hand. The loops do not use it; they keep the module that
            they passed, and reach its wrappers through the steps that `wrap_step` returned.
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

        Not called where `device` is a CPU and no transfer hook is implemented, nor where a receiver implements
        `transfer_batch_to_device`.
        """

    def wrap_step(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Return a step that runs in this strategy's context, such as autocast or a wrapped forward.

        Called once for each step of the module (`training_step`, `validation_step`, `test_step`, `predict_step`) when a
        run resolves its hooks. That is before `setup_module`: what that makes is to be looked up when a step is called.
        Prediction with a module that has no `predict_step` wraps a call of the module likewise, when it begins.

        Args:
            step: The step; it is called with positional and keyword arguments, as its signature asks for them.

        Returns:
            What is called in its place, with the same arguments, and returns what it returns.
        """

    def idle_step(self) -> None:
        """Take part in the collectives of other processes' evaluation step, without a batch.

        Called once for each batch that another process evaluates after this one has had its last. Collective among
        those that have none left and those that do, whose step it answers.
        """

    def set_gradient_sync(self, is_on: bool) -> None:
        """Set whether the following steps synchronise gradients over processes; at first they do.

        Called before each step of an accumulation window of several: true at its last one. A strategy that holds what
        is not synchronised yet outside of `parameter.grad` has a method `collect_gradients()`, too, which moves it
        there. Collective; called before gradients are saved. Its `unscale_gradients` does the same.
        """

    def backward(self, loss: Tensor, differentiate: Callable[[Tensor], Any] | None = None) -> None:
        """Differentiate a scalar loss, by `loss.backward()` or by what the module overrides that with.

        Receives the scaled loss. Collective if gradients are reduced.
        """

    def unscale_gradients(self, optimizer: Optimizer) -> None:
        """Unscale an optimizer's gradients, where `backward` scaled them; once per update. Collective.

        Called before `on_before_optimizer_step` and clipping; `optimizer_step` does it itself where it was not called,
        and a second call changes nothing.
        """

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        """Update the weights; the closure, if any, computes the loss with its gradients first. Collective."""

    def clip_gradients(self, optimizer: Optimizer, clip_val: float, algorithm: str) -> None:
        """Clip an optimizer's gradients to a norm ("norm") or to an absolute value ("value"). Collective.

        Args:
            optimizer: The optimizer, whose parameters' gradients are clipped.
            clip_val: The largest norm of them all, or the largest absolute value of each.
            algorithm: "norm" or "value".
        """

    def load_module_state(self, module: nn.Module, state: Mapping[str, Any]) -> None:
        """Load weights that `load_checkpoint` returned into a module that was set up. Collective.

        A strategy that can do more takes `strict: bool = True` as well. It gets False for a module with
        `strict_loading = False`: names that only one of the two has are no error then.

        Args:
            module: The module.
            state: Its weights by name.
        """

    def load_optimizer_state(self, optimizer: Optimizer, state: Mapping[str, Any]) -> None:
        """Load an optimizer's state that `load_checkpoint` returned, likewise. Collective."""

    def place_like(self, value: Tensor, parameter: Tensor) -> Tensor:
        """Return a copy of a value that `load_checkpoint` returned, placed as a parameter of its shape. Collective."""

    def state_dict(self) -> dict[str, Any]:
        """Return the strategy's own state, such as the scale of losses: plain values, the same on all ranks."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of a strategy of this kind; that of another kind, or none, changes nothing."""

    def save_checkpoint(self, checkpoint: Mapping[str, Any], path: str) -> PendingSave | None:
        """Write a checkpoint. Collective; the first process's plain values count, and every one's sharded tensors.

        What fails on one process raises on all of them.

        Args:
            checkpoint: What to write.
            path: Where to: a path, or a URL if the strategy takes one.

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
        """Note that this process failed: from now on it takes part in no collective."""

    def teardown(self) -> None:
        """Release what was set up for one run. Not collective: after an error other ranks may never reach this call."""


_MEMBERS = [
    *Strategy.__annotations__,
    *(name for protocol in (Strategy, Collectives) for name in vars(protocol) if not name.startswith("_")),
]
STRATEGY_METHODS = tuple(name for name in _MEMBERS if callable(getattr(Strategy, name, None)))
"""Names of the methods of a strategy."""


def check_strategy(strategy: Any, where: str) -> None:
    """Raise `TypeError` unless an object has every member of the protocol `Strategy`; the message names those it lacks.

    Args:
        strategy: The object.
        where: The caller, for the message.
    """
    if isinstance(strategy, type):
        action = f"Pass an instance: `{strategy.__name__}(...)`."
        raise TypeError(must_be("strategy", "a strategy object", strategy, where, action))
    missing = [name for name in _MEMBERS if not hasattr(strategy, name)]
    missing += [one for one in STRATEGY_METHODS if one not in missing and not callable(getattr(strategy, one))]
    if missing:
        rule = f"a strategy (missing: {', '.join(missing)})"
        action = (
            "Define the members of `camshaft.hooks_core.protocols.Strategy`, or mix in "
            "`camshaft.hooks_core.StrategyDefaults`."
        )
        raise TypeError(must_be("strategy", rule, strategy, where, action))


Moment = Literal["batch", "epoch"]
"""Default of a logged value: it belongs to the step, or to the epoch."""


class Logger(Protocol):
    """Writer of metrics and hyperparameters.

    `log_metrics` is called by keyword, the others by position. A logger may also have `begin_fit(module)`, called when
    a fit begins (one without it: `log_graph(module)`), `resume_fit(global_step)`, called before that if the fit goes on
    with an earlier one after so many updates, `sync()`, called in place of `save()` before a checkpoint is written,
    which lets its values outlive a power cut, and `after_save_checkpoint(callback)`, called by a callback that saves
    checkpoints once one is durable, on the first process.

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
        """Object of the underlying library."""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Write values for a step, counted in optimizer updates.

        Args:
            metrics: The values by name.
            step: The index of the update.
        """

    def log_hyperparams(self, params: Mapping[str, Any]) -> None:
        """Write hyperparameters, once per run."""

    def save(self) -> None:
        """Write buffered values."""

    def finalize(self, status: str) -> None:
        """Close; `status` is "success" or "failed"."""


class MetricSink(Protocol):
    """Collector of logged values, driven by the loops. Attributes are set on the per-step path, so they stay plain.

    It may have an attribute `hook` as well, which is set to the name of the hook that runs; see `compilation.Place`.

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

        Args:
            stage: The stage.
            num_dataloaders: How many loaders its epoch reads.
            is_trial: Whether its values are discarded in the end.
        """

    def enter(self, stage: str, moment: Moment | None) -> None:
        """Continue to collect for a stage, after another one ran within it.

        Args:
            stage: The stage.
            moment: What a value logged from now on belongs to by default.
        """

    def end_train_batch(self, is_update: bool) -> None:
        """Publish what the batch, or a split of it, logged; `is_update` says whether it ended with an update."""

    def end_epoch(self) -> list[dict[str, float]]:
        """Reduce and publish the values of the stage's epoch. Collective. Returns them per loader, as numbers."""

    def discard(self) -> None:
        """Forget the values of the stage's epoch unpublished: a trial leaves no trace."""

    def trial(self) -> AbstractContextManager[None]:
        """Return a context that collects for a training epoch of its own; afterwards everything is as before."""

    def state_dict(self) -> dict[str, Any]:
        """Return published values and those of the running training epoch: tensors and plain values only.

        Changes nothing. Taken between two batches, or between epochs; later values do not change it.
        """

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state, so that collection continues as if the run had not stopped.

        Called after `start_epoch("train")`; what was logged since then is forgotten.
        """


@runtime_checkable
class TrainerProtocol(Protocol):
    """Part of a trainer that callbacks may use.

    Attributes:
        callbacks: All callbacks, in the order in which they run.
        current_epoch: Index of the training epoch.
        global_step: Number of optimizer updates so far, whatever the number of optimizers.
        max_epochs: The limit; -1 or None without one.
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
        num_val_batches: Batches of each validation loader.
        num_sanity_val_batches, num_test_batches, num_predict_batches: Likewise, of the other stages.
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
        """Save: at once outside of a run; inside, at the next save point, after which `on_saved` is called.

        Args:
            path: Where to.
            weights_only: Whether to save nothing but weights and hyperparameters.
            on_saved: Called once the checkpoint is durable.
        """

    def after_batch(self, function: Callable[[], None]) -> None:
        """Call a function when the training batch and the validation that it triggers are over; else at once."""

    def at_save_point(self, function: Callable[[], None]) -> None:
        """Call a function at the next save point; what it saves there is written before `save_checkpoint` returns."""

    def preempt(self, path: str) -> None:
        """Save and end training as soon as no step is half done; one of several processes may ask for all of them."""

    def trial(self, *, reload: bool = False) -> AbstractContextManager[Iterable[Any]]:
        """Return a context for training steps that a callback makes by itself, before training or an epoch. Collective.

        Inside, logged values are discarded. Afterwards the place in the training data, random numbers of every kind,
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


@runtime_checkable
class SampleSource(Protocol):
    """Optional part of a trainer beside `TrainerProtocol`: it knows which samples its training batches hold."""

    def follow_samples(self) -> Callable[[], Any]:
        """Record the samples of training batches, from the next one on; called in `on_fit_start`.

        Returns:
            A function that returns, called once for each batch, the dataset indices of the samples of the newest one
            in this process, as a list of ints in their order; a list with such a list for each loader (None for one
            that gave nothing) where several are combined. None if they are unknown, as those of a stream.
        """


@runtime_checkable
class DataSource(Protocol):
    """Optional part of a trainer beside `TrainerProtocol`: callbacks may watch its wait for training batches."""

    def watch_data(self, before: Callable[[], None], after: Callable[[], None]) -> None:
        """Call functions around the wait for each training batch, for the length of the fit; called in `on_fit_start`.

        Args:
            before: Called before a batch is asked for.
            after: Called once it is there, also if there was none or an error came in its place.
        """


@runtime_checkable
class StepTrials(Protocol):
    """Optional part of a trainer beside `TrainerProtocol`: callbacks may try out a training step."""

    def trial_step(self) -> AbstractContextManager[None]:
        """Return a context for training steps with the batch that waits, in `on_train_batch_start`. Collective.

        It discards and restores what `trial` does. Weights, buffers, gradients and optimizers are the callback's to
        put back.

        Raises:
            RuntimeError: If no batch waits.
        """

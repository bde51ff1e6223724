"""How batches become updates: automatically, by the module's hand, or not at all."""

from __future__ import annotations

from typing import Any, Protocol

from torch.optim import Optimizer

from camshaft.hooks_core.binding import names_parameter
from camshaft.hooks_core.implementation import implementation
from camshaft.hooks_core.messages import must_be
from camshaft.hooks_core.spec import ZeroGrad
from camshaft.hooks_core.user_warnings import warn_user
from camshaft.loops.accumulation import AccumulationWindow, check_accumulation
from camshaft.loops.automatic import SingleOptimizerOptimization, TruncatedOptimization
from camshaft.loops.fit_limits import FitLimits
from camshaft.loops.manual import ManualOptimization
from camshaft.loops.optimizer_update import OptimizerUpdate
from camshaft.loops.optimizers import Optimization
from camshaft.loops.per_optimizer import PerOptimizerOptimization
from camshaft.loops.progress import FitProgress
from camshaft.loops.run import Run
from camshaft.loops.truncated import BatchSplitter, split_size_of


class OptimizationMode(Protocol):
    """How a batch becomes an update.

    Attributes:
        num_batches: Batches of the epoch that runs, set before it begins; infinite if unknown.
        accumulate_grad_batches: Batches, or splits, of an accumulation window; what is set counts from the next
            `begin_steps` on. Setting what cannot be done raises `ValueError`.
    """

    num_batches: int | float
    accumulate_grad_batches: int

    @property
    def holds_gradients(self) -> bool:
        """Whether gradients of earlier batches or splits wait for the update that ends their window."""

    @property
    def keeps_gradients(self) -> bool:
        """Whether gradients belong in a checkpoint that is taken now."""

    def run_batch(self, batch: Any, batch_idx: int, is_last: bool) -> Any:
        """Run a batch. Returns what `training_step` returned."""

    def start_epoch(self) -> None:
        """Begin an epoch: no accumulation window is open, and gradients that waited are dropped."""

    def begin_steps(self) -> None:
        """Begin the batches of an epoch, after `start_epoch` and the hooks of the epoch's start."""

    def state_dict(self) -> dict[str, Any]:
        """What going on after the latest batch needs beside weights and gradients, as plain values."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on inside an epoch, in place of `start_epoch` and `begin_steps`."""

    def load_accumulation(self, state: dict[str, Any]) -> None:
        """Take back, between epochs, an accumulation that was set in the run that was saved; `state` is as above."""

    def close(self) -> None:
        """Leave the optimizers as they were."""


def choose_mode(
    run: Run,
    optimization: Optimization,
    progress: FitProgress,
    limits: FitLimits,
    *,
    accumulate_grad_batches: int,
    gradient_clip_val: float | None,
    gradient_clip_algorithm: str,
    zero_grad: ZeroGrad = "before_backward",
    truncated_bptt_steps: int | None = None,
) -> OptimizationMode:
    """Choose by the module's `automatic_optimization`, its optimizers and whether its batches are split.

    Args:
        run: The run.
        optimization: The module's optimizers.
        progress: Counts the updates.
        limits: How long to train.
        accumulate_grad_batches: Batches, or splits, of an accumulation window.
        gradient_clip_val: The largest norm or absolute value of the gradients; None clips nothing.
        gradient_clip_algorithm: "norm" or "value".
        zero_grad: Where gradients are zeroed.
        truncated_bptt_steps: Time steps of a split; None takes the module's attribute of that name, if it has one.

    Raises:
        ValueError: If what was asked for contradicts the module's kind of optimization.
        TypeError: If the module's `truncated_bptt_steps` is neither an int nor None.
    """
    split_size = split_size_of(run.module, truncated_bptt_steps)
    split = None if split_size is None else BatchSplitter(run, split_size)
    optimizers = optimization.optimizers
    if not optimizers:
        if limits.epoch_limit == float("inf"):
            rule = "set if there is no optimizer, since no update will ever be counted"
            where = type(run.module).__qualname__
            raise ValueError(must_be("max_epochs", rule, limits.max_epochs, where, "Pass a number of epochs."))
        warn_user("`configure_optimizers` returned no optimizer: nothing will be updated.")
        return ManualOptimization(run, [], progress, split=split, accumulate_grad_batches=accumulate_grad_batches)
    if not getattr(run.module, "automatic_optimization", True):
        _check_manual(run, optimization, accumulate_grad_batches, gradient_clip_val, zero_grad)
        return ManualOptimization(run, optimizers, progress, split=split)
    where = type(run.module).__qualname__
    _check_automatic(run, optimizers, where)
    check_accumulation(accumulate_grad_batches, optimizers, where)
    window = AccumulationWindow(accumulate_grad_batches)
    updates = [
        OptimizerUpdate(
            run,
            optimizer,
            optimizer_idx,
            window,
            progress,
            gradient_clip_val=gradient_clip_val,
            gradient_clip_algorithm=gradient_clip_algorithm,
            zero_grad=zero_grad,
            carries_hiddens=split is not None,
        )
        for optimizer_idx, optimizer in enumerate(optimizers)
    ]
    if len(updates) == 1:
        if split is None:
            return SingleOptimizerOptimization(updates[0], window, progress, run.strategy, where)
        return TruncatedOptimization(
            updates[0], window, progress, run.strategy, split=split, module=run.module, metrics=run.metrics
        )
    return PerOptimizerOptimization(
        updates,
        window,
        progress,
        run.strategy,
        module=run.module,
        toggle=optimization.toggle,
        frequencies=optimization.frequencies,
        split=split,
        metrics=run.metrics,
    )


def _check_manual(
    run: Run,
    optimization: Optimization,
    accumulate_grad_batches: int,
    gradient_clip_val: float | None,
    zero_grad: ZeroGrad,
) -> None:
    """Refuse what only automatic optimization can do."""
    where = type(run.module).__qualname__
    for name, value, neutral in (
        ("accumulate_grad_batches", accumulate_grad_batches, 1),
        ("gradient_clip_val", gradient_clip_val, None),
        ("zero_grad", zero_grad, "before_backward"),
        ("frequency", optimization.frequencies or None, None),
    ):
        if value != neutral:
            rule = f"{neutral!r} under manual optimization"
            raise ValueError(must_be(name, rule, value, where, "Do it in `training_step`."))
    if _names_optimizer_idx(run) and len(optimization.optimizers) > 1:
        rule = "one without `optimizer_idx` under manual optimization, where it steps all optimizers by itself"
        action = "Leave `optimizer_idx` out, or set `automatic_optimization = True`."
        raise ValueError(must_be("training_step", rule, implementation(run.module, "training_step"), where, action))


def _check_automatic(run: Run, optimizers: list[Optimizer], where: str) -> None:
    """Refuse several optimizers that automatic optimization cannot tell apart."""
    if len(optimizers) > 1 and not _names_optimizer_idx(run):
        rule = "1 under automatic optimization, unless `training_step` names `optimizer_idx`"
        action = (
            "Take `optimizer_idx` in `training_step`, which then runs once for each optimizer, or set "
            "`automatic_optimization = False` and step them in `training_step`."
        )
        raise ValueError(must_be("number of optimizers", rule, len(optimizers), where, action))


def _names_optimizer_idx(run: Run) -> bool:
    step = implementation(run.module, "training_step")
    return step is not None and names_parameter(step, "optimizer_idx")

"""How batches become updates: automatically, by the module's hand, or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

from torch.optim import Optimizer

from camshaft.hooks_core.messages import must_be
from camshaft.hooks_core.spec import ZeroGrad
from camshaft.hooks_core.user_warnings import warn_user
from camshaft.loops.accumulation import AccumulationWindow, check_accumulation
from camshaft.loops.automatic import SingleOptimizerOptimization, TruncatedOptimization
from camshaft.loops.earlier_optimization import (
    BatchCountedManualOptimization,
    BatchCountedPerOptimizerOptimization,
    BatchCountedTruncatedOptimization,
)
from camshaft.loops.earlier_update import update_class
from camshaft.loops.fit_limits import FitLimits
from camshaft.loops.manual import ManualOptimization
from camshaft.loops.optimization_checks import check_automatic, check_manual
from camshaft.loops.optimizer_update import OptimizerUpdate
from camshaft.loops.optimizers import Optimization
from camshaft.loops.per_optimizer import PerOptimizerOptimization
from camshaft.loops.progress import FitProgress
from camshaft.loops.releases import COUNTS_UPDATES, TURNS_BY_EPOCH, ZEROES_BY_HAND, release_of
from camshaft.loops.run import Run
from camshaft.loops.toggling import NoToggle, toggle_of
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

    def set_clipping(self, gradient_clip_val: float | None, gradient_clip_algorithm: str) -> None:
        """Clip gradients otherwise from the next update on; raises `ValueError` where the module updates by itself."""

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
    zero_grad: ZeroGrad | None = None,
    truncated_bptt_steps: int | None = None,
) -> OptimizationMode:
    """Choose by the module's `automatic_optimization`, its era, its optimizers and whether its batches are split.

    Args:
        run: The run.
        optimization: The module's optimizers.
        progress: Counts the updates.
        limits: How long to train.
        accumulate_grad_batches: Batches, or splits, of an accumulation window.
        gradient_clip_val: The largest norm or absolute value of the gradients; None clips nothing.
        gradient_clip_algorithm: "norm" or "value".
        zero_grad: Where gradients are zeroed; None for the place of the module's era. Where a place is chosen,
            `optimizer_step` leaves zeroing to the loop.
        truncated_bptt_steps: Time steps of a split; None takes the module's attribute of that name, if it has one.

    Raises:
        ValueError: If what was asked for contradicts the module's kind of optimization.
        TypeError: If the module's `truncated_bptt_steps` is neither an int nor None.
    """
    split_size = split_size_of(run, truncated_bptt_steps)
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
        check_manual(run, optimization, accumulate_grad_batches, gradient_clip_val, zero_grad)
        return _manual(run, optimizers, progress, split)
    where = type(run.module).__qualname__
    check_automatic(run, optimizers)
    check_accumulation(accumulate_grad_batches, optimizers, where)
    window = AccumulationWindow(accumulate_grad_batches)
    updates = _updates(
        run,
        optimizers,
        window,
        progress,
        gradient_clip_val=gradient_clip_val,
        gradient_clip_algorithm=gradient_clip_algorithm,
        zero_grad=zero_grad,
        carries_hiddens=split is not None,
    )
    if len(updates) > 1:
        return _per_optimizer(run, updates, window, progress, optimization, split)
    if split is None:
        return SingleOptimizerOptimization(updates[0], window, progress, run.strategy, where)
    truncated = BatchCountedTruncatedOptimization if _counts_batches(run) else TruncatedOptimization
    return truncated(updates[0], window, progress, run.strategy, split=split, module=run.module, metrics=run.metrics)


def _updates(
    run: Run,
    optimizers: Sequence[Optimizer],
    window: AccumulationWindow,
    progress: FitProgress,
    *,
    zero_grad: ZeroGrad | None,
    **settings: Any,
) -> list[OptimizerUpdate]:
    """An update for each optimizer, as the module's era made it."""
    behaviour = run.hooks.behaviour
    make_update = update_class(behaviour)
    settings["zero_grad"] = behaviour.zero_grad if zero_grad is None else zero_grad
    if behaviour.steps_after_backward:
        settings["step_zeroes"] = behaviour.step_zeroes and zero_grad is None
    return [
        make_update(run, optimizer, optimizer_idx, window, progress, **settings)
        for optimizer_idx, optimizer in enumerate(optimizers)
    ]


def _manual(
    run: Run, optimizers: list[Optimizer], progress: FitProgress, split: BatchSplitter | None
) -> OptimizationMode:
    if not _counts_batches(run):
        return ManualOptimization(run, optimizers, progress, split=split)
    zeroes = run.hooks.behaviour.zero_grad == "after_optimizer_step" and release_of(run) >= ZEROES_BY_HAND
    return BatchCountedManualOptimization(run, optimizers, progress, split=split, zeroes_after_step=zeroes)


def _per_optimizer(
    run: Run,
    updates: Sequence[OptimizerUpdate],
    window: AccumulationWindow,
    progress: FitProgress,
    optimization: Optimization,
    split: BatchSplitter | None,
) -> PerOptimizerOptimization:
    make_mode: Any = PerOptimizerOptimization
    if _counts_batches(run):
        turns_by_epoch = release_of(run) >= TURNS_BY_EPOCH
        make_mode = partial(BatchCountedPerOptimizerOptimization, turns_by_epoch=turns_by_epoch)
    toggle = toggle_of(run.module, optimization.optimizers)
    if toggle is None:
        freezes = run.hooks.behaviour.freezes_other_optimizers
        toggle = optimization.toggle if freezes else NoToggle(optimization.optimizers)
    mode: PerOptimizerOptimization = make_mode(
        updates,
        window,
        progress,
        run.strategy,
        module=run.module,
        toggle=toggle,
        frequencies=optimization.frequencies,
        split=split,
        metrics=run.metrics,
    )
    return mode


def _counts_batches(run: Run) -> bool:
    return run.hooks.behaviour.since < COUNTS_UPDATES

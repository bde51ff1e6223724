"""How batches become updates: automatically, by the module's hand, or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch.optim import Optimizer

from camshaft.hooks_core.messages import must_be, warn_user
from camshaft.loops.fit.limits import FitLimits
from camshaft.loops.optimization.automatic import (
    BatchSplitter,
    PerOptimizerOptimization,
    SingleOptimizerOptimization,
    TruncatedOptimization,
    split_size_of,
)
from camshaft.loops.optimization.configuration import (
    Optimization,
    OptimizationSettings,
    check_automatic,
    check_index_by_hand,
    check_manual,
    read_configuration,
)
from camshaft.loops.optimization.manual import ManualOptimization
from camshaft.loops.optimization.toggling import OptimizerToggle, toggle_of
from camshaft.loops.optimization.update import AccumulationWindow, OptimizerUpdate, check_accumulation
from camshaft.loops.state.progress import FitProgress
from camshaft.loops.state.run import Run


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
        """Whether gradients of batches or splits before wait for the update that ends their window."""

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


class OptimizationFactory(Protocol):
    """Makes optimizers, and updates of batches, of what a module configures; see `Run.optimization_factory`."""

    def configure(self, run: Run) -> Optimization:
        """Return the module's optimizers and schedulers, before the strategy sets them up.

        Hooks: configure_optimizers.
        """

    def make_mode(
        self,
        run: Run,
        optimization: Optimization,
        progress: FitProgress,
        limits: FitLimits,
        settings: OptimizationSettings,
    ) -> OptimizationMode:
        """Return how batches become updates; nothing of the training has been bound yet.

        Args:
            run: The run.
            optimization: What `configure` returned, as the strategy has set it up.
            progress: Counts the updates.
            limits: How long to train.
            settings: What the fit was given.
        """


class StandardOptimization:
    """The `OptimizationFactory` of a run that has no other. Subclasses replace the parts that they make otherwise."""

    def configure(self, run: Run) -> Optimization:
        """Return the module's optimizers and schedulers. Hooks: configure_optimizers.

        Raises:
            TypeError, ValueError: As `read_configuration` raises them.
        """
        assert run.hooks.configure_optimizers is not None
        is_automatic = bool(getattr(run.module, "automatic_optimization", True))
        return read_configuration(run.hooks.configure_optimizers(), steps_schedulers=is_automatic)

    def make_mode(
        self,
        run: Run,
        optimization: Optimization,
        progress: FitProgress,
        limits: FitLimits,
        settings: OptimizationSettings,
    ) -> OptimizationMode:
        """Choose by the module's `automatic_optimization`, its optimizers and whether its batches are split.

        Raises:
            ValueError: If what was asked for contradicts the module's kind of optimization.
            TypeError: If the module's `truncated_bptt_steps` is neither an int nor None.
        """
        split_size = split_size_of(run, settings.truncated_bptt_steps)
        split = None if split_size is None else BatchSplitter(run, split_size)
        optimizers, length = optimization.optimizers, settings.accumulate_grad_batches
        where = type(run.module).__qualname__
        if not optimizers:
            if limits.epoch_limit == float("inf"):
                rule = "set if there is no optimizer, since no update will ever be counted"
                raise ValueError(must_be("max_epochs", rule, limits.max_epochs, where, "Pass a number of epochs."))
            warn_user("`configure_optimizers` returned no optimizer: nothing will be updated.")
            return ManualOptimization(run, [], progress, split=split, accumulate_grad_batches=length)
        if not getattr(run.module, "automatic_optimization", True):
            check_manual(run, optimization, settings)
            return self.make_manual(run, optimization, progress, split)
        check_automatic(run, optimizers)
        check_accumulation(length, optimizers, where)
        window = AccumulationWindow(length)
        updates = [
            self.make_update(
                run, optimizer, optimizer_idx, window, progress, settings, carries_hiddens=split is not None
            )
            for optimizer_idx, optimizer in enumerate(optimizers)
        ]
        if len(updates) > 1:
            return self.make_per_optimizer(run, updates, window, progress, optimization, split)
        if split is not None:
            return self.make_truncated(run, updates[0], window, progress, split)
        return SingleOptimizerOptimization(updates[0], window, progress, run.strategy, where)

    def make_manual(
        self, run: Run, optimization: Optimization, progress: FitProgress, split: BatchSplitter | None
    ) -> OptimizationMode:
        """Return the mode of a module that optimizes by itself.

        Raises:
            ValueError: If its `training_step` asks for the index of one of several optimizers.
        """
        check_index_by_hand(run, optimization)
        return ManualOptimization(run, optimization.optimizers, progress, split=split)

    def make_update(
        self,
        run: Run,
        optimizer: Optimizer,
        optimizer_idx: int,
        window: AccumulationWindow,
        progress: FitProgress,
        settings: OptimizationSettings,
        *,
        carries_hiddens: bool,
    ) -> OptimizerUpdate:
        """Return what makes the updates of one optimizer."""
        return OptimizerUpdate(
            run,
            optimizer,
            optimizer_idx,
            window,
            progress,
            gradient_clip_val=settings.gradient_clip_val,
            gradient_clip_algorithm=settings.gradient_clip_algorithm,
            zero_grad=settings.zero_grad or "before_backward",
            carries_hiddens=carries_hiddens,
        )

    def make_truncated(
        self,
        run: Run,
        update: OptimizerUpdate,
        window: AccumulationWindow,
        progress: FitProgress,
        split: BatchSplitter,
    ) -> OptimizationMode:
        """Return the mode of one optimizer on batches that are split."""
        return TruncatedOptimization(
            update, window, progress, run.strategy, split=split, module=run.module, metrics=run.metrics
        )

    def make_per_optimizer(
        self,
        run: Run,
        updates: Sequence[OptimizerUpdate],
        window: AccumulationWindow,
        progress: FitProgress,
        optimization: Optimization,
        split: BatchSplitter | None,
    ) -> OptimizationMode:
        """Return the mode of several optimizers that take turns."""
        return PerOptimizerOptimization(
            updates,
            window,
            progress,
            run.strategy,
            module=run.module,
            toggle=self.toggle_of(run, optimization),
            frequencies=optimization.frequencies,
            split=split,
            metrics=run.metrics,
        )

    def toggle_of(self, run: Run, optimization: Optimization) -> OptimizerToggle:
        """Return what lets the parameters of the optimizer at work alone require gradients."""
        return toggle_of(run.module, optimization.optimizers) or optimization.toggle

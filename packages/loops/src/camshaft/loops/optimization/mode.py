"""Modes of optimization (automatic or manual), and the factory that chooses one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch.optim import Optimizer

from camshaft.hooks_core.support.messages import must_be, warn_user
from camshaft.loops.fit.limits import FitLimits
from camshaft.loops.optimization.automatic import PerOptimizerOptimization, SingleOptimizerOptimization, batch_splitter
from camshaft.loops.optimization.configuration import ConfiguredOptimizers, read_configuration
from camshaft.loops.optimization.joint_optimizer import JointOptimizer
from camshaft.loops.optimization.manual import ManualOptimization, check_manual, check_optimizer_idx
from camshaft.loops.optimization.settings import OptimizationSettings
from camshaft.loops.optimization.toggling import OptimizerToggle
from camshaft.loops.optimization.update import ClosureUpdate, OptimizerUpdate, UpdateContext, has_owner
from camshaft.loops.optimization.window import AccumulationWindow, check_accumulation
from camshaft.loops.state.progress import FitProgress
from camshaft.loops.state.run import Run


class UpdateMode(Protocol):
    """A mode of optimization: it turns batches into updates.

    Attributes:
        num_batches: Batches of the epoch that runs, set before it begins; infinite if unknown.
        settings: The settings in force; change them by `follow`.
    """

    num_batches: int | float
    settings: OptimizationSettings

    @property
    def holds_gradients(self) -> bool:
        """True if gradients of previous batches or splits wait for the update that ends their window."""

    @property
    def has_differentiated(self) -> bool:
        """True if it has differentiated a loss so far, even if that made no update."""

    @property
    def keeps_gradients(self) -> bool:
        """True if gradients belong in a checkpoint that is taken now."""

    def follow(self, settings: OptimizationSettings) -> None:
        """Take other settings: clipping counts from the next update on, accumulation from the next `begin_steps` on.

        Raises:
            ValueError: If the mode or the optimizers cannot do what they ask for.
        """

    def run_batch(self, batch: Any, batch_idx: int, is_last: bool) -> Any:
        """Run a batch. Returns the outputs of `training_step`.

        Args:
            batch: The batch, on its device.
            batch_idx: Its index in the epoch.
            is_last: Whether it is known to be the epoch's last.
        """

    def start_epoch(self) -> None:
        """Begin an epoch: no accumulation window is open, and waiting gradients are dropped."""

    def begin_steps(self) -> None:
        """Begin the batches of an epoch, after `start_epoch` and the hooks of the epoch's start."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the latest batch, without weights and gradients, as plain values."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on inside an epoch, in place of `start_epoch` and `begin_steps`."""

    def reweigh_window(self, ratio: float) -> float:
        """Weigh the steps so far of an open window, by the samples of all processes; see `AccumulationWindow.reweigh`.

        Returns:
            The factor for the gradients so far.
        """

    def load_accumulation(self, state: dict[str, Any]) -> None:
        """Restore, between epochs, an accumulation that was set during the saved run; `state` is as above."""

    def close(self) -> None:
        """Leave the optimizers as they were."""


class StandardOptimizationFactory:
    """Makes the optimizers and the update mode of a fit; see `Run.optimization_factory`.

    A subclass overrides the methods of the parts that it makes differently.
    """

    def configure(self, run: Run) -> ConfiguredOptimizers:
        """Return the module's optimizers and schedulers, before the strategy sets them up. Hooks: configure_optimizers.

        Raises:
            TypeError, ValueError: As `read_configuration` raises them.
        """
        assert run.hooks.configure_optimizers is not None
        is_automatic = bool(getattr(run.module, "automatic_optimization", True))
        configured = read_configuration(run.hooks.configure_optimizers(), steps_schedulers=is_automatic)
        for optimizer in configured.optimizers:
            if isinstance(optimizer, JointOptimizer):
                optimizer.warn_of_left_out(run.module)
        return configured

    def make_mode(
        self,
        run: Run,
        configured: ConfiguredOptimizers,
        progress: FitProgress,
        limits: FitLimits,
        settings: OptimizationSettings,
    ) -> UpdateMode:
        """Choose by the module's `automatic_optimization`, its optimizers, and whether its batches are split.

        No hook of the training has been bound yet.

        Args:
            run: The run.
            configured: The result of `configure`, as the strategy has set it up.
            progress: The counters of the fit, `global_step` among them.
            limits: Limits of the fit.
            settings: Settings of the updates.

        Returns:
            The mode.

        Raises:
            ValueError: If the settings contradict the module's kind of optimization.
            TypeError: If the module's `truncated_bptt_steps` is neither an int nor None.
        """
        context = UpdateContext(
            run=run,
            configured=configured,
            progress=progress,
            settings=settings,
            window=AccumulationWindow(settings.accumulate_grad_batches),
            split=batch_splitter(run, settings),
        )
        if not configured.optimizers:
            if limits.epoch_limit == float("inf"):
                rule = "set if there is no optimizer, since no update will ever be counted"
                action = "Pass a number of epochs."
                raise ValueError(must_be("max_epochs", rule, limits.max_epochs, context.where, action))
            warn_user("`configure_optimizers` returned no optimizer: nothing will be updated. Return one to train.")
            return ManualOptimization(context)
        if not getattr(run.module, "automatic_optimization", True):
            check_manual(settings, configured, context.where)
            return self.make_manual(context)
        _check_automatic(context)
        updates = [self.make_update(context, optimizer, idx) for idx, optimizer in enumerate(configured.optimizers)]
        if len(updates) > 1 or context.split is not None:
            return self.make_per_optimizer(context, updates, self.make_toggle(context) if len(updates) > 1 else None)
        return SingleOptimizerOptimization(context, updates)

    def make_manual(self, context: UpdateContext) -> UpdateMode:
        """Return the mode of a module that optimizes by itself.

        Raises:
            ValueError: If its `training_step` asks for the index of one of several optimizers.
        """
        check_optimizer_idx(context.run, context.configured)
        return ManualOptimization(context)

    def make_update(self, context: UpdateContext, optimizer: Optimizer, optimizer_idx: int) -> OptimizerUpdate:
        """Return the update of one optimizer."""
        update = ClosureUpdate if has_owner(context.run, optimizer) else OptimizerUpdate
        return update(context, optimizer, optimizer_idx)

    def make_per_optimizer(
        self, context: UpdateContext, updates: Sequence[OptimizerUpdate], toggle: OptimizerToggle | None
    ) -> UpdateMode:
        """Return the mode of several optimizers that take turns, or of batches that are split along time.

        Args:
            context: What updates share.
            updates: The updates, one of each optimizer.
            toggle: The result of `make_toggle`; None for a single optimizer.
        """
        return PerOptimizerOptimization(context, updates, toggle=toggle)

    def make_toggle(self, context: UpdateContext) -> OptimizerToggle:
        """Return the toggle by which the parameters of the optimizer at work alone require gradients."""
        return context.configured.toggle


def _check_automatic(context: UpdateContext) -> None:
    """Raise `ValueError` if the optimizers do not fit automatic optimization, or cannot accumulate."""
    optimizers = context.configured.optimizers
    if len(optimizers) > 1 and not context.run.hooks.takes("training_step", "optimizer_idx"):
        rule = "1 under automatic optimization, unless `training_step` names `optimizer_idx`"
        action = (
            "Return `JointOptimizer(...)` of them to step all on one loss; else take `optimizer_idx` in "
            "`training_step`, or set `automatic_optimization = False` and step them there."
        )
        raise ValueError(must_be("number of optimizers", rule, len(optimizers), context.where, action))
    check_accumulation(context.settings.accumulate_grad_batches, optimizers, context.where)

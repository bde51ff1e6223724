"""A training epoch: its batches, its validations and its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from camshaft.hooks_core.catalogue import CATALOGUE
from camshaft.hooks_core.dispatch.implementation import implementation, returns_anything
from camshaft.hooks_core.dispatch.resolve import nobody
from camshaft.hooks_core.spec import SKIP_EPOCH
from camshaft.loops.data.fit_data import FitData
from camshaft.loops.data.loaders import batch_mover
from camshaft.loops.fit.limits import StoppingRules
from camshaft.loops.optimization.mode import OptimizationMode
from camshaft.loops.optimization.schedulers import SchedulerSteps
from camshaft.loops.optimization.update import without_graph
from camshaft.loops.state.progress import FitProgress
from camshaft.loops.state.run import Run


class TrainingEpoch:
    """Runs the batches of an epoch, each with its update, and validation where it is due.

    Args:
        run: The run.
        progress: The counters to advance.
        optimization: How a batch becomes an update.
        schedulers: The learning-rate schedulers.
        data: The training batches, and whether there is any validation.
        validation_due: Given a batch's index and whether it is the last: whether to validate after it.
        validate: Runs validation.
        stopping: Tells when training ends.
    """

    def __init__(
        self,
        run: Run,
        progress: FitProgress,
        optimization: OptimizationMode,
        schedulers: SchedulerSteps,
        *,
        data: FitData,
        validation_due: Callable[[int, bool], bool],
        validate: Callable[[], None],
        stopping: StoppingRules,
    ) -> None:
        self._run = run
        self._progress = progress
        self._optimization = optimization
        self._schedulers = schedulers
        self._data = data
        self._validation_due = validation_due
        self._validate = validate
        self._stopping = stopping
        self._may_stop = stopping.may_stop
        self._wishes = stopping.wishes
        self._agreement = stopping.agreement
        self._agree = stopping.agree
        self._save = stopping.save
        self._time_is_over = stopping.time_is_over if stopping.limits.max_seconds is not None else None
        self._move = batch_mover(run)
        self._batch_start = batch_start_of_all(run)
        self.is_last_batch = False

    def run(self) -> bool:
        """Run the epoch's batches, or those that are left after a resume. Collective.

        Hooks: the transfer hooks, on_train_batch_start, those of the optimization, lr_scheduler_step,
        on_train_batch_end, those of validation.

        Returns:
            Whether the epoch is complete: true also if `on_train_batch_start` skipped its rest, false if training is to
            end before its last batch.

        Raises:
            RuntimeError: If the loader gives no batch at all.
        """
        run, progress, metrics, validates = self._run, self._progress, self._run.metrics, self._data.validates
        batch_start, batch_end = self._batch_start, run.hooks.on_train_batch_end
        run_batch, schedulers, move = self._optimization.run_batch, self._schedulers, self._move
        counts, stopping, time_is_over = progress.batches, self._stopping, self._time_is_over
        wishes, agreement = self._wishes, self._agreement
        self.is_last_batch = False
        if wishes.should_stop and self._may_stop():
            return False  # something asked for it at the epoch's start
        for batch_idx, batch, is_last in self._data.batches:
            run.batch_idx = batch_idx
            counts.ready += 1
            self.is_last_batch = is_last
            if move is not None:
                batch = move(batch, 0)
            if metrics is not None:
                metrics.batch = batch
            if batch_start is not nobody and batch_start(batch, batch_idx) == SKIP_EPOCH:
                return True
            counts.started += 1
            step_before = progress.global_step
            outputs = run_batch(batch, batch_idx, is_last)
            counts.processed += 1
            is_update = progress.global_step != step_before
            if is_update and schedulers.after_update:
                schedulers.step("step", step_before, progress.global_step, monitored=False)
            if batch_end is not nobody:
                batch_end(without_graph(outputs), batch, batch_idx)
            outputs = None  # lets go of the graph before the next one is built
            counts.completed += 1
            if metrics is not None:
                metrics.end_train_batch(is_update)
            if time_is_over is not None and time_is_over():
                progress.should_stop = True
            if agreement is not None and agreement.is_due():
                self._agree()
            if validates and self._validation_due(batch_idx, is_last):
                self._validate()
                if agreement is not None:
                    self._agree()
            if is_update and schedulers.after_update_monitored:
                schedulers.step("step", step_before, progress.global_step, monitored=True)
            if run.batch_functions:
                run.end_batch()
            if progress.global_step >= stopping.step_limit or (wishes.should_stop and self._may_stop()):
                return is_last
            if run.save_requests and not is_last and self._save():
                return False
        if run.batch_idx is None:
            raise RuntimeError(
                f"`train loader` must give batches in every epoch, but got none in epoch {progress.current_epoch} "
                f"({type(self._data.loader).__name__}) in fit. Pass a loader that begins anew each time, no generator."
            )
        return True


def batch_start_of_all(run: Run) -> Callable[[Any, int], Any]:
    """`on_train_batch_start`, which skips the rest of the epoch in all processes if it does in one.

    A process that skipped alone would leave the others waiting for its gradients. They ask each other at every batch,
    but only with several processes and where the code of a receiver returns anything there; as all run the same code,
    all do or none.

    Args:
        run: A run with its hooks resolved.

    Returns:
        The hook; the very one of the run where nobody has to ask. The other one is collective.
    """
    hook: Callable[[Any, int], Any] = run.hooks.on_train_batch_start
    if run.strategy.world_size == 1 or not _may_skip(run):
        return hook
    reduce = run.strategy.reduce

    def batch_start(batch: Any, batch_idx: int) -> Any:
        skips = hook(batch, batch_idx) == SKIP_EPOCH
        return SKIP_EPOCH if reduce(torch.tensor(int(skips)), "max").item() else None

    return batch_start


def _may_skip(run: Run) -> bool:
    names = [spec.name for spec in CATALOGUE.values() if spec.can_skip_epoch]
    receivers = [*run.callbacks, run.data, run.module, run.strategy]
    methods = [implementation(receiver, name) for receiver in receivers if receiver is not None for name in names]
    return any(returns_anything(method) for method in methods if method is not None)


class ValidationSchedule:
    """Tells after which batches validation is due: at its interval, and before training stops within an epoch.

    Args:
        data: Knows the interval.
        progress: How far training is.
        stopping: Knows when `should_stop` is obeyed, and in which epochs to validate.
    """

    def __init__(self, data: FitData, progress: FitProgress, stopping: StoppingRules) -> None:
        self._data = data
        self._progress = progress
        self._stopping = stopping

    def is_due(self, batch_idx: int, is_last: bool) -> bool:
        """Whether to validate after a batch.

        Args:
            batch_idx: The batch's index in the epoch.
            is_last: Whether it is known to be the epoch's last.
        """
        limits, interval = self._stopping.limits, self._data.validation_interval
        if not limits.validates_in(self._progress.current_epoch):
            return False
        # What is preempted goes on later, so that it has the validations of a run that nobody stopped, and no other.
        if self._stopping.wishes.should_stop and self._stopping.may_stop() and not self._stopping.is_preempted:
            return True
        if interval == float("inf"):
            return is_last
        done = self._progress.total_batches if limits.check_val_every_n_epoch is None else batch_idx + 1
        return done % interval == 0

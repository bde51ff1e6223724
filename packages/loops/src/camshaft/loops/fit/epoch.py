"""A training epoch: its batches, updates and validations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import attrs
import torch

from camshaft.hooks_core import no_op
from camshaft.hooks_core.dispatch.implementation import returns_anything
from camshaft.hooks_core.spec import SKIP_EPOCH
from camshaft.hooks_core.support.messages import warn_user
from camshaft.loops.data.fit_data import FitData
from camshaft.loops.data.loaders import batch_mover
from camshaft.loops.fit.limits import StoppingRules
from camshaft.loops.optimization.mode import UpdateMode
from camshaft.loops.optimization.schedulers import SchedulerSteps
from camshaft.loops.optimization.update import without_graph
from camshaft.loops.state.run import Run


@attrs.define(eq=False, repr=False, slots=False)
class TrainingEpoch:
    """Runs the batches of an epoch, each with its update, and validation where it is due.

    Args:
        run: The run.
        mode: Turns batches into updates; another one that is set works from the next batch on.
        schedulers: Steps the learning-rate schedulers.
        data: The training batches, and the interval of validation.
        stopping: Decides when training ends, and knows the progress.
        validate: Runs validation.

    Attributes:
        is_last_batch: Whether the batch that runs is known to be its epoch's last.
        step_before: Number of updates before the batch that runs, or ran last.
    """

    _run: Run
    mode: UpdateMode
    _schedulers: SchedulerSteps
    _data: FitData
    _stopping: StoppingRules
    _validate: Callable[[], None]
    is_last_batch: bool = attrs.field(default=False, init=False)
    step_before: int = attrs.field(default=0, init=False)
    _has_warned_of_none: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._progress = self._stopping.progress
        self._move = batch_mover(self._run)
        self._batch_start = batch_start_of_all(self._run)
        self._batch_end: Callable[[Any, Any, int], Any] = self._run.hooks.on_train_batch_end

    def follow_mode(self) -> None:
        """Prepare another mode that was set; a subclass may need to."""

    def run(self) -> bool:
        """Run the epoch's batches, or those that are left after a resume. Collective.

        A batch that the loader gives as None is counted, and left out with a warning: no step and no hook gets it.

        Hooks: the transfer hooks, on_train_batch_start, those of the optimization, lr_scheduler_step,
        on_train_batch_end, those of validation.

        Returns:
            Whether the epoch is complete, true also if `on_train_batch_start` skipped its rest, false if training is to
            end before its last batch.

        Raises:
            RuntimeError: If the loader gives no batch at all, unless it has no length, begins anew in each epoch, and
                `max_epochs` ends a fit of one process: then an epoch may be empty, with a warning.
        """
        # The hot path: whatever the epoch cannot change is looked up here, not at every batch.
        run, progress, metrics, validates = self._run, self._progress, self._run.metrics, self._data.validates
        batch_start, batch_end = self._batch_start, self._batch_end
        schedulers, move = self._schedulers, self._move
        counts, stopping = progress.batches, self._stopping
        requests, agreement, may_stop = stopping.stop_requests, stopping.agreement, stopping.may_stop
        time_is_over = stopping.time_is_over if stopping.max_seconds is not None else None
        self.is_last_batch = False
        if requests.should_stop and may_stop():
            return False  # requested at the epoch's start
        for batch_idx, batch, is_last in self._data.batches:
            run.batch_idx = batch_idx
            counts.ready += 1
            self.is_last_batch = is_last
            self.step_before = step_before = progress.global_step
            is_update = False
            if batch is None:
                self._leave_out()
            else:
                if move is not None:
                    batch = move(batch, 0)
                if metrics is not None:
                    metrics.batch = batch
                # a hook without receivers is `no_op`: to compare costs less than to call it
                if batch_start is not no_op and batch_start(batch, batch_idx) == SKIP_EPOCH:
                    self.is_last_batch = True
                    return True
                counts.started += 1
                outputs = self.mode.run_batch(batch, batch_idx, is_last)
                counts.processed += 1
                is_update = progress.global_step != step_before
                if is_update and schedulers.after_update:
                    schedulers.step("step", step_before, progress.global_step, monitored=False)
                if batch_end is not no_op:
                    batch_end(without_graph(outputs), batch, batch_idx)
                outputs = None  # frees the graph before the next one is built
            counts.completed += 1
            if metrics is not None:
                metrics.end_train_batch(is_update)
            if time_is_over is not None and time_is_over():
                progress.should_stop = True
            if agreement is not None and agreement.is_due():
                stopping.agree(waits=False)
            if validates and self._validate_if_due(batch_idx, is_last) and agreement is not None:
                stopping.agree()
            if is_update and schedulers.after_update_monitored:
                schedulers.step("step", step_before, progress.global_step, monitored=True)
            if run.batch_functions:
                run.end_batch()
            if (progress.global_step >= stopping.step_limit or (requests.should_stop and may_stop())) and not is_last:
                return False  # after the last batch the loader comes to its end, where samplers may draw
            if run.save_requests and not is_last and stopping.save():
                return False
        if run.batch_idx is None and not counts.ready:
            self._check_empty_epoch()
        return True

    def _leave_out(self) -> None:
        """Count a batch that is None, and warn of the first."""
        self._progress.batches.started += 1
        self._progress.batches.processed += 1
        if not self._has_warned_of_none:
            warn_user(
                "The train loader gave None in place of a batch: such batches are left out. "
                "Drop them in the dataset or sampler to count only what trains.",
                of_rank=True,
            )
        self._has_warned_of_none = True

    def _check_empty_epoch(self) -> None:
        """Warn of an epoch without batches; raise where every later epoch would be empty, or none is the last."""
        loader, stopping, epoch = self._data.loader, self._stopping, self._progress.current_epoch
        can_go_on = self._data.num_batches == float("inf") and stopping.limits.epoch_limit != float("inf")
        if isinstance(loader, Iterator) or not can_go_on or self._run.strategy.world_size > 1:
            got = f"got none in epoch {epoch} ({type(loader).__name__}) in fit"
            action = "Pass a loader that begins anew each time, no generator."
            raise RuntimeError(f"`train loader` must give batches in every epoch, but {got}. {action}")
        warn_user(
            f"The training loader ({type(loader).__name__}) gave no batches in epoch {epoch}, which trains nothing. "
            "Let the dataset wait for data if every epoch must train."
        )

    def _validate_if_due(self, batch_idx: int, is_last: bool) -> bool:
        """Validate after a batch at the interval, and before training stops within an epoch. Returns whether it did."""
        stopping = self._stopping
        if not stopping.limits.validates_in(self._progress.current_epoch):
            return False
        if self._is_interval_over(batch_idx, is_last):
            self._validate()
            return True
        # A preempted run goes on later: it has the validations of a run that was not stopped, and no other.
        if not (stopping.stop_requests.should_stop and stopping.may_stop()) or stopping.is_preempted:
            return False
        with self._data.isolated_from_stop():
            self._validate()
        return True

    def _is_interval_over(self, batch_idx: int, is_last: bool) -> bool:
        stopping, interval = self._stopping, self._data.validation_interval
        if stopping.validation_seconds is not None:
            return stopping.is_time_to_validate()
        if interval == float("inf"):
            return is_last
        is_by_epoch = stopping.limits.check_val_every_n_epoch is not None
        return (batch_idx + 1 if is_by_epoch else self._progress.total_batches) % interval == 0


def batch_start_of_all(run: Run) -> Callable[[Any, int], Any]:
    """Return `on_train_batch_start`, which skips the rest of the epoch in all processes if it does in one.

    If one process skipped alone, the others would wait for its gradients forever. So processes ask each other at every
    batch, but only if there are several and the code of a receiver returns anything; all run the same code, so either
    all ask or none.

    Args:
        run: A run with its hooks resolved.

    Returns:
        The hook of the run itself where there is no need to ask, else one that is collective.
    """
    hook: Callable[[Any, int], Any] = run.hooks.on_train_batch_start
    if run.strategy.world_size == 1 or not any(map(returns_anything, run.hooks.methods("on_train_batch_start"))):
        return hook
    reduce = run.strategy.reduce

    def batch_start(batch: Any, batch_idx: int) -> Any:
        skips = hook(batch, batch_idx) == SKIP_EPOCH
        return SKIP_EPOCH if reduce(torch.tensor(int(skips)), "max").item() else None

    return batch_start

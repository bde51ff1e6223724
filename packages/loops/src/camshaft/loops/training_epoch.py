"""The batches of one training epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor

from camshaft.hooks_core.dispatch import nobody
from camshaft.hooks_core.spec import SKIP_EPOCH
from camshaft.loops.batches import batch_mover, numbered
from camshaft.loops.optimization_mode import OptimizationMode
from camshaft.loops.progress import FitProgress
from camshaft.loops.run import Run
from camshaft.loops.schedulers import SchedulerSteps


class TrainingEpoch:
    """Runs the batches of an epoch, each with its update, and validation where it is due.

    Args:
        run: The run.
        progress: The counters to advance.
        optimization: How a batch becomes an update.
        schedulers: The learning-rate schedulers.
        loader: The training data.
        num_batches: How many batches an epoch has; infinite if unknown.
        validates: Whether there is any validation.
        validation_due: Given a batch's index and whether it is the last: whether to validate after it.
        validate: Runs validation.
        step_limit: The largest number of updates.
        may_stop: Whether `progress.should_stop` is obeyed already.
    """

    def __init__(
        self,
        run: Run,
        progress: FitProgress,
        optimization: OptimizationMode,
        schedulers: SchedulerSteps,
        *,
        loader: Iterable[Any],
        num_batches: int | float,
        validates: bool,
        validation_due: Callable[[int, bool], bool],
        validate: Callable[[], None],
        step_limit: float,
        may_stop: Callable[[], bool],
    ) -> None:
        self._run = run
        self._progress = progress
        self._optimization = optimization
        self._schedulers = schedulers
        self._loader = loader
        self._num_batches = num_batches
        self._validates = validates
        self._validation_due = validation_due
        self._validate = validate
        self._step_limit = step_limit
        self._may_stop = may_stop
        self._move = batch_mover(run)
        self.is_last_batch = False

    def run(self) -> bool:
        """Run the epoch's batches. Collective.

        Hooks: the transfer hooks, on_train_batch_start, those of the optimization, lr_scheduler_step,
        on_train_batch_end, those of validation.

        Returns:
            Whether the epoch is complete: true also if `on_train_batch_start` skipped its rest, false if training is to
            end before its last batch.

        Raises:
            RuntimeError: If the loader gives no batch at all.
        """
        run, progress, metrics = self._run, self._progress, self._run.metrics
        hooks, schedulers, move, step_limit = run.hooks, self._schedulers, self._move, self._step_limit
        self.is_last_batch = False
        for batch_idx, batch, is_last in numbered(self._loader, self._num_batches):
            run.batch_idx = batch_idx
            progress.num_batches += 1
            self.is_last_batch = is_last
            if move is not None:
                batch = move(batch, 0)
            if metrics is not None:
                metrics.batch = batch
            if hooks.on_train_batch_start is not nobody and hooks.on_train_batch_start(batch, batch_idx) == SKIP_EPOCH:
                return True
            step_before = progress.global_step
            outputs = self._optimization.run_batch(batch, batch_idx, is_last)
            is_update = progress.global_step != step_before
            if is_update and schedulers.after_update:
                schedulers.step("step", progress.global_step, monitored=False)
            if hooks.on_train_batch_end is not nobody:
                hooks.on_train_batch_end(_detached(outputs), batch, batch_idx)
            outputs = None  # lets go of the graph before the next one is built
            progress.total_batches += 1
            if metrics is not None:
                metrics.end_train_batch(is_update)
            if self._validates and self._validation_due(batch_idx, is_last):
                self._validate()
            if is_update and schedulers.after_update_monitored:
                schedulers.step("step", progress.global_step, monitored=True)
            if progress.global_step >= step_limit or (progress.should_stop and self._may_stop()):
                return is_last
            if run.save_requests and not is_last:
                run.save_point()
        if run.batch_idx is None:
            raise RuntimeError(
                f"`train loader` must give batches in every epoch, but got none in epoch {progress.current_epoch} "
                f"({type(self._loader).__name__}) in fit. Pass a loader that begins anew each time, not a generator."
            )
        return True


def _detached(outputs: Any) -> Any:
    """What `on_train_batch_end` gets: a dictionary with the loss, which no longer holds the graph."""
    if isinstance(outputs, Tensor):
        return {"loss": outputs.detach()}
    if isinstance(outputs, dict) and isinstance(outputs.get("loss"), Tensor):
        return {**outputs, "loss": outputs["loss"].detach()}
    return outputs

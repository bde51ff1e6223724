"""Callback that ends a trial of Optuna without promise."""

from __future__ import annotations

import os
import pickle
from typing import TYPE_CHECKING, Any, ClassVar

from camshaft.callbacks.arguments import InvalidArgumentError
from camshaft.callbacks.monitoring import from_rank_zero, is_due_at_train_epoch_end, read_metric
from camshaft.hooks_core import Callback
from camshaft.hooks_core.protocols import TrainerProtocol

if TYPE_CHECKING:
    import optuna


class OptunaPruning(Callback):
    """Reports a metric to a trial of Optuna, and ends the fit where the study's pruner asks for it.

    Where validation runs once per epoch or not at all, the metric is reported at the end of each training epoch, with
    the epoch as its step; otherwise after each validation, with the number of updates. Rank 0 reports and asks, and all
    ranks end together: `fit` raises `optuna.TrialPruned` on each of them, which a study takes for a pruned trial.

    Where `fit` forks its ranks (in a notebook, `strategy="ddp_fork"`), the study's storage must be one that processes
    share, such as `"sqlite:///study.db"`.

    Args:
        trial: The trial; None on other ranks than 0, which have none.
        monitor: Name of the logged metric, a scalar.

    Raises:
        InvalidArgumentError: When fit begins, if rank 0 has no trial, or its storage is in the memory of a process that
            has forked this one, or another rank has one with other hyperparameters.
        MissingMetricError: At the first report, if `monitor` has not been logged.
        optuna.TrialPruned: Out of `fit`, if the trial is pruned.
    """

    monitors: ClassVar[bool] = True

    def __init__(self, trial: optuna.trial.BaseTrial | None, monitor: str) -> None:
        super().__init__()
        self.monitor = monitor
        self._trial: Any = trial
        self._process_id = os.getpid()
        self._is_fitting = False

    def setup(self, trainer: TrainerProtocol, module: Any, stage: str) -> None:
        """Check the trial, on rank 0. Collective."""
        self._is_fitting = stage == "fit"
        if not self._is_fitting:
            return
        from_rank_zero(trainer.strategy, self._prepare)
        first, *others = trainer.strategy.all_gather(getattr(self._trial, "params", None))
        unlike = [params for params in others if params not in (None, first)]
        if unlike:
            rule, action = f"that of rank 0, {first}, or None on other ranks", 'Pass strategy="ddp_fork" to `Trainer`.'
            raise InvalidArgumentError("trial", rule, unlike[0], self, action)

    def on_train_epoch_end(self, trainer: TrainerProtocol, module: Any) -> None:
        """Report here if validation runs once per epoch or not at all. Collective."""
        if self._is_due(trainer, at_epoch_end=True):
            self._report(trainer, trainer.current_epoch)

    def on_validation_end(self, trainer: TrainerProtocol, module: Any) -> None:
        """Report here if validation runs at other times. Collective."""
        if self._is_due(trainer, at_epoch_end=False):
            self._report(trainer, trainer.global_step)

    def _prepare(self) -> None:
        if not hasattr(self._trial, "should_prune"):
            action = "Pass the argument of the objective."
            raise InvalidArgumentError("trial", "a trial of Optuna on rank 0", self._trial, self, action)
        if os.getpid() == self._process_id or not hasattr(self._trial, "storage"):
            return
        from optuna.storages import InMemoryStorage

        if isinstance(self._trial.storage, InMemoryStorage):
            rule, action = "of a study whose storage processes share, as fit forks its ranks", "Pass a `storage`."
            raise InvalidArgumentError("trial", rule, self._trial.storage, self, action)
        # a connection to a database is not to be used by two processes
        self._trial, self._process_id = pickle.loads(pickle.dumps(self._trial)), os.getpid()

    def _is_due(self, trainer: TrainerProtocol, *, at_epoch_end: bool) -> bool:
        if not self._is_fitting or trainer.sanity_checking or trainer.fast_dev_run:
            return False
        return from_rank_zero(trainer.strategy, lambda: is_due_at_train_epoch_end(trainer)) == at_epoch_end

    def _report(self, trainer: TrainerProtocol, step: int) -> None:
        def report() -> bool:
            self._trial.report(float(read_metric(trainer, self.monitor, self)), step=step)
            return bool(self._trial.should_prune())

        if from_rank_zero(trainer.strategy, report):
            from optuna import TrialPruned

            raise TrialPruned(f"The trial was pruned in epoch {trainer.current_epoch}, by {self.monitor}.")

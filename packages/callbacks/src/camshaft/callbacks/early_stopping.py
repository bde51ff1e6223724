"""Callback that stops training when a metric no longer improves."""

import math
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, ClassVar

import attrs
import torch
from torch import Tensor

from camshaft.callbacks.arguments import MissingMetricError, check_number
from camshaft.callbacks.monitoring import (
    check_mode,
    from_rank_zero,
    is_due_at_train_epoch_end,
    read_metric,
    worst_score,
)
from camshaft.hooks_core import Callback
from camshaft.hooks_core.protocols import TrainerProtocol
from camshaft.hooks_core.support.messages import warn_user


class EarlyStoppingReason(Enum):
    """Which rule of `EarlyStopping` stopped training."""

    NOT_STOPPED = 0
    STOPPING_THRESHOLD = 1
    DIVERGENCE_THRESHOLD = 2
    PATIENCE_EXHAUSTED = 3
    NON_FINITE_METRIC = 4


@attrs.define(slots=False, eq=False, repr=False)
class EarlyStopping(Callback):
    """Stops training when a metric stops improving, diverges or reaches a threshold.

    The metric is checked at the end of each training epoch where validation runs once per epoch or not at all, after
    each validation otherwise. Rank 0's value decides for all ranks.

    A run that is resumed from a checkpoint of a stopped run stops again. To train on, change an argument, such as
    `patience`.

    Subclasses may override the methods that Lightning's class has: `_run_early_stopping_check`,
    `_evaluate_stopping_criteria`, `_validate_condition_metric`, `_should_skip_check` and others.

    Args:
        monitor: Name of the logged metric, a scalar.
        min_delta: Smallest change, in the metric's unit, that counts as an improvement; a change of exactly
            `min_delta` does not. Not negative.
        patience: Number of checks in a row without improvement after which training stops; 0 stops at the first.
        verbose: Whether each improvement and the reason for stopping are printed.
        mode: "min" where lower is better, "max" where higher is.
        strict: Whether a missing metric is an error; otherwise the check is skipped, with a warning the first time.
        check_finite: Whether NaN or an infinity stops training; otherwise they count as no improvement.
        stopping_threshold: Value that, once passed in the good direction, stops training. None: no such value.
        divergence_threshold: Value that, once passed in the bad direction, stops training. None: no such value.
        check_on_train_epoch_end: When to check: True at the end of the training epoch, False after validation,
            None chooses as described above.
        log_rank_zero_only: Whether only rank 0 prints; otherwise each rank does, with its number.

    Attributes:
        min_delta: As given where higher is better, and negative where lower is.
        best_score: Best value so far, a scalar on the CPU; an infinity before the first.
        wait_count: Number of checks since it improved.
        stopped_epoch: Zero-based epoch in which it stopped training; 0 if it did not.
        stopping_reason: Which rule stopped training; `EarlyStoppingReason.NOT_STOPPED` if none did.
        stopping_reason_message: Why it stopped training, in words; None if it did not.

    Raises:
        InvalidArgumentError: If `mode`, `patience` or `min_delta` is out of range.
        MissingMetricError: At the first check, if `strict` and `monitor` has not been logged.
    """

    monitors: ClassVar[bool] = True
    mode_dict: ClassVar[Mapping[str, Callable[..., Tensor]]] = {"min": torch.lt, "max": torch.gt}
    order_dict: ClassVar[Mapping[str, str]] = {"min": "<", "max": ">"}

    monitor: str
    min_delta: float = 0.0
    patience: int = 3
    verbose: bool = False
    mode: str = "min"
    strict: bool = True
    check_finite: bool = True
    stopping_threshold: float | None = None
    divergence_threshold: float | None = None
    _check_on_train_epoch_end: bool | None = None
    log_rank_zero_only: bool = False
    best_score: Tensor = attrs.field(init=False)
    wait_count: int = attrs.field(default=0, init=False)
    stopped_epoch: int = attrs.field(default=0, init=False)
    stopping_reason: EarlyStoppingReason = attrs.field(default=EarlyStoppingReason.NOT_STOPPED, init=False)
    stopping_reason_message: str | None = attrs.field(default=None, init=False)
    _is_fitting: bool = attrs.field(default=False, init=False)
    _has_warned: bool = attrs.field(default=False, init=False)
    _has_resumed: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        super().__init__()
        check_number(self, "Use 0 to stop at the first.", least=0, patience=self.patience)
        check_number(self, "Choose the direction by `mode`, not by its sign.", least=0, min_delta=self.min_delta)
        self.best_score = torch.tensor(worst_score(check_mode(self.mode, self)))
        if self.mode == "min":
            self.min_delta = -self.min_delta

    @property
    def check_on_train_epoch_end(self) -> bool | None:
        """The argument of this name."""
        return self._check_on_train_epoch_end

    @check_on_train_epoch_end.setter
    def check_on_train_epoch_end(self, value: bool | None) -> None:
        self._check_on_train_epoch_end = value

    @property
    def monitor_op(self) -> Callable[..., Tensor]:
        """The comparison by which a value is better than another."""
        return self.mode_dict[self.mode]

    @property
    def state_key(self) -> str:
        """Class name, metric and direction; two of these in one trainer have separate states."""
        return f"{type(self).__qualname__}{ {'monitor': self.monitor, 'mode': self.mode}!r}"

    def setup(self, trainer: TrainerProtocol, module: Any, stage: str) -> None:
        """Enable checks, in fit only."""
        self._is_fitting = stage == "fit"

    def on_train_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Stop again, with a warning, if the resumed run had been stopped."""
        if self._has_resumed and self.stopping_reason_message is not None:
            trainer.should_stop = True
            warn_user(
                "EarlyStopping has stopped the run that is resumed, and stops it again: "
                f"{self.stopping_reason_message} Change one of its arguments, such as `patience`, to train on."
            )
        self._has_resumed = False

    def on_train_epoch_end(self, trainer: TrainerProtocol, module: Any) -> None:
        """Check here if this is the due time. Collective."""
        if not self._should_skip_check(trainer) and self._is_due_at_train_epoch_end(trainer):
            self._run_early_stopping_check(trainer)

    def on_validation_end(self, trainer: TrainerProtocol, module: Any) -> None:
        """Check here if this is the due time. Collective."""
        if not self._should_skip_check(trainer) and not self._is_due_at_train_epoch_end(trainer):
            self._run_early_stopping_check(trainer)

    def state_dict(self) -> dict[str, Any]:
        """Return the best score, the checks since, whether and why it stopped, and the arguments that decide that."""
        names = ("best_score", "wait_count", "stopped_epoch", "stopping_reason_message")
        state = {name: getattr(self, name) for name in names}
        return {**state, "stopping_reason": self.stopping_reason.value, "rules": self._rules}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a state; the constructor's arguments stay as they are.

        A stop is dropped if the arguments that decided it have changed.
        """
        self.best_score = state_dict["best_score"].clone()
        self.wait_count = state_dict["wait_count"]
        self._has_resumed = state_dict.get("rules") == self._rules
        state = state_dict if self._has_resumed or "rules" not in state_dict else {}
        self.stopped_epoch = state.get("stopped_epoch", 0)
        self.stopping_reason = EarlyStoppingReason(state.get("stopping_reason", 0))
        self.stopping_reason_message = state.get("stopping_reason_message")

    @property
    def _rules(self) -> dict[str, Any]:
        """Arguments that decide whether it stops."""
        names = ("patience", "check_finite", "stopping_threshold", "divergence_threshold")
        return {"min_delta": abs(self.min_delta), **{name: getattr(self, name) for name in names}}

    def _is_due_at_train_epoch_end(self, trainer: TrainerProtocol) -> bool:
        if self.check_on_train_epoch_end is not None:
            return self.check_on_train_epoch_end
        return from_rank_zero(trainer.strategy, lambda: is_due_at_train_epoch_end(trainer))

    def _should_skip_check(self, trainer: TrainerProtocol) -> bool:
        return not self._is_fitting or trainer.sanity_checking

    def _run_early_stopping_check(self, trainer: TrainerProtocol) -> None:
        """Check, and stop training if needed. Collective."""
        if trainer.fast_dev_run:
            return

        def read() -> Tensor | None:
            is_logged = self._validate_condition_metric(trainer.callback_metrics)
            return read_metric(trainer, self.monitor, self) if is_logged else None

        # One rank's value for all, so that their states stay equal where the metric differs between ranks.
        current = from_rank_zero(trainer.strategy, read)
        if current is None:
            return
        should_stop, reason = self._evaluate_stopping_criteria(current)
        if should_stop:
            self.stopping_reason_message = reason or f"it stopped at {self.monitor}={float(current):.6g}."
            self.stopped_epoch = trainer.current_epoch
            trainer.should_stop = True
        if reason and self.verbose:
            self._log_info(trainer, reason, self.log_rank_zero_only)

    def _validate_condition_metric(self, logs: Mapping[str, Any]) -> bool:
        """Return whether the metric was logged; called on rank 0.

        Raises:
            MissingMetricError: If it is not, and `strict`.
        """
        if self.monitor in logs:
            return True
        error = MissingMetricError("monitor", self.monitor, logs, self)
        if self.strict:
            raise error
        if not self._has_warned:
            warn_user(f"{error} EarlyStopping makes no check until then.")
        self._has_warned = True
        return False

    def _evaluate_stopping_criteria(self, current: Tensor) -> tuple[bool, str | None]:
        """Evaluate a new value. Return whether training must stop, and a message: the reason, or the improvement."""
        score, best, name = float(current), float(self.best_score), self.monitor
        if self.check_finite and not math.isfinite(score):
            self.stopping_reason = EarlyStoppingReason.NON_FINITE_METRIC
            return True, f"{name} is {score}, which is not finite (best so far: {best:.6g})."
        goal, limit = self.stopping_threshold, self.divergence_threshold
        value = torch.tensor(score, dtype=torch.float64)
        if goal is not None and self.monitor_op(value, goal):
            self.stopping_reason = EarlyStoppingReason.STOPPING_THRESHOLD
            return True, f"{name} is {score:.6g}, past its stopping threshold {goal:.6g}."
        if limit is not None and self.monitor_op(-value, -limit):
            self.stopping_reason = EarlyStoppingReason.DIVERGENCE_THRESHOLD
            return True, f"{name} is {score:.6g}, past its divergence threshold {limit:.6g}."
        if self.monitor_op(value, best + self.min_delta):
            reason = self._improvement_message(current)
            self.best_score = current
            self.wait_count = 0
            return False, reason
        self.wait_count += 1
        if self.wait_count < self.patience:
            return False, None
        self.stopping_reason = EarlyStoppingReason.PATIENCE_EXHAUSTED
        return True, f"{name} did not improve in the last {self.wait_count} checks (best: {best:.6g})."

    def _improvement_message(self, current: Tensor) -> str:
        return f"{self.monitor} improved to {float(current):.6g}."

    @staticmethod
    def _log_info(trainer: TrainerProtocol, message: str, log_rank_zero_only: bool) -> None:
        """Print a decision."""
        strategy = trainer.strategy
        if strategy.world_size == 1 or strategy.global_rank == 0 or not log_rank_zero_only:
            rank = f"[rank: {strategy.global_rank}] " if strategy.world_size > 1 else ""
            print(f"{rank}EarlyStopping, epoch {trainer.current_epoch}: {message}", flush=True)

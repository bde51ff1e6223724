"""Writing rows of values to loggers."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from camshaft.hooks_core.protocols import Logger, Strategy
from camshaft.loops.metrics.exchange import MetricExchange
from camshaft.loops.metrics.stage_log import StageLog, StepRow
from camshaft.loops.metrics.values import Value, to_floats


class Progress(Protocol):
    """Where training is, read when something is sent to loggers.

    Attributes:
        current_epoch: Index of the training epoch.
        global_step: Number of optimizer updates so far.
    """

    @property
    def current_epoch(self) -> int: ...

    @property
    def global_step(self) -> int: ...


class LoggerRows:
    """Writes rows to loggers, each with the step that it belongs to.

    Args:
        loggers: Where rows are written.
        progress: Where training is.
        strategy: Knows whether this process is the one that writes; None if there is only this one.
    """

    def __init__(self, loggers: Sequence[Logger], progress: Progress, strategy: Strategy | None = None) -> None:
        self.loggers = loggers
        self._progress = progress
        self._strategy = strategy
        self._takes_keywords: dict[type, bool] = {}  # by the logger's class

    @property
    def writes(self) -> bool:
        """Whether this process writes; others do not even look at the values, which might wait for a device."""
        return self._strategy is None or self._strategy.global_rank == 0

    def write(self, values: Mapping[str, Value], *, in_training: bool) -> None:
        """Write values of training or of an epoch, in one transfer: with the epoch, for the latest update's index.

        A value that the module logs as "step" takes the place of that index.
        """
        if not values or not self.writes:
            return
        metrics = dict(zip(values, to_floats(list(values.values())), strict=True))
        if "step" in metrics:
            step = int(metrics.pop("step"))
        else:
            metrics.setdefault("epoch", self._progress.current_epoch)
            # within training, an update's index; outside of it, the number of updates so far
            step = max(self._progress.global_step - in_training, 0)
        self._log(metrics, step)

    def write_steps(self, rows: Sequence[StepRow]) -> None:
        """Write what evaluation batches logged for themselves, in one transfer; the step counts these batches."""
        if not self.writes:
            return
        numbers = iter(to_floats([value for row in rows for value in row.values.values()]))
        for row in rows:
            self._log({name: next(numbers) for name in row.values}, row.step)

    def save(self) -> None:
        """Let loggers write what they hold back."""
        for logger in self.loggers:
            logger.save()

    def _log(self, metrics: Mapping[str, float], step: int) -> None:
        """Call every logger by keyword, or by position those that have other names for the two."""
        for logger in self.loggers:
            takes = self._takes_keywords.get(type(logger))
            if takes is None:
                takes = self._takes_keywords[type(logger)] = takes_keywords(logger.log_metrics)
            if takes:
                logger.log_metrics(metrics=metrics, step=step)
            else:
                logger.log_metrics(metrics, step)


def takes_keywords(log_metrics: Callable[..., Any]) -> bool:
    """Return whether a logger's method takes `metrics` and `step` by these names, as all but loggers of 0.5 do."""
    try:
        inspect.signature(log_metrics).bind(metrics={}, step=0)
    except TypeError:
        return False
    except ValueError:  # no signature can be read
        return True
    return True


class StepSending:
    """Sends what training steps logged last, every so many updates.

    Args:
        rows: Writes to the loggers.
        log_every_n_steps: How many; 0 never sends anything.
        progress: Where training is.

    Attributes:
        every: The same; see `schedule`.
        next_send: The number of updates after which values are sent next; infinite if they are not.
    """

    def __init__(self, rows: LoggerRows, log_every_n_steps: int, progress: Progress) -> None:
        self.next_send: float = math.inf
        self._rows = rows
        self.every = log_every_n_steps
        self._progress = progress

    def schedule(self) -> None:
        """Find out when values are sent next."""
        every = self.every
        self.next_send = (self._progress.global_step // every + 1) * every if every and self._rows.loggers else math.inf

    def send(self, stage: StageLog, exchange: MetricExchange | None) -> None:
        """Send what was logged since the last time. Collective if any process reduces values of steps.

        Args:
            stage: The training epoch.
            exchange: Reaches the other processes; None if there are none.
        """
        self.schedule()
        taken = [
            (entry, value)
            for entry in stage.entries.values()
            if entry.options.on_step and (value := entry.take_step_value()) is not None and entry.options.logger
        ]
        values = {entry.step_name: value for entry, value in taken}
        if exchange is not None:
            values |= exchange.reduce_step([each for each in taken if each[0].options.sync_dist is True])
        self._rows.write(values, in_training=True)

    def state_dict(self) -> dict[str, Any]:
        """The schedule, as plain values."""
        return {
            "log_every_n_steps": self.every,
            "next_send": None if self.next_send == math.inf else self.next_send,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with a schedule, unless there is another one now."""
        is_same = state["log_every_n_steps"] == self.every and self.next_send != math.inf
        if is_same and state["next_send"] is not None:
            self.next_send = state["next_send"]

"""Send rows of values to loggers, each for the step that it belongs to."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from camshaft.hooks_core.protocols import Strategy
from camshaft.loops.metrics.epoch import EpochLog, StepRow
from camshaft.loops.metrics.exchange import MetricExchange
from camshaft.loops.metrics.values import Value, to_floats


class Progress(Protocol):
    """The position of training; `FitLoop.progress` is one.

    Attributes:
        current_epoch: Index of the training epoch.
        global_step: Number of optimizer updates so far.
    """

    @property
    def current_epoch(self) -> int: ...

    @property
    def global_step(self) -> int: ...


class MetricWriter(Protocol):
    """The methods of a logger that the metric log calls."""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None: ...

    def save(self) -> None: ...


class LoggerSender:
    """Sends values of epochs, of evaluation batches, and every so many updates of training steps.

    Args:
        loggers: The loggers.
        every_n_steps: Interval in optimizer updates between values of training steps; 0 never sends them.
        progress: The position of training.
        strategy: Its first process writes; None if there is only one.

    Attributes:
        next_send: Number of updates after which values of training steps are sent next; infinite if never.
    """

    def __init__(
        self, loggers: Sequence[MetricWriter], every_n_steps: int, progress: Progress, strategy: Strategy | None = None
    ) -> None:
        self.loggers = loggers
        self.every_n_steps = every_n_steps
        self.next_send: float = math.inf
        self._progress = progress
        self._strategy = strategy
        self._takes_keywords: dict[type, bool] = {}  # by the logger's class

    @property
    def writes(self) -> bool:
        """True on the process that writes; others do not look at the values, which might wait for a device."""
        return self._strategy is None or self._strategy.global_rank == 0

    def schedule(self) -> None:
        """Set `next_send` to the next multiple of the interval."""
        every = self.every_n_steps
        self.next_send = (self._progress.global_step // every + 1) * every if every and self.loggers else math.inf

    def send_step(self, epoch: EpochLog, exchange: MetricExchange | None) -> None:
        """Send what training steps logged since the last time. Collective if any process reduces values of steps."""
        self.schedule()
        taken = [
            (entry, value)
            for entry in epoch.entries.values()
            if entry.options.on_step and (value := entry.take_step_value()) is not None and entry.options.logger
        ]
        values = {entry.step_name: value for entry, value in taken}
        if exchange is not None:
            values |= exchange.reduce_step([each for each in taken if each[0].options.sync_dist is True])
        self.send(values, in_training=True)

    def send(self, values: Mapping[str, Value], *, in_training: bool) -> None:
        """Send values of training steps or of an epoch, in one transfer.

        Within training they are of the latest update's index, outside of it of the number of updates so far; a value
        that is logged as "step" replaces that.
        """
        if not values or not self.writes:
            return
        metrics = dict(zip(values, to_floats(list(values.values())), strict=True))
        if "step" in metrics:
            step = int(metrics.pop("step"))
        else:
            metrics.setdefault("epoch", self._progress.current_epoch)
            step = max(self._progress.global_step - in_training, 0)
        self._log(metrics, step)

    def send_rows(self, rows: Sequence[StepRow]) -> None:
        """Send values of evaluation batches, in one transfer; their step counts these batches."""
        if not self.writes:
            return
        numbers = iter(to_floats([value for row in rows for value in row.values.values()]))
        for row in rows:
            self._log({name: next(numbers) for name in row.values}, row.step)

    def save(self) -> None:
        """Let loggers write what they buffer."""
        for logger in self.loggers:
            logger.save()

    def _log(self, metrics: Mapping[str, float], step: int) -> None:
        for logger in self.loggers:
            takes = self._takes_keywords.get(type(logger))
            if takes is None:
                takes = self._takes_keywords[type(logger)] = _takes_keywords(logger.log_metrics)
            if takes:
                logger.log_metrics(metrics=metrics, step=step)
            else:
                logger.log_metrics(metrics, step)

    def state_dict(self) -> dict[str, Any]:
        """Return the schedule, as plain values."""
        next_send = None if self.next_send == math.inf else self.next_send
        return {"log_every_n_steps": self.every_n_steps, "next_send": next_send}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue a schedule, unless the interval has changed."""
        is_same = state["log_every_n_steps"] == self.every_n_steps and self.next_send != math.inf
        if is_same and state["next_send"] is not None:
            self.next_send = state["next_send"]


def _takes_keywords(log_metrics: Callable[..., Any]) -> bool:
    """Return whether a logger's method takes `metrics` and `step` by name; loggers of 0.5 take them by position."""
    try:
        inspect.signature(log_metrics).bind(metrics={}, step=0)
    except TypeError:
        return False
    except ValueError:  # no signature can be read
        return True
    return True

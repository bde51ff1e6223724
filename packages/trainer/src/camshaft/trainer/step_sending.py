"""When values of training steps go to the loggers, and which."""

from __future__ import annotations

import math
from typing import Any

from camshaft.trainer.logger_rows import LoggerRows, Progress
from camshaft.trainer.metric_exchange import MetricExchange
from camshaft.trainer.stage_log import StageLog


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

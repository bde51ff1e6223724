"""Schedule and outlet of callbacks that log every `trainer.log_every_n_steps` updates."""

from __future__ import annotations

import math
from typing import Any

from camshaft.callbacks.arguments import InvalidArgumentError
from camshaft.hooks_core.protocols import TrainerProtocol


def check_has_logger(trainer: TrainerProtocol, where: object) -> None:
    """Raise `InvalidArgumentError` if the trainer has no logger for a callback that needs one."""
    if not trainer.loggers:
        rule, action = "set on the trainer, since this callback logs to it", "Pass a logger, or leave the callback out."
        raise InvalidArgumentError("logger", rule, None, where, action)


def log_to_all(trainer: TrainerProtocol, metrics: dict[str, float], step: int) -> None:
    """Log metrics to all loggers of a trainer."""
    for logger in trainer.loggers:
        logger.log_metrics(metrics=metrics, step=step)


def next_row(global_step: int, every: int) -> float:
    """Return how many updates there are when values of steps are logged next; infinite if that is never.

    Args:
        global_step: The updates so far.
        every: The updates between rows; 0 logs none.
    """
    return (global_step // every + 1) * every if every else math.inf


class LoggingSchedule:
    """The updates before which a callback logs: those after which the trainer logs the values of steps.

    Both log with the index of the update, so that their values share a row: with `log_every_n_steps=50` the updates 49,
    99, and so on. Check `trainer.global_step >= schedule.next_step` when a training batch starts; only the first batch
    of an accumulation window is due.

    Attributes:
        next_step: Index of the next update that is due; infinite if there is none.
    """

    def __init__(self) -> None:
        self.next_step: float = math.inf
        self._loaded: tuple[int, int] | None = None

    def start(self, trainer: TrainerProtocol) -> None:
        """Start, or resume, when training starts."""
        every, loaded = trainer.log_every_n_steps, self._loaded
        self._every, self._loaded = every, None
        if loaded is not None and loaded[0] == every:
            self.next_step = loaded[1]
        else:
            self._schedule(trainer.global_step)

    def advance(self, trainer: TrainerProtocol) -> None:
        """Schedule the next update, after logging."""
        self._schedule(trainer.global_step + 1)

    def stop(self) -> None:
        """Stop logging."""
        self.next_step = math.inf

    def state_dict(self) -> dict[str, Any]:
        """Return the next update, and the interval that it was computed for."""
        return {} if self.next_step == math.inf else {"every_n_steps": self._every, "next_step": int(self.next_step)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a schedule; dropped if the trainer has another interval when it starts."""
        self._loaded = (state_dict["every_n_steps"], state_dict["next_step"]) if state_dict else None

    def _schedule(self, step: int) -> None:
        self.next_step = next_row(step, self._every) - 1

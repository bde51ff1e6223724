"""Measuring how long the stages take, and ending training in time."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar

from camshaft.callbacks.arguments import InvalidArgumentError
from camshaft.hooks_core import Callback
from camshaft.hooks_core.messages import must_be

if TYPE_CHECKING:
    from camshaft.hooks_core.protocols import TrainerProtocol

_STAGES = ("train", "validate", "test", "predict")


class Timer(Callback):
    """Measures the stages, and stops training once it has taken a given time, over all of its resumed parts.

    The clock of rank 0 decides: it sets `trainer.should_stop`, which the loops of all ranks agree upon.

    Args:
        duration: How long training may take: "DD:HH:MM:SS", a `timedelta`, or a dictionary of its arguments such as
            `{"hours": 2}`. None only measures.
        interval: "step" stops after the batch, "epoch" after the epoch in which the time was over.
        verbose: Whether rank 0 prints that it stops training.

    Attributes:
        stopping_reason: Why it stopped training, in words; None if it did not.

    Raises:
        TypeError, InvalidArgumentError: If `duration` is no duration, or not above zero.
        InvalidArgumentError: If `interval` is neither of the two.
    """

    _uncalled_methods: ClassVar[Mapping[str, str]] = {
        "_check_time_remaining": "Set `trainer.should_stop` in `on_train_batch_end`.",
        "start_time": "Override `time_elapsed`.",
        "end_time": "Override `time_elapsed`.",
    }

    def __init__(
        self,
        duration: str | timedelta | Mapping[str, float] | None = None,
        interval: str = "step",
        verbose: bool = True,
    ) -> None:
        if interval not in ("step", "epoch"):
            raise InvalidArgumentError("interval", "'step' or 'epoch'", interval, "Timer", "Pass one of these.")
        self.interval = interval
        self.verbose = verbose
        self.stopping_reason: str | None = None
        self._duration_seconds = None if duration is None else _to_seconds(duration)
        self._earlier_seconds = dict.fromkeys(_STAGES, 0.0)  # of what has ended, also in runs that were saved
        self._started: dict[str, float] = {}
        self._ended: dict[str, float] = {}
        self._running: set[str] = set()
        self._deadline = math.inf
        if duration is not None and interval == "step":  # as a hook it costs each batch a call
            self.on_train_batch_end = self._after_batch  # type: ignore[method-assign]

    @property
    def state_key(self) -> str:
        """Class name and interval: two of these in one trainer keep their memory apart."""
        return f"{type(self).__qualname__}(interval={self.interval!r})"

    def start_time(self, stage: str = "train") -> float | None:
        """When the stage last started, in seconds of `time.monotonic`; None if it has not."""
        return self._started.get(_checked(stage))

    def end_time(self, stage: str = "train") -> float | None:
        """When the stage last ended, in seconds of `time.monotonic`; None if it has not."""
        return self._ended.get(_checked(stage))

    def time_elapsed(self, stage: str = "train") -> float:
        """How long the stage has taken so far, in seconds, all of its times together; training with its validation."""
        running = monotonic() - self._started[stage] if _checked(stage) in self._running else 0.0
        return self._earlier_seconds[stage] + running

    def time_remaining(self, stage: str = "train") -> float | None:
        """How much of `duration` the stage has left, in seconds; None without one."""
        return None if self._duration_seconds is None else self._duration_seconds - self.time_elapsed(stage)

    def on_train_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Start the clock; if the time was over when training was saved, stop again."""
        self._start("train")
        self._deadline = math.inf
        if self._duration_seconds is not None and trainer.is_global_zero:
            self._deadline = monotonic() + self._duration_seconds - self.time_elapsed()
            self._stop_if_due(trainer)

    def on_train_epoch_end(self, trainer: TrainerProtocol, module: Any) -> None:
        """Stop training if its time is over."""
        self._stop_if_due(trainer)

    def on_train_end(self, trainer: TrainerProtocol, module: Any) -> None:
        """Stop the clock."""
        self._end("train")

    def on_validation_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Start the clock, but not for the sanity check."""
        if not trainer.sanity_checking:
            self._start("validate")

    def on_validation_end(self, trainer: TrainerProtocol, module: Any) -> None:
        """Stop the clock."""
        self._end("validate")

    def on_test_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Start the clock."""
        self._start("test")

    def on_test_end(self, trainer: TrainerProtocol, module: Any) -> None:
        """Stop the clock."""
        self._end("test")

    def on_predict_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Start the clock."""
        self._start("predict")

    def on_predict_end(self, trainer: TrainerProtocol, module: Any) -> None:
        """Stop the clock."""
        self._end("predict")

    def teardown(self, trainer: TrainerProtocol, module: Any, stage: str) -> None:
        """Stop the clocks that an error has left running."""
        for running in list(self._running):
            self._end(running)

    def state_dict(self) -> dict[str, Any]:
        """How long each stage has taken, in seconds."""
        return {"time_elapsed": {stage: self.time_elapsed(stage) for stage in _STAGES}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on measuring where `state_dict` was taken; the constructor's arguments stay as they are."""
        self._earlier_seconds = dict.fromkeys(_STAGES, 0.0) | state_dict["time_elapsed"]

    def _start(self, stage: str) -> None:
        self._started[stage] = monotonic()
        self._running.add(stage)

    def _end(self, stage: str) -> None:
        if stage in self._running:
            self._ended[stage] = monotonic()
            self._earlier_seconds[stage] += self._ended[stage] - self._started[stage]
            self._running.remove(stage)

    def _after_batch(self, trainer: TrainerProtocol, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if monotonic() >= self._deadline:
            self._stop_if_due(trainer)

    def _stop_if_due(self, trainer: TrainerProtocol) -> None:
        if monotonic() < self._deadline:
            return
        self._deadline = math.inf
        trainer.should_stop = True
        elapsed = timedelta(seconds=int(self.time_elapsed()))
        self.stopping_reason = f"training has taken {elapsed}, all of the time that it may."
        if self.verbose:
            print(f"Timer, epoch {trainer.current_epoch}: {self.stopping_reason}", flush=True)


def _checked(stage: str) -> str:
    if stage not in _STAGES:
        raise InvalidArgumentError("stage", f"one of {', '.join(_STAGES)}", stage, "Timer", "Pass one of these.")
    return stage


def _to_seconds(duration: Any) -> float:
    rule = 'a text "DD:HH:MM:SS", a timedelta, a dictionary of its arguments, or None'
    action = 'Pass for instance "00:02:30:00" for two and a half hours.'
    try:
        if isinstance(duration, str):
            numbers = re.fullmatch(r"(\d+):(\d\d):(\d\d):(\d\d)", duration.strip())
            if numbers is None:
                raise InvalidArgumentError("duration", rule, duration, "Timer", action)
            parts = zip(("days", "hours", "minutes", "seconds"), map(int, numbers.groups()), strict=True)
            length = timedelta(**dict(parts))
        else:
            length = timedelta(**duration) if isinstance(duration, Mapping) else duration
    except (TypeError, OverflowError) as error:
        raise InvalidArgumentError("duration", rule, duration, "Timer", action) from error
    if not isinstance(length, timedelta):
        raise TypeError(must_be("duration", rule, duration, "Timer", action))
    if length <= timedelta(0):
        raise InvalidArgumentError("duration", "longer than no time", duration, "Timer", action)
    return length.total_seconds()

"""Callback that measures the stages, and stops training when time is up."""

import math
import re
from collections.abc import Mapping
from datetime import timedelta
from time import monotonic
from typing import Any

import attrs

from camshaft.callbacks.arguments import STAGES, InvalidArgumentError, check_one_of
from camshaft.hooks_core import Callback
from camshaft.hooks_core.protocols import TrainerProtocol
from camshaft.hooks_core.support.messages import must_be


@attrs.define(slots=False, eq=False, repr=False)
class Timer(Callback):
    """Measures the duration of stages, and stops training after a given time, counted over resumed runs.

    The duration of training is the sum of all fits, and that of another stage is of its latest pass.

    The clock of rank 0 decides: it sets `trainer.should_stop`, which all ranks agree on.

    Args:
        duration: Time for training: "DD:HH:MM:SS", a `timedelta`, or a dictionary of its arguments such as
            `{"hours": 2}`. None only measures; zero stops before the first batch, or as soon as `min_steps` and
            `min_epochs` allow.
        interval: "step" stops after the batch, "epoch" after the epoch, in which the time is up.
        verbose: Whether rank 0 prints that it stops training.

    Attributes:
        stopping_reason_message: Why it stopped training, in words; None if it did not.

    Raises:
        TypeError, InvalidArgumentError: If `duration` is no duration, or negative.
        InvalidArgumentError: If `interval` is neither of the two.
    """

    only_observes = True

    _duration: str | timedelta | Mapping[str, float] | None = None
    interval: str = "step"
    verbose: bool = True
    stopping_reason_message: str | None = attrs.field(default=None, init=False)
    # of passes that have ended, also before a resume
    _past_seconds: dict[str, float] = attrs.field(factory=lambda: dict.fromkeys(STAGES, 0.0), init=False)
    _started: dict[str, float] = attrs.field(factory=dict, init=False)
    _ended: dict[str, float] = attrs.field(factory=dict, init=False)
    _running: set[str] = attrs.field(factory=set, init=False)
    _deadline: float = attrs.field(default=math.inf, init=False)

    def __attrs_post_init__(self) -> None:
        super().__init__()
        check_one_of("Timer", ("step", "epoch"), interval=self.interval)
        self._duration_seconds = None if self._duration is None else _to_seconds(self._duration)
        if self._duration is not None and self.interval == "step":  # only then: a hook costs a call for each batch
            self.on_train_batch_end = self._after_batch  # type: ignore[method-assign]

    @property
    def state_key(self) -> str:
        """Class name and interval, which tell the states of two timers apart."""
        return f"{type(self).__qualname__}(interval={self.interval!r})"

    def start_time(self, stage: str = "train") -> float | None:
        """Return when the stage last started, in seconds of `time.monotonic`; None if it has not."""
        return self._started.get(_check_stage(stage))

    def end_time(self, stage: str = "train") -> float | None:
        """Return when the stage last ended, in seconds of `time.monotonic`; None if it has not."""
        return self._ended.get(_check_stage(stage))

    def time_elapsed(self, stage: str = "train") -> float:
        """Return the duration of the stage's latest pass so far, in seconds.

        Of training that of all fits, also before a resume, with their validation.
        """
        running = monotonic() - self._started[stage] if _check_stage(stage) in self._running else 0.0
        return self._past_seconds[stage] + running

    def time_remaining(self, stage: str = "train") -> float | None:
        """Return the rest of `duration` for the stage, in seconds; None without `duration`."""
        return None if self._duration_seconds is None else self._duration_seconds - self.time_elapsed(stage)

    def on_train_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Start the clock; stop at once if the time was already up when training was saved."""
        self._start("train")
        self._deadline = math.inf
        if self._duration_seconds is not None and trainer.is_global_zero:
            self._deadline = monotonic() + self._duration_seconds - self.time_elapsed()
            self._stop_if_due(trainer)

    def on_train_epoch_end(self, trainer: TrainerProtocol, module: Any) -> None:
        """Stop training if its time is up."""
        self._stop_if_due(trainer)

    def on_train_end(self, trainer: TrainerProtocol, module: Any) -> None:
        """Stop the clock."""
        self._end("train")

    def on_validation_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Start the clock, except in the sanity check."""
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
        """Stop the clocks that an error left running."""
        for running in list(self._running):
            self._end(running)

    def state_dict(self) -> dict[str, Any]:
        """Return the duration of each stage, in seconds."""
        return {"time_elapsed": {stage: self.time_elapsed(stage) for stage in STAGES}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the durations; the constructor's arguments stay as they are."""
        self._past_seconds = dict.fromkeys(STAGES, 0.0) | state_dict["time_elapsed"]

    def _start(self, stage: str) -> None:
        if stage != "train":
            self._past_seconds[stage] = 0.0
        self._started[stage] = monotonic()
        self._running.add(stage)

    def _end(self, stage: str) -> None:
        if stage in self._running:
            self._ended[stage] = monotonic()
            self._past_seconds[stage] += self._ended[stage] - self._started[stage]
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
        self.stopping_reason_message = f"training has taken {elapsed}, the whole of `duration`."
        if self.verbose:
            print(f"Timer, epoch {trainer.current_epoch}: {self.stopping_reason_message}", flush=True)


def _check_stage(stage: str) -> str:
    check_one_of("Timer", STAGES, stage=stage)
    return stage


def _to_seconds(duration: Any) -> float:
    rule = 'a "DD:HH:MM:SS" string, a timedelta, a dictionary of its arguments, or None'
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
    if length < timedelta(0):
        raise InvalidArgumentError("duration", "0 seconds or more", duration, "Timer", action)
    return length.total_seconds()

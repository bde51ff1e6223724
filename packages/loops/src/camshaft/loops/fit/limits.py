"""Limits of a fit, and the rules that stop it, agreed upon by all processes."""

from __future__ import annotations

import copy
import re
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import attrs
import torch

from camshaft.hooks_core.dispatch.implementation import mentions_method
from camshaft.hooks_core.protocols import Strategy
from camshaft.hooks_core.support.messages import must_be, warn_user
from camshaft.loops.state.progress import FitProgress
from camshaft.loops.state.run import Run, SaveRequest
from camshaft.loops.validators import WHERE, batch_limit, integer

DEFAULT_MAX_EPOCHS = 1000

_DURATION = 'a string "DD:HH:MM:SS", a timedelta, a dictionary of its arguments, or None'
_UNITS = ("days", "hours", "minutes", "seconds")


def to_seconds(max_time: Any, where: str, field: str = "max_time") -> float | None:
    """Return a duration in seconds.

    Args:
        max_time: "DD:HH:MM:SS", a `timedelta`, a dictionary such as {"hours": 2}, or None for no limit.
        where: Name of the object that was given it, for errors.
        field: Name of the argument, for errors.

    Raises:
        TypeError, ValueError: If it is none of these, or not above 0.
    """
    if max_time is None:
        return None
    duration, action = max_time, 'Pass for instance "00:02:30:00" for two and a half hours.'
    try:
        if isinstance(duration, str):
            found = re.fullmatch(r"(\d+):(\d\d):(\d\d):(\d\d)", duration.strip())
            duration = dict(zip(_UNITS, map(int, found.groups() if found else ()), strict=True))
        if isinstance(duration, Mapping):
            duration = timedelta(**duration)
        is_positive = duration > timedelta(0)
    except (TypeError, ValueError, OverflowError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(must_be(field, _DURATION, max_time, where, action)) from error
    if not is_positive:
        raise ValueError(must_be(field, "positive", max_time, where, action))
    return float(duration.total_seconds())


def _is_duration(instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    to_seconds(value, WHERE)


def _is_interval(instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    """Take a number of batches, a share of an epoch or a duration, as a validator."""
    if isinstance(value, (str, timedelta, Mapping)):
        to_seconds(value, WHERE, attribute.name)
        return
    batch_limit(instance, attribute, value)
    if value == 0:
        action = "To train without validation, pass limit_val_batches=0."
        raise ValueError(must_be(attribute.name, "above 0", value, WHERE, action))


def _whole_if_none(value: Any) -> Any:
    return 1.0 if value is None else value


def _two_if_none(value: int | None) -> int:
    return 2 if value is None else value


@attrs.frozen(kw_only=True)
class FitLimits:
    """Limits of a fit: how long to train, how much of the data to take, how often to validate.

    Args:
        max_epochs: Maximum number of epochs; -1 for no limit. None means 1000, or no limit if `max_steps` or
            `max_time` sets one.
        min_epochs: Minimum number of epochs; `should_stop` does not count before.
        max_steps: Maximum number of updates; -1 for no limit. It is checked after every batch: the batch that reaches
            it is finished, and if it is split, its other splits make updates beyond the limit.
        min_steps: Minimum number of updates; `should_stop` does not count before.
        max_time: Maximum training time: "DD:HH:MM:SS", a `timedelta` or a dictionary of its arguments; None for no
            limit. Resumed parts count. Training stops after the batch, but not before `min_epochs` and `min_steps`.
        limit_train_batches: Training batches per epoch: an int is a number, a float a share. None means 1.0.
        overfit_batches: The same batches in every epoch: if not 0, this part of the training data is taken instead of
            `limit_train_batches`, without shuffling, and validation takes as much of its loaders. Streams, and loaders
            that are no `DataLoader`, are taken as they come.
        val_check_interval: Interval of validation: a float is a share of an epoch, an int a number of batches; a
            duration, in a form of `max_time`, is the time from the start of training or the end of a validation to the
            next one, which runs after a batch of an epoch that has validation. None means 1.0.
        check_val_every_n_epoch: Epochs between validations; None counts `val_check_interval` (an int or a duration
            then) across epochs.
        num_sanity_val_steps: Validation batches before training: so many of each loader are tried; -1 tries all. None
            means 2.
        reload_dataloaders_every_n_epochs: Epochs between reloads of the data: the training loader, and before a
            validation those of validation, are requested again; 0 requests them once. Loaders that were passed are
            kept.
        agree_every_n_batches: Batches between agreements; several processes then agree on stopping. None agrees a few
            times per second. Fewer let a `should_stop` within an epoch take effect sooner.

    Raises:
        TypeError, ValueError: If a number is of the wrong type or out of range, or two contradict each other.
    """

    max_epochs: int | None = attrs.field(default=None, validator=integer(-1, optional=True))
    min_epochs: int | None = attrs.field(default=None, validator=integer(0, optional=True))
    max_steps: int = attrs.field(default=-1, validator=integer(-1))
    min_steps: int | None = attrs.field(default=None, validator=integer(0, optional=True))
    max_time: Any = attrs.field(default=None, validator=_is_duration)
    limit_train_batches: int | float = attrs.field(default=1.0, converter=_whole_if_none, validator=batch_limit)
    overfit_batches: int | float = attrs.field(default=0.0, validator=batch_limit)
    val_check_interval: Any = attrs.field(default=1.0, converter=_whole_if_none, validator=_is_interval)
    check_val_every_n_epoch: int | None = attrs.field(default=1, validator=integer(1, optional=True))
    num_sanity_val_steps: int = attrs.field(default=2, converter=_two_if_none, validator=integer(-1))
    reload_dataloaders_every_n_epochs: int = attrs.field(default=0, validator=integer(0))
    agree_every_n_batches: int | None = attrs.field(default=None, validator=integer(1, optional=True))

    def __attrs_post_init__(self) -> None:
        self.check_together()

    @property
    def max_seconds(self) -> float | None:
        """The time limit in seconds; None if there is none."""
        return to_seconds(self.max_time, WHERE)

    @property
    def validation_seconds(self) -> float | None:
        """The time between validations in seconds; None where batches are counted."""
        interval = self.val_check_interval
        return None if isinstance(interval, (int, float)) else to_seconds(interval, WHERE, "val_check_interval")

    def with_number(self, name: str, value: Any) -> FitLimits:
        """Return a copy with one limit changed, which may contradict another until `check_together` is called.

        So several can be changed one after the other.

        Args:
            name: Name of the limit.
            value: Its new value.

        Raises:
            TypeError, ValueError: If the number is of the wrong type or out of range.
        """
        changed = copy.copy(self)
        object.__setattr__(changed, name, value)
        attrs.validate(changed)
        return changed

    def check_together(self) -> None:
        """Raise `TypeError` or `ValueError` if two of the numbers contradict each other; warn of one that is unused."""
        if self.overfit_batches and self.limit_train_batches not in (1.0, self.overfit_batches):
            warn_user(
                f"`overfit_batches={self.overfit_batches}` takes the place of "
                f"`limit_train_batches={self.limit_train_batches}`. Leave one of them out."
            )
        pairs = ("epochs", self.min_epochs, self.epoch_limit), ("steps", self.min_steps, self.step_limit)
        for what, minimum, maximum in pairs:
            if minimum is not None and minimum > maximum:
                rule = f"at most max_{what} ({maximum})"
                raise ValueError(must_be(f"min_{what}", rule, minimum, WHERE, "Pass a smaller one."))
        if self.check_val_every_n_epoch is None and isinstance(self.val_check_interval, float):
            rule = "an int or a duration if check_val_every_n_epoch is None, since it counts across epochs"
            raise TypeError(must_be("val_check_interval", rule, self.val_check_interval, WHERE, "Pass one of these."))

    @property
    def train_limit(self) -> tuple[int | float, str]:
        """The part of a training epoch to take, and the name of the argument that sets it."""
        if self.overfit_batches:
            return self.overfit_batches, "overfit_batches"
        return self.limit_train_batches, "limit_train_batches"

    @property
    def epoch_limit(self) -> float:
        """The largest number of epochs."""
        if self.max_epochs is None:
            has_other_limit = self.max_steps != -1 or self.max_time is not None
            return float("inf") if has_other_limit else DEFAULT_MAX_EPOCHS
        return float("inf") if self.max_epochs == -1 else self.max_epochs

    @property
    def step_limit(self) -> float:
        """The largest number of updates."""
        return float("inf") if self.max_steps == -1 else self.max_steps

    def validates_in(self, epoch: int) -> bool:
        """Return whether validation may be due in an epoch."""
        return self.check_val_every_n_epoch is None or (epoch + 1) % self.check_val_every_n_epoch == 0

    def batches_between_validations(self, num_batches: int | float) -> int | float:
        """Return the number of batches between validations; infinity stands for the end of the epoch.

        Raises:
            ValueError: If the interval is longer than an epoch, or a share of an epoch of unknown length.
        """
        interval = self.val_check_interval
        if not isinstance(interval, (int, float)):
            return float("inf")  # time counts
        action = "Pass an int."
        if isinstance(interval, int):
            if self.check_val_every_n_epoch is None or interval <= num_batches:
                return interval
            rule = f"at most the epoch's {num_batches} batches"
            action = "Pass a smaller one, or check_val_every_n_epoch=None to count batches across epochs."
        elif interval == 1.0:
            return float("inf")
        elif num_batches == float("inf"):
            rule = "1.0 or an int for a loader of unknown length"
        else:
            return max(1, int(num_batches * interval + 1e-9))  # 0.29 * 100 is a little less than 29
        raise ValueError(must_be("val_check_interval", rule, interval, WHERE, action))


@attrs.define(eq=False, repr=False, on_setattr=[])
class StoppingRules:
    """Decides when training ends: at a limit, or on request unless a minimum forbids it.

    Args:
        limits: Limits of the fit.
        progress: The counters of the fit, and this process's request to stop.

    Attributes:
        step_limit: The largest number of updates.
        max_seconds: The time limit in seconds; None if there is none.
        agreement: The common decisions of several processes; None with one process, and while nothing is trained.
        is_preempted: Whether training is to end as soon as it can, whatever the minimum.
        reason: The reason why the latest fit ended; None after an error, and while it runs.
        validation_seconds: The time between validations, where that decides on the next one; else None.
    """

    limits: FitLimits
    progress: FitProgress
    step_limit: float = attrs.field(init=False)
    max_seconds: float | None = attrs.field(init=False)
    agreement: Agreement | None = attrs.field(default=None, init=False)
    is_preempted: bool = attrs.field(default=False, init=False)
    reason: str | None = attrs.field(default=None, init=False)
    validation_seconds: float | None = attrs.field(default=None, init=False)
    _validated_at: float = attrs.field(default=0.0, init=False)
    _began_at: float | None = attrs.field(default=None, init=False)  # less the time of previous parts
    _run: Run | None = attrs.field(default=None, init=False)
    _step_of_epoch: int | None = attrs.field(default=None, init=False)
    _has_warned: bool = attrs.field(default=False, init=False)  # of an epoch without an update

    def __attrs_post_init__(self) -> None:
        self.follow(self.limits)

    def follow(self, limits: FitLimits) -> None:
        """Apply other limits from now on."""
        self.limits = limits
        # read after every batch: kept as numbers, since the properties of the limits compute them
        self.step_limit, self.max_seconds = limits.step_limit, limits.max_seconds

    def reset(self) -> None:
        """Forget requests to stop of previous runs."""
        self.progress.should_stop = self.is_preempted = False
        self.reason = None

    def begin(self, run: Run) -> None:
        """Start to decide for a run, together with its other processes."""
        self._run = run
        if run.strategy.world_size > 1:
            self.agreement = Agreement(run.strategy, self.progress, self.limits.agree_every_n_batches)
        run.on_preempt = self._preempt
        if run.preempt_path is not None:
            self._preempt(run.preempt_path)

    def end(self) -> None:
        """Stop the clock, and note the reason for the end."""
        self.note_time()
        self.reason = self._reason_to_end()
        if self._run is not None:
            self._run.on_preempt = None
        self._began_at = self.agreement = self._run = self.validation_seconds = None

    def start_clock(self) -> None:
        """Start to measure the time of training, on top of that of previous parts."""
        self._began_at = time.monotonic() - self.progress.elapsed_seconds

    def start_validation_clock(self) -> None:
        """Start to measure the time until the first validation, if time decides on it."""
        self.validation_seconds = self.limits.validation_seconds
        self.note_validation()

    def note_validation(self) -> None:
        """Measure the time until the next validation from now on."""
        self._validated_at = time.monotonic()

    def note_time(self) -> None:
        """Write the elapsed time into the progress."""
        if self._began_at is not None:
            self.progress.elapsed_seconds = time.monotonic() - self._began_at

    def time_is_over(self) -> bool:
        """Return whether the time limit is reached."""
        self.note_time()
        return self.max_seconds is not None and self.progress.elapsed_seconds >= self.max_seconds

    def agree(self, *, waits: bool = True) -> None:
        """Agree on one decision with the other processes, if there are any; see `Agreement.hold`. Collective."""
        if self.agreement is None or self._run is None:
            return
        path = self.agreement.hold(self._is_validation_late(), waits=waits)
        if path is not None:
            self._stop_for_preemption(self._run, path)

    def is_time_to_validate(self) -> bool:
        """Return whether the time between validations is over; several processes say what they last agreed upon."""
        return self._is_validation_late() if self.agreement is None else self.agreement.is_time_to_validate

    def _is_validation_late(self) -> bool:
        seconds = self.validation_seconds
        return seconds is not None and time.monotonic() - self._validated_at >= seconds

    def save(self) -> bool:
        """Write the requested checkpoints, and agree anew where there were any. Collective.

        Returns:
            Whether training is to end here, because a preemption was requested while they were written.
        """
        run = self._run
        assert run is not None
        while run.save_requests:
            run.save_point()
            self.agree()
        return self.is_preempted

    @property
    def stop_requests(self) -> FitProgress | Agreement:
        """The object whose `should_stop` counts, the progress of one process or the agreement of several."""
        return self.progress if self.agreement is None else self.agreement

    def may_stop(self) -> bool:
        """Return whether the minima allow `should_stop` to take effect."""
        epochs, steps = self.limits.min_epochs, self.limits.min_steps
        return self.is_preempted or (
            (epochs is None or self.progress.current_epoch >= epochs)
            and (steps is None or self.progress.global_step >= steps)
        )

    def is_done(self) -> bool:
        """Return whether training is over: no further epoch is to begin."""
        progress, limits = self.progress, self.limits
        return (
            progress.current_epoch >= limits.epoch_limit
            or progress.global_step >= limits.step_limit
            or (self.stop_requests.should_stop and self.may_stop())
        )

    def start_epoch(self, *, is_new: bool) -> None:
        """Remember the step at which an epoch begins; it is unknown for one that goes on after a resume."""
        self._step_of_epoch = self.progress.global_step if is_new else None

    def check_updates(self, run: Run, *, may_update: bool) -> None:
        """Check, after an epoch with batches, that updates are made, and that something can end the run.

        Limits of epochs and of time end it, and so may `should_stop` where the module, its data module or a callback
        uses it. All else needs updates. (Those that overflowed are none, but the next may be.) The first epoch without
        any warns where there is no reason to expect none.

        Args:
            run: The run.
            may_update: Whether losses were differentiated, or there is nothing to update.

        Raises:
            RuntimeError: If nothing can end the run, and no update was made.
        """
        limits, progress = self.limits, self.progress
        if progress.global_step != self._step_of_epoch or run.strategy.has_skipped_step:
            return
        does, did, action = "return a loss", "returned no loss", "Return a loss"
        if not getattr(run.module, "automatic_optimization", True):
            does, did, action = "step an optimizer", "stepped no optimizer", "Step one of `self.optimizers()`"
        if (
            limits.epoch_limit != float("inf")
            or self.is_done()
            or self.max_seconds is not None
            or any(mentions_method(type(one).__mro__, "should_stop") for one in (run.module, run.data, *run.callbacks))
        ):
            if not (may_update or self._has_warned):
                warn_user(
                    f"No update was made in epoch {progress.current_epoch - 1}: `{type(run.module).__qualname__}."
                    f"training_step` {did} in any batch. {action} in some."
                )
            self._has_warned = True
            return
        raise RuntimeError(
            f"`training_step` must {does} in some batch of each epoch, where nothing else can end training "
            f"(max_epochs={limits.max_epochs}, max_steps={limits.max_steps}), but got no update in epoch "
            f"{progress.current_epoch - 1} in {type(run.module).__qualname__}. {action}, or pass max_epochs or "
            "max_time."
        )

    def _reason_to_end(self) -> str | None:
        progress, limits = self.progress, self.limits
        if self.is_preempted:
            return "preempted"
        if progress.current_epoch >= limits.epoch_limit:
            return f"max_epochs={int(limits.epoch_limit)} reached"
        if progress.global_step >= limits.step_limit:
            return f"max_steps={limits.max_steps} reached"
        if self.time_is_over():
            return f"max_time={limits.max_time} is over"
        return "should_stop was set" if self.stop_requests.should_stop else None

    def _preempt(self, path: str) -> None:
        """Carry out `Run.preempt`."""
        assert self._run is not None
        if self.agreement is not None:
            self.agreement.preempt_path = path
        else:
            self._stop_for_preemption(self._run, path)
        self.progress.should_stop = True

    def _stop_for_preemption(self, run: Run, path: str) -> None:
        self.is_preempted = True
        run.save_requests.append(SaveRequest(path))  # a signal may come while one is written


_LARGEST_INTERVAL = 1000  # batches


class Agreement:
    """A common decision of all processes: training stops everywhere if one of them requests it.

    The processes ask each other in rounds, which take one small reduction each: at fixed moments such as an epoch's
    end, and while batches run after so many of them that a round comes about four times per second. So a decision that
    one process takes by itself, as after a signal, holds a moment later for all of them.

    Between fixed moments no process waits for a round: it takes the outcome where it begins the next one, which is
    after the same batch for all. A round takes about half a millisecond per process (a ring), so rounds are rarer with
    many: `seconds_between_rounds`. A strategy without `start_max`, and an interval that was given, wait for each round,
    so that its outcome holds at once.

    Args:
        strategy: Connects the processes.
        progress: Holds the request of this process: `should_stop`.
        every_n_batches: Batches between two rounds; None chooses it by the time of a batch, in all processes alike.

    Attributes:
        should_stop: Whether training is to stop, as agreed upon in the latest round.
        preempt_path: File of the checkpoint that this process requests before training stops; None without a request.
        is_time_to_validate: Whether the time between validations was over for any process in the latest round.
    """

    def __init__(self, strategy: Strategy, progress: FitProgress, every_n_batches: int | None = None) -> None:
        self.should_stop = self.is_time_to_validate = False
        self.preempt_path: str | None = None
        self._strategy = strategy
        self._progress = progress
        self._every_n_batches = every_n_batches
        self._interval = every_n_batches or 1
        self._num_left = self._interval
        self._time = time.perf_counter()
        start_max = getattr(strategy, "start_max", None)
        self._start_max: Callable[[list[int]], Callable[[], list[int]]] = start_max or self._max_at_once
        self._waits = start_max is None or every_n_batches is not None
        # The round under way: what gives its outcome, and the path that this process asked for in it.
        self._round: tuple[Callable[[], list[int]], str | None] | None = None

    def is_due(self) -> bool:
        """Count a batch. Returns whether a round is due after it, in all processes alike."""
        self._num_left -= 1
        return self._num_left <= 0

    def hold(self, is_time_to_validate: bool = False, *, waits: bool = True) -> str | None:
        """Take the outcome of the round under way, if any, and hold another. Collective.

        Args:
            is_time_to_validate: Whether the time between validations is over for this process.
            waits: Whether to wait for the outcome of this round, too, rather than to leave it under way.

        Returns:
            The file to save to before all processes stop, or None.
        """
        interval = self._next_interval()
        path = self._finish()
        self._begin(interval, is_time_to_validate)
        if waits or self._waits:
            path = self._finish(path)
        self._time = time.perf_counter()
        return path

    def _begin(self, interval: int, is_time_to_validate: bool) -> None:
        # A signal may come between any two lines: `_preempt` stores the path first, so the path is read last, and what
        # was requested since then is kept for the next round.
        should_stop = self._progress.should_stop
        path = self.preempt_path
        wants = [int(should_stop or path is not None), int(path is not None), -interval, int(is_time_to_validate)]
        self._round = self._start_max(wants), path
        self._num_left = self._interval

    def _finish(self, known: str | None = None) -> str | None:
        """Take the outcome of the round under way. Returns the file to save to; the one that is known comes first."""
        if self._round is None:
            return known
        (outcome, path), self._round = self._round, None
        stops, preempts, interval, is_time_to_validate = outcome()
        self.should_stop = bool(stops)
        if self.should_stop:
            self._progress.should_stop = True
        self._interval = self._num_left = -interval
        self.is_time_to_validate = bool(is_time_to_validate)
        if not preempts:
            return known
        paths = self._strategy.all_gather(path)
        if self.preempt_path is path:
            self.preempt_path = None
        return known or next(path for path in paths if path is not None)

    def _max_at_once(self, values: list[int]) -> Callable[[], list[int]]:
        agreed: list[int] = self._strategy.reduce(torch.tensor(values, dtype=torch.int64), "max").tolist()
        return lambda: agreed

    def _next_interval(self) -> int:
        """Return the number of batches until the next round that suits this process."""
        num_batches = self._interval - self._num_left
        if self._every_n_batches is not None or num_batches <= 0:
            return self._interval
        seconds = (time.perf_counter() - self._time) / num_batches
        fitting = int(seconds_between_rounds(self._strategy.world_size) / max(seconds, 1e-9))
        return max(1, min(fitting, 4 * self._interval, _LARGEST_INTERVAL))


def seconds_between_rounds(num_processes: int) -> float:
    """Return the seconds from one round of agreement to the next: 0.25 for few processes, 4.25 for 1,024."""
    return 0.25 + num_processes / 256


def check_equal_arguments(arguments: Mapping[str, Any], strategy: Strategy, where: str) -> None:
    """Compare the arguments of all processes, if there are several. Collective.

    Args:
        arguments: This process's, by name: plain values.
        strategy: Connects the processes.
        where: Name of the verb, for the error.

    Raises:
        ValueError: On every process, if one was given other arguments than the first.
    """
    if strategy.world_size == 1:
        return
    of_ranks = strategy.all_gather(dict(arguments))
    for rank, of_rank in enumerate(of_ranks):
        for name, expected in of_ranks[0].items():
            if repr(of_rank[name]) != repr(expected):  # a share of 1.0 is not one batch
                rule, action = f"{expected!r}, as on rank 0", "Give every process the same arguments."
                raise ValueError(must_be(name, rule, of_rank[name], f"{where} on rank {rank}", action))

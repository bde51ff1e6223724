"""The entries of one epoch of a stage, what each reader gets of them, and when loggers get it."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import compress
from typing import Any, Literal, NamedTuple, Protocol

import attrs

from camshaft.hooks_core.protocols import Moment, Strategy
from camshaft.hooks_core.support.messages import warn_user
from camshaft.loops.metrics.entry import Asked, Entry, Key, LogOptions, MetricEntry
from camshaft.loops.metrics.values import Value, is_metric, join_reductions, log_error, to_floats

Reader = Literal["to_callbacks", "to_loggers", "to_progress_bars"]

StepRow = tuple[int, dict[Entry, Value]]
"""The values that one evaluation batch logged; the number of previous batches of its loader that logged anything."""


class EntryValue(NamedTuple):
    """The present value of an entry: of its latest step, or of its epoch so far."""

    entry: Entry
    value: Value
    of_epoch: bool

    @property
    def name(self) -> str:
        """The name under which loggers and progress bars get it."""
        return self.entry.epoch_name if self.of_epoch else self.entry.step_name


@attrs.define(eq=False, repr=False)
class EpochLog:
    """Entries of one epoch of a stage.

    Args:
        stage: "train", "validate" or "test"; "" where nothing is logged.
        num_dataloaders: Number of loaders; with several, each has entries of its own.
        sends_steps: Whether evaluation batches are sent to loggers.
        is_shared: Whether other processes log to the same epoch.
        num_steps: Number of batches of each loader that logged in previous epochs.
        takes_options: Whether a call for a known name may have other options, which count from there on.

    Attributes:
        entries: Entries in the order in which they began: of one name in several hooks the later value is the epoch's.
        latest: Entries by name alone: those of the hook and loader that logged last.
        latest_for: The moment and loader for which `latest` holds, where several logical ranks log in turn.
        step_rows: Values of evaluation batches that are still to be sent.
        held_rows: Those that are reduced over processes when the epoch ends, as numbers.
        reduced: The epoch's values of all processes; None before they are reduced.
    """

    stage: str = ""
    num_dataloaders: int = 1
    sends_steps: bool = attrs.field(default=False, kw_only=True)
    is_shared: bool = attrs.field(default=False, kw_only=True)
    num_steps: dict[int, int] = attrs.field(factory=dict, kw_only=True)
    takes_options: bool = attrs.field(default=False, kw_only=True)
    entries: dict[Key, Entry] = attrs.field(factory=dict, init=False)
    latest: dict[str, Entry] = attrs.field(factory=dict, init=False)
    step_rows: list[StepRow] = attrs.field(factory=list, init=False)
    held_rows: list[StepRow] = attrs.field(factory=list, init=False)
    reduced: list[EntryValue] | None = attrs.field(default=None, init=False)
    latest_for: tuple[Moment | None, int] | None = attrs.field(default=None, init=False)
    _is_new_step: bool = attrs.field(default=True, init=False)

    def entry_for(
        self, name: str, value: object, asked: Asked, moment: Moment | None, hook: str | None, dataloader_idx: int
    ) -> Entry:
        """Return the entry for a call whose arguments differ from those of the latest one of its name.

        Raises:
            RuntimeError, TypeError, ValueError: See `LogOptions.resolve`, `Entry.prepare` and `Reduction`; or if one
                name would stand for values of several loaders.
        """
        key = hook, name, dataloader_idx if moment == "batch" and self.num_dataloaders > 1 else None
        entry = self.entries.get(key)
        if entry is None or entry.asked != asked or entry.moment != moment:
            options = LogOptions.resolve(name, asked, self.stage, moment if self.stage else None, hook)
            if entry is None:
                if not options.add_dataloader_idx and any((hook, name) == known[:2] for known in self.entries):
                    rule, action = "True, or the name one of its own for each loader", "Put the loader's name into it."
                    raise log_error(name, "add_dataloader_idx", rule, False, action)
                metric = {"metric": value} if is_metric(value) else {}
                entry = (MetricEntry if metric else Entry)(name, options, key[2], hook, **metric)
                self.add(entry)
            elif self.takes_options:
                entry.take(options)
                self.add(entry)
            elif not self.is_shared:  # with one process `sync_dist` says nothing
                options = options._replace(sync_dist=entry.options.sync_dist)
            entry.prepare(asked, options, moment)
        self.latest[name] = entry
        return entry

    def add(self, entry: Entry) -> None:
        """Add an entry, or follow the options of a known one."""
        entry.sends_steps = self.sends_steps and entry.options.on_step and entry.options.logger
        if isinstance(entry, MetricEntry):
            entry.is_shared = self.is_shared
        self.entries[entry.key] = entry

    def readers_of_returned(
        self, name: str, moment: Moment | None, *, logger: bool, prog_bar: bool
    ) -> tuple[bool, bool] | None:
        """Return `logger` and `prog_bar` for a value that a step or an epoch's end returned; None leaves it out.

        Returned names may differ from step to step, and an epoch's end may return a name that steps returned before:
        then values of steps alone make room for it, and readers of a name go on reading it. Values of an epoch that
        the module logs itself stay as they are.
        """
        known = self.latest.get(name) or next((one for key, one in self.entries.items() if key[1] == name), None)
        if known is None:
            return logger, prog_bar
        of_known = known.options.logger, known.options.prog_bar
        if known.options.on_epoch:
            return None if moment == "epoch" else of_known
        if moment == "batch":
            logger, prog_bar = logger or of_known[0], prog_bar or of_known[1]
        if moment != "batch" or (logger, prog_bar) != of_known:
            for key in [key for key in self.entries if key[:2] == (None, name)]:  # returned values have no hook
                del self.entries[key]
            self.latest.pop(name, None)
        return logger, prog_bar

    # values of evaluation batches

    def begin_step(self, dataloader_idx: int) -> None:
        """Count a new batch that logs something."""
        self.num_steps[dataloader_idx] = self.num_steps.get(dataloader_idx, 0) + 1
        self._is_new_step = True

    def add_step_value(self, entry: Entry, value: Value, dataloader_idx: int) -> None:
        """Keep the value of an evaluation batch, to be sent to loggers together with others."""
        if self._is_new_step:
            self.step_rows.append((self.num_steps[dataloader_idx] - 1, {}))
            self._is_new_step = False
        self.step_rows[-1][1][entry] = value

    def take_step_rows(self) -> list[StepRow]:
        """Return the rows to send, once; those with values that are reduced over processes are held back."""
        rows, self.step_rows, self._is_new_step = self.step_rows, [], True
        held = [self.is_shared and any(entry.options.sync_dist is True for entry in row) for _, row in rows]
        self.held_rows += with_numbers(list(compress(rows, held)))
        return [row for row, is_held in zip(rows, held, strict=True) if not is_held]

    # reading

    def take_step_values(self) -> list[tuple[Entry, Value]]:
        """Return the values of training steps to send to loggers, once."""
        taken = [(entry, entry.take_step_value()) for entry in self.entries.values() if entry.options.on_step]
        return [(entry, value) for entry, value in taken if value is not None and entry.options.logger]

    def live(self, *, with_epoch: bool) -> list[EntryValue]:
        """Return the values of the latest steps, then, if asked for, those of the epoch so far."""
        entries = list(self.entries.values())
        values = [(entry, entry.last_value, False) for entry in entries if entry.options.on_step]
        values += [(entry, entry.epoch_value(), True) for entry in entries if with_epoch]
        return [EntryValue(entry, value, of_epoch) for entry, value, of_epoch in values if value is not None]

    def values(self) -> list[EntryValue]:
        """Return the values of the epoch and of its latest steps; of all processes once they are reduced."""
        return self.live(with_epoch=True) if self.reduced is None else self.reduced

    def read(self, reader: Reader, values: Iterable[EntryValue]) -> dict[str, Value]:
        """Return those of the values that a reader gets, by the names that it gets.

        Callbacks get values of epochs, and of training steps, under their plain names too; loggers and progress bars
        get what is logged for them.
        """
        read: dict[str, Value] = {}
        for entry, value, of_epoch in values:
            names = [entry.epoch_name if of_epoch else entry.step_name]
            is_read = entry.options.logger if reader == "to_loggers" else entry.options.prog_bar
            if reader == "to_callbacks":
                is_read, names = of_epoch or self.stage == "train", [entry.plain_name, *names]
            if is_read:
                read |= {name: value for name in names if of_epoch or not entry.is_superseded(name)}
        return read

    def merge(self, reader: Reader, values: Sequence[EntryValue], published: dict[str, Value]) -> dict[str, Value]:
        """Return published values with those of this epoch; names of training steps go before its validations'."""
        of_steps = [each for each in values if self.stage == "train" and not each.of_epoch]
        return self.read(reader, of_steps) | published | self.read(reader, values)

    def supersede(self, values: Iterable[EntryValue]) -> None:
        """Let values of another stage's epoch replace those of previous steps of the same names."""
        names = frozenset(name for each in values if each.of_epoch for name in (each.entry.plain_name, each.name))
        for entry in self.entries.values():
            if entry.options.on_step and not names.isdisjoint((entry.plain_name, entry.step_name)):
                entry.supersede(names)

    def reset(self) -> None:
        """Reset the metrics that were logged."""
        for entry in self.entries.values():
            if isinstance(entry, MetricEntry) and entry.metric is not None:
                entry.metric.reset()

    def warn_of_lost_values(self) -> None:
        """Warn of values of a resumed epoch that cannot be reduced, before they are left out."""
        for name in [entry.name for entry in self.entries.values() if not entry.is_reducible]:
            warn_user(
                f"`{name}` must be logged again between a resume and the end of its epoch if it is a metric or has a "
                "user's function as `reduce_fx`, but got no call (log). Its value of the epoch is left out; a metric "
                "is not reset. Log it in every batch, or at the end of the epoch only.",
                RuntimeWarning,
            )

    def state_dict(self) -> dict[str, Any]:
        """Return what a training epoch has logged so far."""
        return {"entries": [entry.state_dict() for entry in self.entries.values()], "num_steps": dict(self.num_steps)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a training epoch's state; discards what was logged before."""
        self.entries = {}
        for saved in state["entries"]:
            self.add((MetricEntry if saved["is_metric"] else Entry).from_state(saved))
        self.latest.clear()  # so that the next call for each name compares its options with those of the state
        self.num_steps = dict(state["num_steps"])


def joined_logs(states: Sequence[Any], of_first: Any) -> Any:
    """Return the state of a metric log that goes on for those of several processes, or for none, inside an epoch.

    Args:
        states: The states of these processes, that of its own first; None for logs that collect nothing.
        of_first: The state of the first process, of which a process without an own one takes all but what it logged.
    """
    if of_first is None or of_first["train"] is None:
        return states[0] if states else of_first
    joined: dict[Any, dict[str, Any]] = {}
    for position, state in enumerate(states or [of_first]):
        for entry in state["train"]["entries"]:
            known = joined.get((entry["hook"], entry["name"]))
            is_own = position == 0 and bool(states)
            is_shared = entry["options"]["sync_dist"] is not False
            reduction = entry["reduction"] if is_own or (states and is_shared) else _without_values(entry["reduction"])
            if known is None:
                values = {} if is_own else {"step_value": None, "sent_value": None}
                joined[entry["hook"], entry["name"]] = {**entry, **values, "reduction": reduction}
            elif reduction is not None and known["reduction"] is not None:
                known["reduction"] = join_reductions(known["reduction"], reduction, str(entry["options"]["reduce_fx"]))
    own = states[0] if states else of_first
    return {**own, "train": {**own["train"], "entries": list(joined.values())}}


def _without_values(reduction: dict[str, Any] | None) -> dict[str, Any] | None:
    empty: dict[str, Any] = {
        "tensors": [],
        "weights": [],
        "folded": [],
        "device_weights": [],
        "number": None,
        "weight": 0,
    }
    return None if reduction is None else {**reduction, **empty}


def with_numbers(rows: Sequence[StepRow]) -> list[StepRow]:
    """Return rows with their values as numbers, in one transfer. Waits for the devices."""
    numbers = to_floats({(idx, entry): value for idx, (_, row) in enumerate(rows) for entry, value in row.items()})
    return [(step, {entry: numbers[idx, entry] for entry in row}) for idx, (step, row) in enumerate(rows)]


# loggers


class Progress(Protocol):
    """The position of training; `FitLoop.progress` is one.

    Attributes:
        current_epoch: Index of the training epoch.
        global_step: Number of optimizer updates so far.
        logged_steps_ahead: Number by which the steps of logged values are ahead of that; 0 if there is none.
    """

    current_epoch: int
    global_step: int


class MetricWriter(Protocol):
    """The methods of a logger that the metric log calls."""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Write metrics for a step, counted in optimizer updates."""

    def save(self) -> None:
        """Write buffered values."""


@attrs.define(eq=False, repr=False)
class LoggerSender:
    """Sends values of epochs, of evaluation batches, and every so many updates of training steps.

    Args:
        every_n_steps: Interval in optimizer updates between values of training steps; 0 never sends them.
        progress: The position of training.
        strategy: Its first process writes; None if there is only one.
        saves_each_row: Whether loggers save after each row.

    Attributes:
        next_send: Number of updates after which values of training steps are sent next; infinite if never.
    """

    loggers: Sequence[MetricWriter]
    every_n_steps: int
    _progress: Progress
    _strategy: Strategy | None = None
    saves_each_row: bool = False
    next_send: float = attrs.field(default=math.inf, init=False)
    _takes_keywords: dict[type, bool] = attrs.field(factory=dict, init=False)  # by the logger's class

    @property
    def writes(self) -> bool:
        """True on the process that writes; others do not look at the values, which might wait for a device."""
        return self._strategy is None or self._strategy.global_rank == 0

    @property
    def step(self) -> int:
        """Number of optimizer updates so far as loggers count them."""
        return self._progress.global_step + getattr(self._progress, "logged_steps_ahead", 0)

    def schedule(self) -> None:
        """Set `next_send` to the next multiple of the interval."""
        every = self.every_n_steps
        self.next_send = (self.step // every + 1) * every if every and self.loggers else math.inf

    def send(self, values: Mapping[str, Value], *, in_training: bool) -> None:
        """Send values of training steps or of an epoch, in one transfer.

        Within training they are of the latest update's index, outside of it of the number of updates so far; a value
        that is logged as "step" replaces that.
        """
        if not values or not self.writes:
            return
        metrics, step = to_floats(values), max(self.step - in_training, 0)
        if "step" in metrics:
            step = int(metrics.pop("step"))
        else:
            metrics.setdefault("epoch", self._progress.current_epoch)
        self._log(metrics, step)

    def send_rows(self, rows: Sequence[StepRow]) -> None:
        """Send values of evaluation batches, in one transfer; their step counts these batches."""
        for step, row in with_numbers(rows) if self.writes else ():
            self._log({entry.step_name: float(value) for entry, value in row.items()}, step)

    def save(self) -> None:
        """Let loggers write what they buffer."""
        for logger in self.loggers:
            logger.save()

    def _log(self, metrics: Mapping[str, float], step: int) -> None:
        for logger in self.loggers:
            if type(logger) not in self._takes_keywords:
                self._takes_keywords[type(logger)] = _takes_keywords(logger.log_metrics)
            if self._takes_keywords[type(logger)]:
                logger.log_metrics(metrics=metrics, step=step)
            else:
                logger.log_metrics(metrics, step)
            if self.saves_each_row:
                logger.save()

    def state_dict(self) -> dict[str, Any]:
        """Return the schedule, as plain values."""
        return {"log_every_n_steps": self.every_n_steps, "next_send": self.next_send}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue a schedule, unless the interval has changed."""
        if state["log_every_n_steps"] == self.every_n_steps and math.inf not in (self.next_send, state["next_send"]):
            self.next_send = state["next_send"]


def _takes_keywords(log_metrics: Callable[..., Any]) -> bool:
    """Return whether a logger's method takes `metrics` and `step` by name; loggers of 0.5 take them by position."""
    if inspect.isroutine(log_metrics):  # no mock, which would record that its signature was read
        try:
            inspect.signature(log_metrics).bind(metrics={}, step=0)
        except TypeError:
            return False
        except ValueError:  # no signature can be read
            return True
    return True

"""What one epoch of a stage has logged so far."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypedDict

import attrs
from torch import Tensor

from camshaft.hooks_core.messages import must_be
from camshaft.hooks_core.protocols import Moment
from camshaft.hooks_core.user_warnings import warn_user
from camshaft.loops.metrics.entry import (
    UNKNOWN_HOOK,
    Entry,
    Key,
    LogOptions,
    MetricEntry,
    ReduceFx,
    load_entry,
    resolve_options,
)
from camshaft.loops.metrics.values import Value, as_tensor, check_batch_size, check_number, is_metric, to_floats


@attrs.frozen(eq=False)
class LiveValue:
    """A value of an epoch that has not ended.

    Attributes:
        entry: Its entry.
        value: A detached tensor of shape (), or a number.
        of_epoch: Whether it stands for the epoch so far, else for the latest step.
    """

    entry: Entry
    value: Value
    of_epoch: bool

    @property
    def name(self) -> str:
        """The name under which loggers and progress bars get it."""
        return self.entry.epoch_name if self.of_epoch else self.entry.step_name

    def stands_for(self, name: str) -> bool:
        """Return whether it is the latest value of a name; a step's is not after another stage has published one."""
        return self.of_epoch or not self.entry.gives_way(name)


@attrs.frozen(eq=False)
class StepRow:
    """What one evaluation batch logged for itself.

    Attributes:
        step: How many batches of its loader had logged anything before it.
        values: By the names under which loggers get them.
    """

    step: int
    values: dict[str, Value]


class StageLog:
    """Entries of one epoch of a stage.

    Args:
        stage: "train", "validate" or "test"; "" where nothing is logged.
        num_dataloaders: Number of loaders; with several, each has entries of its own.
        sends_steps: Whether evaluation batches are sent to loggers.
        is_shared: Whether other processes log to the same epoch.
        num_steps: How many batches of each loader logged in earlier epochs.

    Attributes:
        entries: Entries by hook, name and loader, in the order in which they began: of one name in several hooks the
            later value is the epoch's.
        latest: Entries by name alone: those of the hook and loader that logged last.
        step_rows: Values of evaluation batches that are still to be sent.
        held_rows: Those that wait for the epoch's end, as numbers, since they are reduced over processes.
        reduced: The epoch's values of all processes, once they were reduced; None before.
    """

    def __init__(
        self,
        stage: str,
        num_dataloaders: int,
        *,
        sends_steps: bool,
        is_shared: bool = False,
        num_steps: dict[int, int] | None = None,
    ) -> None:
        self.stage = stage
        self.num_dataloaders = num_dataloaders
        self.entries: dict[Key, Entry] = {}
        self.latest: dict[str, Entry] = {}
        self.step_rows: list[StepRow] = []
        self.held_rows: list[StepRow] = []
        self.reduced: list[LiveValue] | None = None
        self.num_steps = dict(num_steps or {})
        self._sends_steps = sends_steps
        self._is_shared = is_shared
        self._row: StepRow | None = None

    def known(self, name: str, dataloader_idx: int | None, hook: str | None) -> Entry | None:
        """The entry of a name in a hook, if there is one."""
        dataloader_idx = None if self.num_dataloaders < 2 else dataloader_idx
        entry = self.entries.get((hook, name, dataloader_idx))
        if entry is None and hook is not None:
            entry = self.entries.pop((UNKNOWN_HOOK, name, dataloader_idx), None)
            if entry is not None:
                entry.hook = hook
                self.entries[entry.key] = entry
        return entry

    def entry(
        self, name: str, value: Any, options: LogOptions, dataloader_idx: int | None, hook: str | None = None
    ) -> Entry:
        """The entry of a name, made for this value if there is none yet.

        Args:
            name: The name.
            value: The first value.
            options: How to log it.
            dataloader_idx: Index of the loader; None if the value belongs to no loader.
            hook: The hook that logs it.

        Raises:
            ValueError: If the name would stand for values of several loaders.
        """
        if self.num_dataloaders < 2:
            dataloader_idx = None
        entry = self.known(name, dataloader_idx, hook)
        if entry is not None:
            return entry
        if not options.add_dataloader_idx and any((hook, name) == key[:2] for key in self.entries):
            rule = "True, or the name one of its own for each loader"
            action = "Put the loader's name into the name."
            raise ValueError(must_be("add_dataloader_idx", rule, False, f"log({name!r})", action))
        if is_metric(value):
            entry = MetricEntry(name, options, dataloader_idx, value, hook)
        else:
            entry = Entry(name, options, dataloader_idx, hook)
        self.add(entry)
        return entry

    def add(self, entry: Entry) -> None:
        """Take an entry in that nobody has logged for before."""
        entry.sends_steps = self._sends_steps and entry.options.on_step and entry.options.logger
        if isinstance(entry, MetricEntry):
            entry.is_shared = self._is_shared
        self.entries[entry.key] = entry

    def begin_step(self, dataloader_idx: int) -> None:
        """Note that a new batch logs something."""
        self.num_steps[dataloader_idx] = self.num_steps.get(dataloader_idx, 0) + 1
        self._row = None

    def add_step_value(self, entry: Entry, value: Value, dataloader_idx: int) -> None:
        """Keep the value of an evaluation batch, to be sent to loggers together with others."""
        if self._row is None:
            self._row = StepRow(self.num_steps[dataloader_idx] - 1, {})
            self.step_rows.append(self._row)
        self._row.values[entry.step_name] = value

    def take_step_rows(self) -> list[StepRow]:
        """The values to send; they are not given again. Those that are reduced over processes are held back."""
        rows, self.step_rows, self._row = self.step_rows, [], None
        if not self._is_shared:
            return rows
        shared = {entry.step_name for entry in self.entries.values() if entry.options.sync_dist is True}
        held = [row for row in rows if not shared.isdisjoint(row.values)]
        numbers = iter(to_floats([value for row in held for value in row.values.values()]))
        self.held_rows += [StepRow(row.step, {name: next(numbers) for name in row.values}) for row in held]
        return [row for row in rows if shared.isdisjoint(row.values)]

    def live(self, *, with_epoch: bool) -> list[LiveValue]:
        """Current values: of the latest steps, and then, if asked for, of the epoch so far."""
        entries = self.entries.values()
        of_steps = [entry for entry in entries if entry.options.on_step]
        values = [LiveValue(entry, value, False) for entry in of_steps if (value := entry.last_value) is not None]
        if with_epoch:
            values += [LiveValue(entry, value, True) for entry in entries if (value := entry.epoch_value()) is not None]
        return values

    def give_way_to(self, values: Iterable[LiveValue]) -> None:
        """Let values of epochs that another stage publishes stand before those of earlier steps of the same names."""
        names = frozenset(name for live in values if live.of_epoch for name in (live.entry.plain_name, live.name))
        for entry in self.entries.values():
            if entry.options.on_step and not names.isdisjoint((entry.plain_name, entry.step_name)):
                entry.give_way(names)

    def reset(self) -> None:
        """Reset the metrics that were logged."""
        for entry in self.entries.values():
            entry.reset()

    def warn_of_lost_values(self) -> None:
        """Warn of values of a resumed epoch that cannot be reduced, before they are left out."""
        for entry in self.entries.values():
            if not entry.is_reducible:
                warn_user(
                    f"`{entry.name}` must be logged again between a resume and the end of its epoch if it is a metric "
                    "or has a `reduce_fx` of one's own, but got no call (log). Its value of the epoch is left out; a "
                    "metric is not reset. Log it in every batch, or at the end of the epoch only.",
                    RuntimeWarning,
                )

    def state_dict(self) -> dict[str, Any]:
        """What a training epoch has logged so far, as copies of tensors and plain values."""
        return {
            "entries": [entry.state_dict() for entry in self.entries.values()],
            "num_steps": dict(self.num_steps),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a training epoch's state; what was logged before is forgotten."""
        self.entries = {}
        for entry in map(load_entry, state["entries"]):
            self.add(entry)
        self.latest.clear()  # so that the next call for each name compares its options with those of the state
        self.num_steps = dict(state["num_steps"])


def for_callbacks(values: Iterable[LiveValue], stage: StageLog) -> Mapping[str, Tensor]:
    """What callbacks read: a stage's values under their plain names too; evaluation batches are left out."""
    metrics: dict[str, Tensor] = {}
    for live in values:
        if live.of_epoch or stage.stage == "train":
            names = {live.entry.plain_name, live.name}
            metrics |= {name: as_tensor(live.value) for name in names if live.stands_for(name)}
    return metrics


def for_loggers(values: Iterable[LiveValue]) -> Mapping[str, Tensor]:
    """The values that are meant for loggers, under the names that loggers get."""
    return {
        live.name: as_tensor(live.value) for live in values if live.entry.options.logger and live.stands_for(live.name)
    }


class Readers(TypedDict):
    """Who reads a value."""

    logger: bool
    prog_bar: bool


def options_beside(
    stage: StageLog, name: str, moment: Moment | None, *, logger: bool, prog_bar: bool
) -> Readers | None:
    """The options with which a returned value is logged.

    What is returned may differ from step to step, and an epoch's end may return a name that steps have returned before:
    values of steps alone make room for it, and who has read a name goes on reading it. Values of an epoch that the
    module logs itself stay as they are.

    Args:
        stage: The epoch of the stage.
        name: The value's name.
        moment: Where the value belongs.
        logger: Whether it is meant for loggers.
        prog_bar: Whether it is meant for progress bars.

    Returns:
        The options; None if the value is to be left out, since the module logs the epoch's value itself.
    """
    known = stage.latest.get(name) or next((one for key, one in stage.entries.items() if key[1] == name), None)
    if known is None:
        return Readers(logger=logger, prog_bar=prog_bar)
    options = known.options
    if options.on_epoch:
        return None if moment == "epoch" else Readers(logger=options.logger, prog_bar=options.prog_bar)
    is_of_step = moment == "batch"
    if is_of_step:
        logger, prog_bar = logger or options.logger, prog_bar or options.prog_bar
    if not is_of_step or (logger, prog_bar) != (options.logger, options.prog_bar):
        for key in [key for key in stage.entries if key[:2] == (None, name)]:  # what is returned is of no hook
            del stage.entries[key]
        stage.latest.pop(name, None)
    return Readers(logger=logger, prog_bar=prog_bar)


class StandaloneLog:
    """Takes the same calls as a `MetricLog`, checks them alike, and keeps the last value of each name."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}

    @property
    def logged_metrics(self) -> dict[str, Value]:
        """The last values: detached tensors where tensors were logged, else numbers.

        Of a metric, what it gave for its last batch, or what it computes if it was only updated.
        """
        return {name: value for name, entry in self._entries.items() if (value := entry.last_value) is not None}

    def log(
        self,
        name: str,
        value: Any,
        prog_bar: bool = False,
        logger: bool | None = True,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        reduce_fx: ReduceFx = "mean",
        batch_size: float | Tensor | None = None,
        sync_dist: bool | None = None,
        add_dataloader_idx: bool = True,
    ) -> None:
        """Keep a value. Does not wait for its device."""
        asked = (prog_bar, logger, on_step, on_epoch, reduce_fx, sync_dist, add_dataloader_idx)
        entry = self._entries.get(name)
        if entry is None or entry.asked != asked:
            options = resolve_options(
                name,
                "train",
                "batch",
                prog_bar=prog_bar,
                logger=logger,
                on_step=on_step,
                on_epoch=on_epoch,
                reduce_fx=reduce_fx,
                sync_dist=sync_dist,
                add_dataloader_idx=add_dataloader_idx,
            )
            entry = self._entries[name] = Entry(name, options, None)
            entry.asked = asked
        if batch_size is not None:
            check_batch_size(name, batch_size)
        if is_metric(value):
            of_batch = getattr(value, "_forward_cache", None)
            value = value.compute() if of_batch is None else of_batch
            value = value if isinstance(value, Tensor) else check_number(name, value)
        entry.step_value = entry.keep(value)

    def keep_graph(self, name: str, value: object) -> None:
        """Let the step's value that was just logged be differentiated; see `Entry.keep_graph`."""
        self._entries[name].keep_graph(value)

"""The entries of one epoch of a stage, and what each reader gets of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs
from torch import Tensor

from camshaft.hooks_core.messages import must_be, warn_user
from camshaft.hooks_core.protocols import Moment
from camshaft.loops.metrics.entry import UNKNOWN_HOOK, Asked, Entry, Key, LogOptions
from camshaft.loops.metrics.metric_entry import MetricEntry
from camshaft.loops.metrics.values import Value, as_tensor, is_metric, to_floats


@attrs.frozen(eq=False)
class LiveValue:
    """The present value of an entry.

    Attributes:
        entry: The entry.
        value: A detached tensor of shape (), or a number.
        of_epoch: Whether it is the epoch's so far, else the latest step's.
    """

    entry: Entry
    value: Value
    of_epoch: bool

    @property
    def name(self) -> str:
        """The name under which loggers and progress bars get it."""
        return self.entry.epoch_name if self.of_epoch else self.entry.step_name

    def is_latest(self, name: str) -> bool:
        """Return whether no other stage has published a name since."""
        return self.of_epoch or not self.entry.is_superseded(name)


@attrs.frozen(eq=False)
class StepRow:
    """The values that one evaluation batch logged for itself.

    Attributes:
        step: Number of earlier batches of its loader that logged anything.
        values: By the names under which loggers get them.
    """

    step: int
    values: dict[str, Value]


class EpochLog:
    """Entries of one epoch of a stage.

    Args:
        stage: "train", "validate" or "test"; "" where nothing is logged.
        num_dataloaders: Number of loaders; with several, each has entries of its own.
        sends_steps: Whether evaluation batches are sent to loggers.
        is_shared: Whether other processes log to the same epoch.
        num_steps: Number of batches of each loader that logged in earlier epochs.

    Attributes:
        entries: Entries in the order in which they began: of one name in several hooks the later value is the epoch's.
        latest: Entries by name alone: those of the hook and loader that logged last.
        step_rows: Values of evaluation batches that are still to be sent.
        held_rows: Those that are reduced over processes when the epoch ends, as numbers.
        reduced: The epoch's values of all processes; None before they are reduced.
    """

    def __init__(
        self,
        stage: str = "",
        num_dataloaders: int = 1,
        *,
        sends_steps: bool = False,
        is_shared: bool = False,
        num_steps: dict[int, int] | None = None,
    ) -> None:
        self.stage, self.num_dataloaders = stage, num_dataloaders
        self.entries: dict[Key, Entry] = {}
        self.latest: dict[str, Entry] = {}
        self.step_rows: list[StepRow] = []
        self.held_rows: list[StepRow] = []
        self.reduced: list[LiveValue] | None = None
        self.num_steps = dict(num_steps or {})
        self._sends_steps, self._is_shared = sends_steps, is_shared
        self._row: StepRow | None = None

    def entry_for(
        self, name: str, value: object, asked: Asked, moment: Moment | None, hook: str | None, dataloader_idx: int
    ) -> Entry:
        """Return the entry for a call whose arguments differ from those of the latest one of its name.

        Raises:
            RuntimeError, TypeError, ValueError: See `LogOptions.resolve`, `Entry.prepare` and `reduction_for`; or if
                one name would stand for values of several loaders.
        """
        key = hook, name, dataloader_idx if moment == "batch" and self.num_dataloaders > 1 else None
        entry = self._find(key)
        if entry is None or entry.asked != asked or entry.moment != moment:
            options = LogOptions.resolve(name, asked, self.stage, moment if self.stage else None, hook)
            if entry is None:
                if not options.add_dataloader_idx and any((hook, name) == known[:2] for known in self.entries):
                    rule = "True, or the name one of its own for each loader"
                    action = "Put the loader's name into the name."
                    raise ValueError(must_be("add_dataloader_idx", rule, False, f"log({name!r})", action))
                if is_metric(value):
                    entry = MetricEntry(name, options, key[2], hook, value)
                else:
                    entry = Entry(name, options, key[2], hook)
                self.add(entry)
            entry.prepare(asked, options, moment)
        self.latest[name] = entry
        return entry

    def _find(self, key: Key) -> Entry | None:
        entry = self.entries.get(key)
        if entry is None and key[0] is not None:
            entry = self.entries.pop((UNKNOWN_HOOK, *key[1:]), None)
            if entry is not None:
                entry.hook = key[0]
                self.entries[key] = entry
        return entry

    def add(self, entry: Entry) -> None:
        """Add an entry under a new key."""
        entry.sends_steps = self._sends_steps and entry.options.on_step and entry.options.logger
        if isinstance(entry, MetricEntry):
            entry.is_shared = self._is_shared
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
        if known is not None:
            options = known.options
            if options.on_epoch:
                return None if moment == "epoch" else (options.logger, options.prog_bar)
            if moment == "batch":
                logger, prog_bar = logger or options.logger, prog_bar or options.prog_bar
            if moment != "batch" or (logger, prog_bar) != (options.logger, options.prog_bar):
                for key in [key for key in self.entries if key[:2] == (None, name)]:  # returned values have no hook
                    del self.entries[key]
                self.latest.pop(name, None)
        return logger, prog_bar

    # values of evaluation batches

    def begin_step(self, dataloader_idx: int) -> None:
        """Count a new batch that logs something."""
        self.num_steps[dataloader_idx] = self.num_steps.get(dataloader_idx, 0) + 1
        self._row = None

    def add_step_value(self, entry: Entry, value: Value, dataloader_idx: int) -> None:
        """Keep the value of an evaluation batch, to be sent to loggers together with others."""
        if self._row is None:
            self._row = StepRow(self.num_steps[dataloader_idx] - 1, {})
            self.step_rows.append(self._row)
        self._row.values[entry.step_name] = value

    def take_step_rows(self) -> list[StepRow]:
        """Return the rows to send, once; those with values that are reduced over processes are held back."""
        rows, self.step_rows, self._row = self.step_rows, [], None
        if not self._is_shared:
            return rows
        shared = {entry.step_name for entry in self.entries.values() if entry.options.sync_dist is True}
        held = [row for row in rows if not shared.isdisjoint(row.values)]
        numbers = iter(to_floats([value for row in held for value in row.values.values()]))
        self.held_rows += [StepRow(row.step, {name: next(numbers) for name in row.values}) for row in held]
        return [row for row in rows if shared.isdisjoint(row.values)]

    # reading

    def live(self, *, with_epoch: bool) -> list[LiveValue]:
        """Return the values of the latest steps, then, if asked for, those of the epoch so far."""
        entries = self.entries.values()
        of_steps = [entry for entry in entries if entry.options.on_step]
        values = [LiveValue(entry, value, False) for entry in of_steps if (value := entry.last_value) is not None]
        if with_epoch:
            values += [LiveValue(entry, value, True) for entry in entries if (value := entry.epoch_value()) is not None]
        return values

    def for_callbacks(self, values: Iterable[LiveValue]) -> Mapping[str, Tensor]:
        """Return values of this epoch under their plain names too; evaluation batches are left out."""
        return {
            name: as_tensor(live.value)
            for live in values
            if live.of_epoch or self.stage == "train"
            for name in {live.entry.plain_name, live.name}
            if live.is_latest(name)
        }

    def supersede(self, values: Iterable[LiveValue]) -> None:
        """Let values of another stage's epoch replace those of earlier steps of the same names."""
        names = frozenset(name for live in values if live.of_epoch for name in (live.entry.plain_name, live.name))
        for entry in self.entries.values():
            if entry.options.on_step and not names.isdisjoint((entry.plain_name, entry.step_name)):
                entry.supersede(names)

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
                    "or has a user's function as `reduce_fx`, but got no call (log). Its value of the epoch is left "
                    "out; a metric is not reset. Log it in every batch, or at the end of the epoch only.",
                    RuntimeWarning,
                )

    def state_dict(self) -> dict[str, Any]:
        """Return what a training epoch has logged so far, as copies of tensors and plain values."""
        return {"entries": [entry.state_dict() for entry in self.entries.values()], "num_steps": dict(self.num_steps)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a training epoch's state; discards what was logged before."""
        self.entries = {}
        for saved in state["entries"]:
            self.add(MetricEntry.from_state(saved, None) if saved["is_metric"] else Entry.from_state(saved))
        self.latest.clear()  # so that the next call for each name compares its options with those of the state
        self.num_steps = dict(state["num_steps"])


def for_loggers(values: Iterable[LiveValue]) -> Mapping[str, Tensor]:
    """Return the values that loggers get, by the names that they get."""
    return {
        live.name: as_tensor(live.value) for live in values if live.entry.options.logger and live.is_latest(live.name)
    }


def for_progress_bars(values: Iterable[LiveValue]) -> list[LiveValue]:
    """Return the values that progress bars show."""
    return [live for live in values if live.entry.options.prog_bar and live.is_latest(live.name)]

"""Reduce logged values over the processes of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from camshaft.hooks_core.protocols import Strategy
from camshaft.hooks_core.support.messages import must_be, warn_user
from camshaft.loops.metrics.entry import Entry, Key, LogOptions, MetricEntry, states_of
from camshaft.loops.metrics.epoch import EntryValue, EpochLog, StepRow
from camshaft.loops.metrics.values import (
    FOLDS,
    UNKNOWN_FUNCTION,
    Part,
    Reduction,
    Value,
    as_tensor,
    result_dtype,
    to_floats,
)

T = TypeVar("T")

Place = str | int
"""Of the values of an entry: "step" for its latest one, "epoch" for those of the epoch, or the step of a row."""


class MetricMismatchError(ValueError):
    """Raised on every process if processes logged one name in different ways.

    Attributes:
        name: The name.
        field: The argument of `log` that differs, or "value".
        by_rank: That argument on each process that logged the name.
    """

    def __init__(self, name: str, field: str, by_rank: Mapping[int, object], rule: str, action: str) -> None:
        self.name, self.field, self.by_rank = name, field, dict(by_rank)
        got = ", ".join(f"{value!r} on rank {rank}" for rank, value in by_rank.items())
        super().__init__(f"`{field}` must be {rule}, but got {got} in log({name!r}). {action}")


class Record(NamedTuple):
    """One process's entry for one name, as it is sent to the others.

    Attributes:
        key: The key of its entry.
        options: Settings of its calls; `UNKNOWN_FUNCTION` stands for a user's function.
        is_metric: Whether it is a torchmetrics metric.
        source: Qualified name of a user's function, or path of the metric among the module's submodules; empty where
            there is none, and None if the function or metric is not known after a resume.
        is_current: Whether the metric was not updated since it was last computed.
        parts: Contributions to values that are reduced over processes.
    """

    key: Key
    options: LogOptions
    is_metric: bool
    source: str | None
    is_current: bool
    parts: dict[Place, Part]

    @property
    def is_shared(self) -> bool:
        """True if anything of it is reduced over processes, so that all of them must have an entry."""
        options = self.options
        return options.sync_dist is not False and (options.on_epoch or options.sync_dist is True)

    def new_entry(self) -> Entry:
        """Return an entry without any value, for a name that only other processes logged."""
        hook, name, dataloader_idx = self.key
        return (MetricEntry if self.is_metric else Entry)(name, self.options, dataloader_idx, hook)


Records = Mapping[Key, Mapping[int, Record]]
"""Records of each name by rank, names in the order of the first process that has them."""


class MetricExchange:
    """Reduces logged values over processes, to the same bits on each of them: parts are taken in the order of ranks.

    Of processes with the same data, such as the ranks of one model replica, the first one's values count.

    Args:
        module: Holds the metrics that a process may never have logged.
    """

    def __init__(self, strategy: Strategy, module: nn.Module | None) -> None:
        self._strategy, self._module = strategy, module
        self._has_warned = False
        self._shares_steps: bool | None = None  # whether any process reduces values of steps; None if not yet known

    def gather(self, value: T) -> list[tuple[T, bool]]:
        """Return the values of all processes, each with whether it counts. Collective."""
        gathered = self._strategy.all_gather((self._strategy.data_rank, value))
        data_ranks = [data_rank for data_rank, _ in gathered]
        return [(each, data_ranks.index(data_rank) == rank) for rank, (data_rank, each) in enumerate(gathered)]

    def gather_states(self, metric: Any) -> list[tuple[list[Any], bool]]:
        """Return the states of a metric of all ranks, each with whether it counts. Collective."""
        return self.gather(states_of(vars(metric), metric))

    def _gather_records(self, of_ranks: Sequence[Sequence[Record]]) -> list[tuple[Sequence[Record], bool]]:
        """Return the records of all ranks, given those of this process's ranks, of which it is the only one here."""
        [own] = of_ranks
        return self.gather(own)

    @property
    def _num_ranks(self) -> int:
        return self._strategy.world_size

    def _is_own(self, rank: int) -> bool:
        return rank == self._strategy.global_rank

    def reduce_epoch(self, epoch: EpochLog, further: Sequence[EpochLog] = ()) -> list[EntryValue]:
        """Return an epoch's values, and those of its latest steps, as `EpochLog.live` does. Collective.

        The epoch has entries for names that only other processes logged from then on.

        Args:
            epoch: The epoch of this process, or of its first logical rank.
            further: That of its other logical ranks.

        Raises:
            MetricMismatchError: On every process, if their calls for one name differ, or if one that did not log a
                metric cannot find it.
        """
        entries = list(epoch.entries.values())
        paths: dict[int, str] = {}
        if self._module is not None and any(entry.holds_metric for entry in entries):
            paths = {id(submodule): path for path, submodule in self._module.named_modules()}
        own = [
            [_record(entry, _epoch_parts(entry, one.held_rows), paths) for entry in one.entries.values()]
            for one in (epoch, *further)
        ]
        records = self._exchange(own, may_share_steps=epoch.stage == "train")
        for key, by_rank in records.items():
            first = next(iter(by_rank.values()))
            if key not in epoch.entries and first.is_shared:
                epoch.add(first.new_entry())
        self._compute_metrics(records, epoch.entries)
        reduced = self._reduce(records, epoch.entries)
        epoch.held_rows = _reduced_rows(epoch, reduced)
        entries = [epoch.entries[key] for key in records if key in epoch.entries]
        both = ((entry, of_epoch) for of_epoch in (False, True) for entry in entries)
        values = ((entry, _value_of(entry, reduced, of_epoch), of_epoch) for entry, of_epoch in both)
        return [EntryValue(entry, value, of_epoch) for entry, value, of_epoch in values if value is not None]

    def reduce_step(self, *of_ranks: Sequence[tuple[Entry, Value]]) -> dict[str, Value]:
        """Return the values of a training step that are reduced over processes, by the names of steps. Collective.

        Args:
            of_ranks: The entries of such values and what this process logged; of each logical rank that it plays.

        Raises:
            MetricMismatchError: As `reduce_epoch`.
        """
        taken = of_ranks[0]
        if self._shares_steps is False:  # so on all processes
            if taken and not self._has_warned:
                self._has_warned = True
                warn_user(
                    f"`sync_dist=True` of {taken[0][0].name!r} comes too late for this epoch, whose first steps no "
                    "process logged with it: loggers get the first process's values. Log it from the first step on."
                )
            return {}
        own = [[_record(entry, {"step": _step_part(entry, value)}) for entry, value in one] for one in of_ranks]
        records = self._exchange(own, may_share_steps=True)
        entries = {key: next(iter(by_rank.values())).new_entry() for key, by_rank in records.items()}
        entries |= {entry.key: entry for entry, _ in taken}
        return {entries[key].step_name: value for (key, _), value in self._reduce(records, entries).items()}

    def _exchange(self, own: Sequence[Sequence[Record]], *, may_share_steps: bool) -> Records:
        """Return the records of all ranks, those that do not count without their parts. Collective.

        Raises:
            MetricMismatchError: If processes logged a name in different ways; the same on each of them.
        """
        by_key: dict[Key, dict[int, Record]] = {}
        for rank, (of_rank, counts) in enumerate(self._gather_records(list(map(_on_host, own)))):
            for record in of_rank:
                by_key.setdefault(record.key, {})[rank] = record if counts else record._replace(parts={})
        for by_rank in by_key.values():
            _check_same(by_rank)
        if may_share_steps:
            options = [record.options for by_rank in by_key.values() for record in by_rank.values()]
            self._shares_steps = any(each.on_step and each.sync_dist is True for each in options)
        return by_key

    def _compute_metrics(self, records: Records, entries: Mapping[Key, Entry]) -> None:
        """Compute the metrics that any process has updated since they were last computed. Collective."""
        for key, by_rank in records.items():
            first = next(iter(by_rank.values()))
            paths = {rank: record.source for rank, record in by_rank.items() if record.source is not None}
            if not (first.is_metric and first.options.on_epoch and first.is_shared and paths):
                continue  # without any that knows it: a resumed epoch in which no process has logged it again
            entry = entries[key]
            assert isinstance(entry, MetricEntry)
            if len(paths) < self._num_ranks:
                path = self._common_path(first.key[1], paths)
                if entry.metric is None:
                    assert self._module is not None
                    entry.metric = self._module.get_submodule(path)
            elif all(record.is_current for record in by_rank.values()):
                continue
            entry.compute_of_all(self.gather_states)

    def _common_path(self, name: str, paths: Mapping[int, str]) -> str:
        """Return the path of the submodule that is a metric which not every process has logged."""
        path, *others = set(paths.values())
        if not path or others:
            lacking = next(rank for rank in range(self._num_ranks) if rank not in paths)
            rule = f"logged on all ranks, or be one and the same attribute of the module (rank {lacking} lacks it)"
            action, got = "Assign the metric to an attribute of the module.", {k: v or None for k, v in paths.items()}
            raise MetricMismatchError(name, "value", got, rule, action)
        return path

    def _reduce(self, records: Records, entries: Mapping[Key, Entry]) -> dict[tuple[Key, Place], Value]:
        """Return the reduced values. Collective a second time if any is reduced by a user's function."""
        values: dict[tuple[Key, Place], Value] = {}
        unreduced: dict[tuple[Key, Place], list[Part]] = {}
        for key, by_rank in records.items():
            reduce_fx = str(next(iter(by_rank.values())).options.reduce_fx)
            for place in dict.fromkeys(place for record in by_rank.values() for place in record.parts):
                parts = [record.parts[place] for record in by_rank.values() if place in record.parts]
                if reduce_fx == UNKNOWN_FUNCTION:
                    unreduced[key, place] = parts
                else:
                    values[key, place] = _merge(reduce_fx, parts)
        return values | self._apply_functions(unreduced, records, entries) if unreduced else values

    def _apply_functions(
        self, unreduced: Mapping[tuple[Key, Place], list[Part]], records: Records, entries: Mapping[Key, Entry]
    ) -> dict[tuple[Key, Place], Value]:
        """Apply each function on the first process that has it, and send the results to the others. Collective."""
        applied: dict[tuple[Key, Place], tuple[float, torch.dtype | None]] = {}
        failure: Exception | None = None
        for (key, place), parts in unreduced.items():
            ranks = [rank for rank, record in records[key].items() if record.source is not None]
            if ranks and self._is_own(ranks[0]) and failure is None:
                try:
                    applied[key, place] = _apply(entries[key], parts)
                except Exception as error:
                    failure = error
        gathered = self._strategy.all_gather((applied, failure and f"{type(failure).__name__}: {failure}"))
        if failure is not None:
            raise failure
        for rank, (_, other) in enumerate(gathered):
            if other is not None:
                rule = f"a function that reduces the values of all ranks (rank {rank} applied it)"
                raise RuntimeError(must_be("reduce_fx", rule, other, "log", "See the error of that rank."))
        return {place: _as_value(*sent) for of_rank, _ in gathered for place, sent in of_rank.items()}


def _record(entry: Entry, parts: dict[Place, Part], paths: Mapping[int, str] | None = None) -> Record:
    """Return the record of an entry; `paths` has names of submodules by their identity."""
    function, source, is_current = entry.options.reduce_fx, "" if entry.is_reducible else None, False
    if callable(function):
        name = getattr(function, "__qualname__", None) or type(function).__qualname__
        source = f"{getattr(function, '__module__', '')}.{name}"
    elif isinstance(entry, MetricEntry) and entry.metric is not None:
        source, is_current = (paths or {}).get(id(entry.metric), ""), entry.is_current
    return Record(entry.key, entry.options.plain(), entry.holds_metric, source, is_current, parts)


def _check_same(by_rank: Mapping[int, Record]) -> None:
    """Raise `MetricMismatchError` if processes logged a name in different ways."""
    name = next(iter(by_rank.values())).key[1]
    rule, action = "the same on all ranks", "Log it with the same arguments everywhere, or under another name."
    kinds = {rank: "a metric" if record.is_metric else "a number" for rank, record in by_rank.items()}
    if len(set(kinds.values())) > 1:
        raise MetricMismatchError(name, "value", kinds, rule, "Log it under another name.")
    is_resumed = any(record.source is None for record in by_rank.values())
    for field in LogOptions._fields:
        asked = {rank: getattr(record.options, field) for rank, record in by_rank.items()}
        if field == "reduce_fx" and not is_resumed:
            asked |= {rank: by_rank[rank].source for rank, option in asked.items() if option == UNKNOWN_FUNCTION}
        if len(set(asked.values())) > 1:
            raise MetricMismatchError(name, field, asked, rule, action)


def _epoch_parts(entry: Entry, held_rows: Sequence[StepRow]) -> dict[Place, Part]:
    """Return this process's part in an entry's values of the epoch, and of the evaluation batches that were held."""
    parts: dict[Place, Part | None] = {}
    if entry.options.sync_dist is not False and entry.reduction is not None:
        parts["epoch"] = entry.reduction.part()
    if entry.options.sync_dist is True:
        value = entry.last_value
        parts["step"] = None if value is None else _step_part(entry, value)
        parts |= {step: _step_part(entry, row[entry]) for step, row in held_rows if entry in row}
    return {place: part for place, part in parts.items() if part is not None}


def _reduced_rows(epoch: EpochLog, reduced: Mapping[tuple[Key, Place], Value]) -> list[StepRow]:
    """Return the rows that this process held back, with reduced values, and rows of what only others logged."""
    of_rows = {(place, epoch.entries[key]): value for (key, place), value in reduced.items() if isinstance(place, int)}
    rows = [
        (step, {one: of_rows.pop((step, one), value) for one, value in row.items()}) for step, row in epoch.held_rows
    ]
    return rows + [(step, {entry: value}) for (step, entry), value in of_rows.items()]


def _value_of(entry: Entry, reduced: Mapping[tuple[Key, Place], Value], of_epoch: bool) -> Value | None:
    """Return the value to publish: of all processes where that is asked for, else this process's own."""
    options = entry.options
    if not (options.on_epoch if of_epoch else options.on_step):
        return None
    if options.sync_dist is False or (options.sync_dist is None and not of_epoch):
        return entry.epoch_value() if of_epoch else entry.last_value
    if of_epoch and isinstance(entry, MetricEntry):
        return entry.value_of_all
    return reduced.get((entry.key, "epoch" if of_epoch else "step"))


def _step_part(entry: Entry, value: Value) -> Part:
    if callable(entry.options.reduce_fx):
        return Part(as_tensor(value).reshape(1))
    return Part(value, 1.0, result_dtype(value.dtype) if isinstance(value, Tensor) else None)


def _on_host(records: Sequence[Record]) -> list[Record]:
    """Return records with numbers for tensors of shape (), in one transfer per device. Waits for the devices."""
    parts = [((record.key, place), part) for record in records for place, part in record.parts.items()]
    values: dict[Any, Value] = {key: part.value for key, part in parts}
    values |= {(key, "weight"): part.weight for key, part in parts if isinstance(part.weight, Tensor)}
    vectors = {key: value for key, value in values.items() if isinstance(value, Tensor) and value.ndim}
    on_host: dict[Any, Value] = {**to_floats({key: values[key] for key in values.keys() - vectors.keys()})}
    on_host |= {key: value.cpu() for key, value in vectors.items()}

    def moved(record: Record) -> dict[Place, Part]:
        of_places = {place: (part, (record.key, place)) for place, part in record.parts.items()}
        return {
            place: part._replace(value=on_host[key], weight=on_host.get((key, "weight"), part.weight))
            for place, (part, key) in of_places.items()
        }

    return [record._replace(parts=moved(record)) for record in records]


def _merge(reduction: str, parts: Sequence[Part]) -> Value:
    """Return the value of all processes: a tensor on the CPU, or a number if only numbers were logged."""
    numbers = [float(part.value) for part in parts]
    value = math.nan if any(map(math.isnan, numbers)) else reduce(FOLDS[reduction][2], numbers)
    if reduction == "mean":
        weight = sum(float(part.weight) for part in parts)
        value = value / weight if weight else math.nan
    dtypes = [part.dtype for part in parts if part.dtype is not None]
    return _as_value(value, None if not dtypes else torch.float64 if torch.float64 in dtypes else torch.float32)


def _as_value(number: float, dtype: torch.dtype | None) -> Value:
    return number if dtype is None else torch.tensor(number, dtype=dtype)


def _apply(entry: Entry, parts: Sequence[Part]) -> tuple[float, torch.dtype | None]:
    """Return what a user's function gives for the values of all processes, as a number and a tensor's type."""
    # of an entry that is logged for steps alone, a reduction without any value
    reduction = entry.reduction or Reduction(entry.options.reduce_fx, entry.name, lambda tensors: None)
    value = reduction.apply(torch.cat([as_tensor(part.value) for part in parts]))
    return to_floats({0: value})[0], value.dtype if isinstance(value, Tensor) else None

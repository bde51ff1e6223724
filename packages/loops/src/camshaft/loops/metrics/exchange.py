"""Reduce logged values over the processes of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, TypeVar

import attrs
import torch
from torch import Tensor, nn

from camshaft.hooks_core.messages import must_be, warn_user
from camshaft.hooks_core.protocols import Strategy
from camshaft.loops.metrics.entry import Entry, Key, LogOptions, MetricEntry
from camshaft.loops.metrics.epoch import EpochLog, LiveValue, StepRow
from camshaft.loops.metrics.values import (
    FOLDS,
    UNKNOWN_FUNCTION,
    FunctionReduction,
    Part,
    Value,
    as_tensor,
    result_dtype,
    to_floats,
)

T = TypeVar("T")


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


@attrs.frozen(eq=False, repr=False)
class Record:
    """One process's entry for one name, as it is sent to the others, without its values.

    Attributes:
        key: The key of its entry.
        options: Settings of its calls; "own" stands for a user's function.
        function: Qualified name of a user's function; None for others, and if it is not known after a resume.
        is_metric: Whether it is a torchmetrics metric.
        path: Name of the metric among the module's submodules; None if it is none, or not known after a resume.
        is_known: Whether this process has the metric, or the function.
        is_current: Whether the metric was not updated since it was last computed.
    """

    key: Key
    options: LogOptions
    function: str | None
    is_metric: bool
    path: str | None
    is_known: bool
    is_current: bool

    @classmethod
    def of(cls, entry: Entry, paths: Mapping[int, str]) -> Record:
        """Return the record of an entry; `paths` has names of submodules by their identity."""
        options, label = entry.options, None
        if callable(options.reduce_fx):
            if options.reduce_fx is not UNKNOWN_FUNCTION:
                name = getattr(options.reduce_fx, "__qualname__", None) or type(options.reduce_fx).__qualname__
                label = f"{getattr(options.reduce_fx, '__module__', '')}.{name}"
            options = attrs.evolve(options, reduce_fx="own")
        metric = entry.metric if isinstance(entry, MetricEntry) else None
        return cls(
            key=entry.key,
            options=options,
            function=label,
            is_metric=entry.holds_metric,
            path=None if metric is None else paths.get(id(metric)),
            is_known=entry.is_reducible,
            is_current=isinstance(entry, MetricEntry) and entry.is_current,
        )

    def new_entry(self) -> Entry:
        """Return an entry without any value, for a name that only other processes logged."""
        (hook, name, dataloader_idx), options = self.key, self.options
        if self.is_metric:
            return MetricEntry(name, options, dataloader_idx, hook, None)
        if options.reduce_fx == "own":
            options = attrs.evolve(options, reduce_fx=UNKNOWN_FUNCTION)
        return Entry(name, options, dataloader_idx, hook)

    @property
    def is_shared(self) -> bool:
        """True if anything of it is reduced over processes, so that all of them must have an entry."""
        options = self.options
        return options.sync_dist is not False and (options.on_epoch or options.sync_dist is True)


Records = Mapping[Key, Mapping[int, Record]]
"""Records of each name by rank, names in the order of the first process that has them."""

Place = tuple[Key, str | int]
"""The key of an entry, and "step" for its latest value, "epoch" for its values of the epoch, or the step of a row."""

Parts = Mapping[Place, Part]
"""One process's contributions to values that are reduced over processes."""


class MetricExchange:
    """Reduces logged values over processes, to the same bits on each of them: parts are taken in the order of ranks.

    Of processes with the same data, such as the ranks of one model replica, the first one's values count.

    Args:
        strategy: Connects the processes.
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

    def reduce_epoch(self, epoch: EpochLog) -> list[LiveValue]:
        """Return an epoch's values, and those of its latest steps, as `EpochLog.live` does. Collective.

        The epoch has entries for names that only other processes logged from then on.

        Raises:
            MetricMismatchError: On every process, if their calls for one name differ, or if one that did not log a
                metric cannot find it.
        """
        entries = list(epoch.entries.values())
        paths: dict[int, str] = {}
        if self._module is not None and any(entry.holds_metric for entry in entries):
            paths = {id(submodule): path for path, submodule in self._module.named_modules()}
        records, parts = self._exchange([Record.of(entry, paths) for entry in entries], _epoch_parts(epoch))
        if epoch.stage == "train":
            self._note_steps(records)
        for key, of_name in records.items():
            first = next(iter(of_name.values()))
            if key not in epoch.entries and first.is_shared:
                epoch.add(first.new_entry())
        self._compute_metrics(records, epoch)
        reduced = self._reduce(records, parts, epoch.entries)
        epoch.held_rows = _reduced_rows(epoch, reduced)
        entries = [epoch.entries[key] for key in records if key in epoch.entries]
        values = [
            (entry, of_epoch, _value_of(entry, reduced, of_epoch)) for of_epoch in (False, True) for entry in entries
        ]
        return [LiveValue(entry, value, of_epoch) for entry, of_epoch, value in values if value is not None]

    def reduce_step(self, taken: Sequence[tuple[Entry, Value]]) -> dict[str, Value]:
        """Return the values of a training step that are reduced over processes, by the names of steps. Collective.

        Args:
            taken: The entries of such values and what this process logged.

        Raises:
            MetricMismatchError: As `reduce_epoch`.
        """
        if self._shares_steps is False:  # so on all processes
            if taken and not self._has_warned:
                self._has_warned = True
                warn_user(
                    f"`sync_dist=True` of {taken[0][0].name!r} comes too late for this epoch: when the first values of "
                    "steps were sent, no process had logged any with it. Until the epoch ends, loggers get the values "
                    "of steps of the first process alone. Log it from the first step on."
                )
            return {}
        entries: dict[Key, Entry] = {entry.key: entry for entry, _ in taken}
        own_parts: dict[Place, Part] = {(entry.key, "step"): _step_part(entry, value) for entry, value in taken}
        records, parts = self._exchange([Record.of(entry, {}) for entry, _ in taken], own_parts)
        self._note_steps(records)
        for key, of_name in records.items():
            if key not in entries:
                entries[key] = next(iter(of_name.values())).new_entry()
        reduced = self._reduce(records, parts, entries)
        return {entries[key].step_name: value for (key, _), value in reduced.items()}

    def _exchange(self, records: Sequence[Record], parts: Mapping[Place, Part]) -> tuple[Records, list[Parts]]:
        """Return the records of all processes, and the parts of those that count. Collective.

        Raises:
            MetricMismatchError: If processes logged a name in different ways; the same on each of them.
        """
        gathered = self.gather((records, _on_host(parts)))
        return _by_key([of_rank for (of_rank, _), _ in gathered]), [own for (_, own), counts in gathered if counts]

    def _note_steps(self, records: Records) -> None:
        options = [record.options for of_name in records.values() for record in of_name.values()]
        self._shares_steps = any(each.on_step and each.sync_dist is True for each in options)

    def _compute_metrics(self, records: Records, epoch: EpochLog) -> None:
        """Compute the metrics that any process has updated since they were last computed. Collective."""
        for key, of_name in records.items():
            first, known = next(iter(of_name.values())), [rank for rank, each in of_name.items() if each.is_known]
            if not (first.is_metric and first.options.on_epoch and first.is_shared and known):
                continue  # without any that knows it: a resumed epoch in which no process has logged it again
            entry = epoch.entries[key]
            assert isinstance(entry, MetricEntry)
            if len(known) < self._strategy.world_size:
                path = self._path_of(of_name, known)
                if entry.metric is None:
                    assert self._module is not None
                    entry.metric = self._module.get_submodule(path)
            elif all(record.is_current for record in of_name.values()):
                continue
            entry.compute_of_all(self.gather)

    def _path_of(self, records: Mapping[int, Record], known: Sequence[int]) -> str:
        """Return the name of the submodule that is a metric which not every process has logged."""
        paths = {rank: records[rank].path for rank in known}
        path = paths[known[0]]
        if path is None or len(set(paths.values())) > 1:
            lacking = next(rank for rank in range(self._strategy.world_size) if rank not in paths)
            rule = f"logged on all ranks, or be one and the same attribute of the module (rank {lacking} lacks it)"
            action = "Assign the metric to an attribute of the module."
            raise MetricMismatchError(records[known[0]].key[1], "value", paths, rule, action)
        return path

    def _reduce(self, records: Records, of_ranks: Sequence[Parts], entries: Mapping[Key, Entry]) -> dict[Place, Value]:
        """Return the reduced values. Collective a second time if any is reduced by a user's function."""
        by_place: dict[Place, list[Part]] = {}
        for of_rank in of_ranks:
            for place, part in of_rank.items():
                by_place.setdefault(place, []).append(part)
        values: dict[Place, Value] = {}
        unreduced: dict[Place, list[Part]] = {}
        for place, parts in by_place.items():
            reduction = str(next(iter(records[place[0]].values())).options.reduce_fx)
            if reduction == "own":
                unreduced[place] = parts
            else:
                values[place] = _merge(reduction, parts)
        return values | self._apply_functions(unreduced, records, entries) if unreduced else values

    def _apply_functions(
        self, unreduced: Mapping[Place, list[Part]], records: Records, entries: Mapping[Key, Entry]
    ) -> dict[Place, Value]:
        """Apply each function on the first process that has it, and send the results to the others. Collective."""
        applied: dict[Place, tuple[float, Any]] = {}
        failure: Exception | None = None
        for place, parts in unreduced.items():
            ranks = [rank for rank, record in records[place[0]].items() if record.function is not None]
            if ranks[:1] == [self._strategy.global_rank]:
                try:
                    applied[place] = _apply(entries[place[0]], parts)
                except Exception as error:
                    failure = failure or error
        text = None if failure is None else f"{type(failure).__name__}: {failure}"
        gathered = self._strategy.all_gather((applied, text))
        if failure is not None:
            raise failure
        for rank, (_, other) in enumerate(gathered):
            if other is not None:
                rule = f"a function that reduces the values of all ranks (rank {rank} applied it)"
                raise RuntimeError(must_be("reduce_fx", rule, other, "log", "See the error of that rank."))
        return {place: _as_value(*sent) for of_rank, _ in gathered for place, sent in of_rank.items()}


def _by_key(of_ranks: Sequence[Sequence[Record]]) -> Records:
    """Return the records of each name. Raises as `MetricExchange._exchange`."""
    records: dict[Key, dict[int, Record]] = {}
    for rank, of_rank in enumerate(of_ranks):
        for record in of_rank:
            records.setdefault(record.key, {})[rank] = record
    for (_, name, _), of_name in records.items():
        rule, action = "the same on all ranks", "Log it with the same arguments everywhere, or under another name."
        kinds = {rank: "a metric" if record.is_metric else "a number" for rank, record in of_name.items()}
        if len(set(kinds.values())) > 1:
            raise MetricMismatchError(name, "value", kinds, rule, "Log it under another name.")
        is_resumed = any(record.function is None and not record.is_known for record in of_name.values())
        for field in attrs.fields_dict(LogOptions):
            asked = {rank: getattr(record.options, field) for rank, record in of_name.items()}
            if field == "reduce_fx" and not is_resumed:
                asked = {rank: record.function or asked[rank] for rank, record in of_name.items()}
            if len(set(asked.values())) > 1:
                raise MetricMismatchError(name, field, asked, rule, action)
    return records


def _epoch_parts(epoch: EpochLog) -> dict[Place, Part]:
    """Return this process's part in the values of an epoch, and of the evaluation batches that were held back."""
    parts: dict[Place, Part] = {}
    shared: dict[str, Entry] = {}
    for entry in epoch.entries.values():
        if entry.options.sync_dist is True:
            shared[entry.step_name] = entry
            if (value := entry.last_value) is not None:
                parts[entry.key, "step"] = _step_part(entry, value)
        is_shared = entry.options.sync_dist is not False and entry.reduction is not None
        if is_shared and (part := entry.reduction.part()) is not None:  # type: ignore[union-attr]
            parts[entry.key, "epoch"] = part
    for row in epoch.held_rows:
        for name, value in row.values.items():
            if name in shared:
                parts[shared[name].key, row.step] = _step_part(shared[name], value)
    return parts


def _reduced_rows(epoch: EpochLog, reduced: Mapping[Place, Value]) -> list[StepRow]:
    """Return the rows that this process held back, with reduced values, and rows of what only others logged."""
    names = {key: entry.step_name for key, entry in epoch.entries.items()}
    of_rows = {(step, names[key]): float(value) for (key, step), value in reduced.items() if isinstance(step, int)}
    rows = [
        StepRow(row.step, {name: of_rows.pop((row.step, name), value) for name, value in row.values.items()})
        for row in epoch.held_rows
    ]
    return rows + [StepRow(step, {name: number}) for (step, name), number in of_rows.items()]


def _value_of(entry: Entry, reduced: Mapping[Place, Value], of_epoch: bool) -> Value | None:
    """Return the value to publish: of all processes where that is asked for, else this process's own."""
    options = entry.options
    if not (options.on_epoch if of_epoch else options.on_step):
        return None
    is_shared = options.sync_dist is not False if of_epoch else options.sync_dist is True
    if not is_shared:
        return entry.epoch_value() if of_epoch else entry.last_value
    if of_epoch and isinstance(entry, MetricEntry):
        return entry.value_of_all
    return reduced.get((entry.key, "epoch" if of_epoch else "step"))


def _step_part(entry: Entry, value: Value) -> Part:
    if callable(entry.options.reduce_fx):
        return Part(as_tensor(value).reshape(1).cpu())
    return Part(value, 1.0, result_dtype(value.dtype) if isinstance(value, Tensor) else None)


def _on_host(parts: Mapping[Place, Part]) -> Parts:
    """Return parts with numbers for tensors of shape (), in one transfer per device. Waits for the devices."""
    scalars = {place: part for place, part in parts.items() if not (isinstance(part.value, Tensor) and part.value.ndim)}
    numbers = to_floats([part.value for part in scalars.values()])
    on_host = {
        place: attrs.evolve(part, value=number) for (place, part), number in zip(scalars.items(), numbers, strict=True)
    }
    return {**parts, **on_host}


def _merge(reduction: str, parts: Sequence[Part]) -> Value:
    """Return the value of all processes: a tensor on the CPU, or a number if only numbers were logged."""
    numbers = [float(part.value) for part in parts]
    value = math.nan if any(map(math.isnan, numbers)) else reduce(FOLDS[reduction][2], numbers)
    if reduction == "mean":
        weight = sum(part.weight for part in parts)
        value = value / weight if weight else math.nan
    dtypes = [part.dtype for part in parts if part.dtype is not None]
    return _as_value(value, None if not dtypes else torch.float64 if torch.float64 in dtypes else torch.float32)


def _as_value(number: float, dtype: torch.dtype | None) -> Value:
    return number if dtype is None else torch.tensor(number, dtype=dtype)


def _apply(entry: Entry, parts: Sequence[Part]) -> tuple[float, torch.dtype | None]:
    """Return what a user's function gives for the values of all processes, as a number and a tensor's type."""
    reduction = entry.reduction
    if not isinstance(reduction, FunctionReduction):  # of steps alone
        assert callable(entry.options.reduce_fx)
        reduction = FunctionReduction(entry.options.reduce_fx, entry.name, lambda tensors: None)
    value = reduction.apply(torch.cat([as_tensor(part.value) for part in parts]))
    return (to_floats([value])[0], value.dtype) if isinstance(value, Tensor) else (value, None)

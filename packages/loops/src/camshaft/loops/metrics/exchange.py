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
from camshaft.loops.metrics.entry import Entry, Key, LogOptions
from camshaft.loops.metrics.epoch import EpochLog, LiveValue, StepRow
from camshaft.loops.metrics.metric_entry import MetricEntry
from camshaft.loops.metrics.reductions import (
    FOLDS,
    UNKNOWN_FUNCTION,
    FunctionReduction,
    Part,
    is_user_function,
    reduction_name,
)
from camshaft.loops.metrics.values import Value, as_tensor, result_dtype, to_floats

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


@attrs.frozen(eq=False)
class Record:
    """One process's part in one name, as it is sent to the others.

    Attributes:
        key: The key of its entry.
        options: Settings of its calls; `reduce_fx` by its plain name, "own" for a user's function.
        function: Qualified name of a user's function; None for others, and if it is not known after a resume.
        is_metric: Whether it is a torchmetrics metric.
        path: Name of the metric among the module's submodules; None if it is none, or not known after a resume.
        is_known: Whether this process has the metric, or the function.
        is_current: Whether the metric was not updated since it was last computed.
        step: Its latest value, if values of steps are reduced over processes.
        epoch: Its values of the epoch, likewise; None for a metric, which keeps them itself.
    """

    key: Key
    options: LogOptions
    function: str | None
    is_metric: bool
    path: str | None
    is_known: bool
    is_current: bool
    step: Part | None = None
    epoch: Part | None = None

    @classmethod
    def of(cls, entry: Entry, paths: Mapping[int, str]) -> Record:
        """Return the record of an entry without its parts; `paths` has names of submodules by their identity."""
        reduce_fx, label = entry.options.reduce_fx, None
        if is_user_function(reduce_fx) and reduce_fx is not UNKNOWN_FUNCTION:
            name = getattr(reduce_fx, "__qualname__", None) or type(reduce_fx).__qualname__
            label = f"{getattr(reduce_fx, '__module__', '')}.{name}"
        metric = entry.metric if isinstance(entry, MetricEntry) else None
        return cls(
            key=(entry.hook, "".join([entry.name]), entry.dataloader_idx),  # of `str` itself, not of a subclass
            options=attrs.evolve(entry.options, reduce_fx=reduction_name(reduce_fx) or "own"),
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

Place = tuple[int, Key]
"""0 for the value of the step or 1 for that of the epoch, and the key of the entry."""


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
        gathered = self.gather((self._epoch_records(list(epoch.entries.values())), epoch.held_rows))
        records = _by_key([(of_rank, counts) for (of_rank, _), counts in gathered])
        if epoch.stage == "train":
            self._note_steps(records)
        for key, of_name in records.items():
            first = next(iter(of_name.values()))
            if key not in epoch.entries and first.is_shared:
                epoch.add(first.new_entry())
        entries = [epoch.entries[key] for key in records if key in epoch.entries]
        self._compute_metrics(records, epoch)
        reduced = self._reduce(records, epoch.entries)
        epoch.held_rows = _reduce_rows(epoch, [rows for (_, rows), counts in gathered if counts])
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
        parts = _on_host([_step_part(entry, value) for entry, value in taken])
        records = _by_key(
            self.gather([attrs.evolve(Record.of(entry, {}), step=part) for (entry, _), part in zip(taken, parts)])  # noqa: B905
        )
        self._note_steps(records)
        for key, of_name in records.items():
            if key not in entries:
                entries[key] = next(iter(of_name.values())).new_entry()
        reduced = self._reduce(records, entries)
        return {entries[key].step_name: value for (_, key), value in reduced.items()}

    def _note_steps(self, records: Records) -> None:
        options = [record.options for of_name in records.values() for record in of_name.values()]
        self._shares_steps = any(each.on_step and each.sync_dist is True for each in options)

    def _epoch_records(self, entries: Sequence[Entry]) -> list[Record]:
        paths: dict[int, str] = {}
        if self._module is not None and any(entry.holds_metric for entry in entries):
            paths = {id(submodule): path for path, submodule in self._module.named_modules()}
        records = [Record.of(entry, paths) for entry in entries]
        parts: list[Part | None] = []
        for entry, record in zip(entries, records, strict=True):
            value = entry.last_value if entry.options.sync_dist is True else None
            parts.append(None if value is None else _step_part(entry, value))
            parts.append(entry.reduction.part() if record.is_shared and entry.reduction is not None else None)
        parts = _on_host(parts)
        return [
            attrs.evolve(record, step=step, epoch=epoch)
            for record, step, epoch in zip(records, parts[::2], parts[1::2], strict=True)
        ]

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

    def _reduce(self, records: Records, entries: Mapping[Key, Entry]) -> dict[Place, Value]:
        """Return the reduced values. Collective a second time if any is reduced by a user's function."""
        values: dict[Place, Value] = {}
        unreduced: dict[Place, list[Part]] = {}
        for key, of_name in records.items():
            reduction = str(next(iter(of_name.values())).options.reduce_fx)
            for position, name in enumerate(("step", "epoch")):
                parts = [part for record in of_name.values() if (part := getattr(record, name)) is not None]
                if parts and reduction == "own":
                    unreduced[position, key] = parts
                elif parts:
                    values[position, key] = _merge(reduction, parts)
        return values | self._apply_functions(unreduced, records, entries) if unreduced else values

    def _apply_functions(
        self, unreduced: Mapping[Place, list[Part]], records: Records, entries: Mapping[Key, Entry]
    ) -> dict[Place, Value]:
        """Apply each function on the first process that has it, and send the results to the others. Collective."""
        applied: dict[Place, tuple[float, Any]] = {}
        failure: Exception | None = None
        for place, parts in unreduced.items():
            ranks = [rank for rank, record in records[place[1]].items() if record.function is not None]
            if ranks[:1] == [self._strategy.global_rank]:
                try:
                    applied[place] = _apply(entries[place[1]], parts)
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


def _by_key(gathered: Sequence[tuple[Sequence[Record], bool]]) -> Records:
    """Return the records of each name, without the parts of processes that do not count.

    Raises:
        MetricMismatchError: If processes logged a name in different ways; the same on each of them.
    """
    records: dict[Key, dict[int, Record]] = {}
    for rank, (of_rank, counts) in enumerate(gathered):
        for record in of_rank:
            one = record if counts else attrs.evolve(record, step=None, epoch=None)
            records.setdefault(record.key, {})[rank] = one
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


def _reduce_rows(epoch: EpochLog, gathered: Sequence[Sequence[StepRow]]) -> list[StepRow]:
    """Return the rows of an evaluation that this process held back, with values reduced over processes."""
    shared = {entry.step_name: entry for entry in epoch.entries.values() if entry.options.sync_dist is True}
    parts: dict[tuple[int, str], list[Part]] = {}
    for rows in gathered:
        for row in rows:
            for name in row.values.keys() & shared.keys():
                parts.setdefault((row.step, name), []).append(_step_part(shared[name], row.values[name]))
    reduced: dict[tuple[int, str], float] = {}
    for (step, name), of_ranks in parts.items():
        record = Record.of(shared[name], {})
        if record.options.reduce_fx != "own":
            reduced[step, name] = float(_merge(str(record.options.reduce_fx), of_ranks))
        elif record.function is not None:
            reduced[step, name] = _apply(shared[name], of_ranks)[0]
    rows = [
        StepRow(row.step, {name: reduced.pop((row.step, name), value) for name, value in row.values.items()})
        for row in epoch.held_rows
    ]
    return rows + [StepRow(step, {name: number}) for (step, name), number in reduced.items()]


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
    return reduced.get((int(of_epoch), entry.key))


def _step_part(entry: Entry, value: Value) -> Part:
    if is_user_function(entry.options.reduce_fx):
        return Part(as_tensor(value).reshape(1).cpu())
    return Part(value, 1.0, result_dtype(value.dtype) if isinstance(value, Tensor) else None)


def _on_host(parts: Sequence[Part | None]) -> list[Part | None]:
    """Return parts with numbers for tensors of shape (), in one transfer per device. Waits for the devices."""
    is_scalar = [part is not None and not (isinstance(part.value, Tensor) and part.value.ndim) for part in parts]
    numbers = iter(to_floats([part.value for part, scalar in zip(parts, is_scalar, strict=True) if part and scalar]))
    return [
        attrs.evolve(part, value=next(numbers)) if part and scalar else part
        for part, scalar in zip(parts, is_scalar, strict=True)
    ]


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
        reduction = FunctionReduction(entry.options.reduce_fx, entry.name, lambda tensors: None)  # type: ignore[arg-type]
    value = reduction.apply(torch.cat([as_tensor(part.value) for part in parts]))
    return (to_floats([value])[0], value.dtype) if isinstance(value, Tensor) else (value, None)

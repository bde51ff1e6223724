"""Reducing logged values over the processes of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
from torch import Tensor, nn

from camshaft.hooks_core.messages import must_be
from camshaft.hooks_core.protocols import Strategy
from camshaft.hooks_core.user_warnings import warn_user
from camshaft.loops.metrics.entry import Entry, Key, LogOptions, MetricEntry
from camshaft.loops.metrics.reductions import (
    UNKNOWN_FUNCTION,
    OwnReduction,
    Part,
    all_values,
    as_value,
    gather_data,
    label_of,
    merge,
    on_host,
    part_of_step,
    reduction_name,
)
from camshaft.loops.metrics.stage_log import LiveValue, StageLog, StepRow
from camshaft.loops.metrics.values import Value, to_floats


class MetricMismatchError(ValueError):
    """Processes logged one name in different ways.

    Attributes:
        name: The name.
        field: What differs: an argument of `log`, or "value".
        by_rank: What each process that logged it asked for.
    """

    def __init__(self, name: str, field: str, by_rank: Mapping[int, object], rule: str, action: str) -> None:
        self.name = name
        self.field = field
        self.by_rank = dict(by_rank)
        got = ", ".join(f"{value!r} on rank {rank}" for rank, value in by_rank.items())
        super().__init__(f"`{field}` must be {rule}, but got {got} in log({name!r}). {action}")


@attrs.frozen(eq=False)
class Record:
    """What one process has of one name.

    Attributes:
        name: The name.
        dataloader_idx: Index of its loader.
        options: How it was logged; `reduce_fx` by its plain name, "own" for a function of one's own.
        function: Which function of one's own it is; None if it is none, or not known after a resume.
        is_metric: Whether it is a torchmetrics metric.
        step: Its latest value, if the values of steps are reduced over processes.
        epoch: Its values of the epoch, likewise; None for a metric, which keeps them itself.
        path: Where in the module the metric is; None if it is no attribute, or not known after a resume.
        is_known: Whether this process has the metric, or the function.
        is_current: Whether the metric has got nothing since it was last computed.
        hook: The hook in which it was logged.
    """

    name: str
    dataloader_idx: int | None
    options: LogOptions
    function: str | None
    is_metric: bool
    step: Part | None = None
    epoch: Part | None = None
    path: str | None = None
    is_known: bool = True
    is_current: bool = False
    hook: str | None = None

    @property
    def key(self) -> Key:
        """What tells it from others."""
        return self.hook, self.name, self.dataloader_idx

    @property
    def reduction(self) -> str:
        """ "mean", "sum", "max", "min" or "own"."""
        return str(self.options.reduce_fx)

    @property
    def needs_all(self) -> bool:
        """Whether anything of it is reduced over processes, so that all of them have to know of it."""
        options = self.options
        return options.sync_dist is not False and (options.on_epoch or options.sync_dist is True)


def record_of(entry: Entry, paths: Mapping[int, str]) -> Record:
    """The record of an entry without its parts; `paths` says where metrics are, by their identity."""
    reduce_fx = entry.options.reduce_fx
    metric = entry.metric if isinstance(entry, MetricEntry) else None
    return Record(
        name="".join([entry.name]),  # of `str` itself, not of a subclass
        dataloader_idx=entry.dataloader_idx,
        options=attrs.evolve(entry.options, reduce_fx=reduction_name(reduce_fx) or "own"),
        function=label_of(reduce_fx),
        is_metric=isinstance(entry, MetricEntry),
        path=None if metric is None else paths.get(id(metric)),
        is_known=entry.is_reducible,
        is_current=isinstance(entry, MetricEntry) and entry.is_current,
        hook=entry.hook,
    )


def entry_for(record: Record) -> Entry:
    """An entry for a name that another process logged, without any value."""
    options = record.options
    if record.is_metric:
        return MetricEntry(record.name, options, record.dataloader_idx, None, record.hook)
    if options.reduce_fx == "own":
        options = attrs.evolve(options, reduce_fx=UNKNOWN_FUNCTION)
    return Entry(record.name, options, record.dataloader_idx, record.hook)


def by_name(gathered: Sequence[Sequence[Record]]) -> dict[Key, dict[int, Record]]:
    """The records of each name, by the index of the process, names in the order of the first process that has them.

    Args:
        gathered: The records of each process.

    Raises:
        MetricMismatchError: If processes asked for different things; the same on each of them.
    """
    named: dict[Key, dict[int, Record]] = {}
    for rank, records in enumerate(gathered):
        for record in records:
            named.setdefault(record.key, {})[rank] = record
    for records_of_name in named.values():
        _check(records_of_name)
    return named


def _check(records: Mapping[int, Record]) -> None:
    first = next(iter(records.values()))
    rule = "the same on all ranks"
    kinds = {rank: "a metric" if record.is_metric else "a number" for rank, record in records.items()}
    if len(set(kinds.values())) > 1:
        raise MetricMismatchError(first.name, "value", kinds, rule, "Log it under another name.")
    for field in attrs.fields_dict(LogOptions):
        asked = {rank: getattr(record.options, field) for rank, record in records.items()}
        if field == "reduce_fx":
            known = {rank: records[rank].function or asked[rank] for rank in asked}
            is_resumed = any(record.function is None and not record.is_known for record in records.values())
            asked = asked if is_resumed else known
        if len(set(asked.values())) > 1:
            action = "Log it with the same arguments everywhere, or under another name."
            raise MetricMismatchError(first.name, field, asked, rule, action)


_Records = Mapping[Key, Mapping[int, Record]]
_Values = dict[Key, Value]


class MetricExchange:
    """What the processes of a run tell each other of what they logged.

    Every process gets the same values, to the bit: what they compute from is in the order of the processes. Of those
    that get the same data, as the ranks of one model replica, the first one's values count.

    Args:
        strategy: Connects the processes.
        module: Where a process that never logged a metric finds it.
    """

    def __init__(self, strategy: Strategy, module: nn.Module | None) -> None:
        self._strategy = strategy
        self._module = module
        self._rank = strategy.global_rank
        self._num_ranks = strategy.world_size
        self._has_warned = False
        self._is_step_shared: bool | None = None  # whether any process reduces values of steps; None if nobody knows

    def reduce_epoch(self, stage: StageLog) -> list[LiveValue]:
        """The values of a stage's epoch, and those of its latest steps, as `StageLog.live` gives them. Collective.

        What other processes logged and this one did not is there as well, and has an entry in the stage from then on.

        Raises:
            MetricMismatchError: On every process, if they asked for different things under one name, or if one that
                did not log a metric cannot find it.
        """
        gathered = gather_data(self._strategy, (self._records(list(stage.entries.values())), stage.held_rows))
        records = by_name([_without_parts(of_rank[0], counts) for of_rank, counts in gathered])
        if stage.stage == "train":
            self._note_steps(records)
        for key, of_name in records.items():
            first = next(iter(of_name.values()))
            if key not in stage.entries and first.needs_all:
                stage.add(entry_for(first))
        entries = [stage.entries[key] for key in records if key in stage.entries]
        self._compute_metrics(records, stage)
        steps, epochs = self._merge(records, stage.entries)
        stage.held_rows = merged_rows(stage, [of_rank[1] for of_rank, counts in gathered if counts])
        return [
            LiveValue(entry, value, of_epoch)
            for of_epoch, shared in ((False, steps), (True, epochs))
            for entry in entries
            if (value := _value_of(entry, shared, of_epoch)) is not None
        ]

    def reduce_step(self, taken: Sequence[tuple[Entry, Value]]) -> dict[str, Value]:
        """The values of a training step that are reduced over processes, by the names of steps. Collective.

        Args:
            taken: The entries of such values and what this process logged.

        Raises:
            MetricMismatchError: As `reduce_epoch`.
        """
        if self._is_step_shared is False:  # so all processes have told each other
            if taken and not self._has_warned:
                self._has_warned = True
                warn_user(
                    f"`sync_dist=True` of {taken[0][0].name!r} comes too late for this epoch: when the first values of "
                    "steps were sent, no process had logged any with it. Until the epoch ends, loggers get the values "
                    "of steps of the first process alone. Log it from the first step on."
                )
            return {}
        entries: dict[Key, Entry] = {entry.key: entry for entry, _ in taken}
        gathered = gather_data(self._strategy, self._step_records(taken))
        records = by_name([_without_parts(of_rank, counts) for of_rank, counts in gathered])
        self._note_steps(records)
        for key, of_name in records.items():
            if key not in entries:
                entries[key] = entry_for(next(iter(of_name.values())))
        steps, _ = self._merge(records, entries)
        return {entries[key].step_name: value for key, value in steps.items()}

    def _note_steps(self, records: _Records) -> None:
        options = [record.options for of_name in records.values() for record in of_name.values()]
        self._is_step_shared = any(each.on_step and each.sync_dist is True for each in options)

    def _records(self, entries: Sequence[Entry]) -> list[Record]:
        paths: dict[int, str] = {}
        if self._module is not None and any(isinstance(entry, MetricEntry) for entry in entries):
            paths = {id(submodule): path for path, submodule in self._module.named_modules()}
        records = [record_of(entry, paths) for entry in entries]
        steps = [
            _step_part(entry, value)
            if entry.options.sync_dist is True and (value := entry.last_value) is not None
            else None
            for entry in entries
        ]
        epochs = [
            entry.reduction.part() if record.needs_all and entry.reduction is not None else None
            for entry, record in zip(entries, records, strict=True)
        ]
        parts = on_host([*steps, *epochs])
        return [
            attrs.evolve(record, step=step, epoch=epoch)
            for record, step, epoch in zip(records, parts[: len(steps)], parts[len(steps) :], strict=True)
        ]

    def _step_records(self, taken: Sequence[tuple[Entry, Value]]) -> list[Record]:
        parts = on_host([_step_part(entry, value) for entry, value in taken])
        return [attrs.evolve(record_of(entry, {}), step=part) for (entry, _), part in zip(taken, parts, strict=True)]

    def _compute_metrics(self, records: _Records, stage: StageLog) -> None:
        """Compute every metric of the epoch that has got anything on any process since it was computed last."""
        for key, of_name in records.items():
            first = next(iter(of_name.values()))
            if not (first.is_metric and first.options.on_epoch and first.needs_all):
                continue
            if not any(record.is_known for record in of_name.values()):
                continue  # a resumed epoch in which nobody has logged it again
            entry = stage.entries[key]
            assert isinstance(entry, MetricEntry)
            if any(rank not in of_name or not of_name[rank].is_known for rank in range(self._num_ranks)):
                path = self._path_of(of_name)
                if entry.metric is None:
                    assert self._module is not None
                    entry.metric = self._module.get_submodule(path)
            elif all(record.is_current for record in of_name.values()):
                continue
            entry.compute_together(self._strategy)

    def _path_of(self, records: Mapping[int, Record]) -> str:
        """Where a metric is that not every process has logged."""
        paths = {rank: record.path for rank, record in records.items() if record.is_known}
        path = next(iter(paths.values()))
        if path is None or len(set(paths.values())) > 1:
            name = next(iter(records.values())).name
            lacking = [rank for rank in range(self._num_ranks) if rank not in paths]
            rule = f"logged on all ranks, or be one and the same attribute of the module (rank {lacking[0]} lacks it)"
            raise MetricMismatchError(name, "value", paths, rule, "Assign the metric to an attribute of the module.")
        return path

    def _merge(self, records: _Records, entries: Mapping[Key, Entry]) -> tuple[_Values, _Values]:
        """The values of steps and of the epoch. Collective a second time if a function of one's own is among them."""
        values: list[_Values] = [{}, {}]
        unreduced: dict[tuple[int, Key], list[Part]] = {}
        for key, of_name in records.items():
            for position, parts in enumerate(
                (
                    [record.step for record in of_name.values() if record.step is not None],
                    [record.epoch for record in of_name.values() if record.epoch is not None],
                )
            ):
                reduction = next(iter(of_name.values())).reduction
                if parts and reduction == "own":
                    unreduced[position, key] = parts
                elif parts:
                    values[position][key] = merge(reduction, parts)
        if unreduced:
            for (position, key), value in self._apply_functions(unreduced, records, entries).items():
                values[position][key] = value
        return values[0], values[1]

    def _apply_functions(
        self, unreduced: Mapping[tuple[int, Key], list[Part]], records: _Records, entries: Mapping[Key, Entry]
    ) -> dict[tuple[int, Key], Value]:
        """Let the first process that has a function apply it, and tell the others. Collective."""
        applied: dict[tuple[int, Key], tuple[float, Any]] = {}
        failure: Exception | None = None
        for place, parts in unreduced.items():
            of_name = records[place[1]]
            if self._rank == next((rank for rank, record in of_name.items() if record.function is not None), None):
                try:
                    applied[place] = _as_sent(_function_of(entries[place[1]])(all_values(parts)))
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
        return {place: as_value(*sent) for of_process, _ in gathered for place, sent in of_process.items()}


def merged_rows(stage: StageLog, gathered: Sequence[Sequence[StepRow]]) -> list[StepRow]:
    """The rows of an evaluation that this process held back, with values that are reduced over processes.

    Args:
        stage: The stage, with the entries of all of them.
        gathered: The rows of each process whose values count; of others only what is reduced is taken.
    """
    shared = {entry.step_name: entry for entry in stage.entries.values() if entry.options.sync_dist is True}
    parts: dict[tuple[int, str], list[float]] = {}
    for rows in gathered:
        for row in rows:
            for name in row.values.keys() & shared.keys():
                parts.setdefault((row.step, name), []).append(float(row.values[name]))
    merged: dict[tuple[int, str], float] = {}
    for (step, name), numbers in parts.items():
        entry = shared[name]
        record = record_of(entry, {})
        if record.reduction != "own":
            merged[step, name] = float(merge(record.reduction, [Part(number) for number in numbers]))
        elif record.function is not None:
            values = all_values([part_of_step(number, is_own=True) for number in numbers])
            merged[step, name] = _as_sent(_function_of(entry)(values))[0]
    rows = [
        StepRow(row.step, {name: merged.pop((row.step, name), value) for name, value in row.values.items()})
        for row in stage.held_rows
    ]
    return rows + [StepRow(step, {name: number}) for (step, name), number in merged.items()]


def _without_parts(records: Sequence[Record], counts: bool) -> Sequence[Record]:
    """The records of a process, without its values if another one's count in their place."""
    return records if counts else [attrs.evolve(record, step=None, epoch=None) for record in records]


def _value_of(entry: Entry, shared: Mapping[Key, Value], of_epoch: bool) -> Value | None:
    """The value to publish: of all processes where that was asked for, else this process's own."""
    options = entry.options
    if not (options.on_epoch if of_epoch else options.on_step):
        return None
    is_shared = options.sync_dist is not False if of_epoch else options.sync_dist is True
    if not is_shared:
        return entry.epoch_value() if of_epoch else entry.last_value
    if of_epoch and isinstance(entry, MetricEntry):
        return entry.value_together
    return shared.get(entry.key)


def _step_part(entry: Entry, value: Value) -> Part:
    return part_of_step(value, is_own=record_of(entry, {}).reduction == "own")


def _function_of(entry: Entry) -> Callable[[Tensor], Value]:
    reduction = entry.reduction
    if not isinstance(reduction, OwnReduction):  # of steps alone
        reduction = OwnReduction(lambda tensors: None, entry.options.reduce_fx, entry.name)  # type: ignore[arg-type]
    return reduction.reduce


def _as_sent(value: Value) -> tuple[float, Any]:
    return (to_floats([value])[0], value.dtype) if isinstance(value, Tensor) else (value, None)

"""What processes tell each other of the names that they logged, and checking that they mean the same by a name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from camshaft.trainer.log_options import LogOptions
from camshaft.trainer.metric_entry import Entry, Key, MetricEntry
from camshaft.trainer.parts import Part
from camshaft.trainer.reduce_functions import UNKNOWN_FUNCTION, label_of, reduction_name


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

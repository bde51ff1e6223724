"""Log torchmetrics metrics: the metric itself collects the epoch's values, of this process or of all.

torchmetrics gathers each tensor of each metric by itself, and hangs where processes hold different numbers of them,
as after different numbers of batches. Here all states of a metric travel together, through the strategy, which also
notices a process that failed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from camshaft.hooks_core.messages import must_be
from camshaft.loops.metrics.entry import Entry, LogOptions
from camshaft.loops.metrics.reductions import Reduction
from camshaft.loops.metrics.values import Value, as_single_value, is_metric

Gather = Callable[[Any], list[tuple[Any, bool]]]
"""Collective: returns the values of all processes, each with whether it counts; see `MetricExchange.gather`."""


class MetricEntry(Entry):
    """A name under which a `torchmetrics.Metric` is logged.

    Args:
        metric: The metric; None in a resumed epoch until it is logged again.

    Attributes:
        metric: The same.
        is_shared: True if other processes log it too, so that values read before the epoch's end are of this process's
            batches.
        value_of_all: What `compute_of_all` computed last.

    Raises:
        ValueError: If the options ask for a reduction, since the metric itself is one.
    """

    holds_metric: ClassVar[bool] = True

    def __init__(
        self, name: str, options: LogOptions, dataloader_idx: int | None, hook: str | None, metric: Any
    ) -> None:
        super().__init__(name, options, dataloader_idx, hook)
        self.metric = metric
        self.is_shared = False
        self.value_of_all: Value | None = None
        self._num_computed: tuple[int, ...] | None = None
        if options.reduce_fx != "mean":
            rule = "left out for a metric, which reduces its values itself"
            raise ValueError(must_be("reduce_fx", rule, options.reduce_fx, f"log({name!r})", "Leave it out."))

    def new_reduction(self) -> Reduction | None:
        """Return None: the metric itself collects."""
        return None

    def keep(self, value: object) -> Value | None:
        """Return the metric's value of the batch; None if only the epoch's is asked for.

        Raises:
            ValueError: If it is another metric than at first, or has no value of the batch.
        """
        if value is not self.metric:
            if self.metric is not None or not is_metric(value):
                rule = "the same metric in every call of an epoch"
                raise ValueError(must_be("value", rule, value, f"log({self.name!r})", "Log it under another name."))
            self.metric = value
        if not self.options.on_step:
            return None
        of_batch = getattr(self.metric, "_forward_cache", None)
        if of_batch is None:
            action = "Call `metric(...)` instead of `metric.update(...)`, or log with on_step=False, on_epoch=True."
            rule = "a metric that was called with the batch"
            raise ValueError(must_be("value", rule, value, f"log({self.name!r})", action))
        return Entry.keep(self, of_batch)  # hot path: `super()` costs more

    def epoch_value(self) -> Value | None:
        """Return the value of all batches of this process."""
        if not self.options.on_epoch or self.metric is None:
            return None
        return self._checked(compute_alone(self.metric) if self.is_shared else self.metric.compute())

    def compute_of_all(self, gather: Gather) -> None:
        """Compute the value of the batches of all processes. Collective."""
        self.value_of_all = self._checked(compute_of_all(self.metric, gather))
        self._num_computed = _num_updates(self.metric)

    @property
    def is_current(self) -> bool:
        """Return whether the metric was not updated since `compute_of_all`."""
        return self._num_computed is not None and self._num_computed == _num_updates(self.metric)

    @property
    def is_reducible(self) -> bool:
        """See `Entry`."""
        return self.metric is not None

    def reset(self) -> None:
        """Reset the metric for the next epoch."""
        if self.metric is not None:
            self.metric.reset()

    def _checked(self, result: Any) -> Value:
        value = as_single_value(result)
        if value is None:
            action = "Compute it yourself and log its parts."
            raise ValueError(
                must_be("value", "a metric that computes one number", result, f"log({self.name!r})", action)
            )
        return value


def compute_alone(metric: Any) -> Any:
    """Return what a metric computes of this process's batches. Not collective; the metric does not cache it."""
    with _changed([(part, {"distributed_available_fn": _never, "_computed": None}) for part in _parts(metric)]):
        return _compute(metric)


def compute_of_all(metric: Any, gather: Gather) -> Any:
    """Return what a metric computes of the batches of all processes. Collective, also where it was never updated.

    A metric with a `process_group`, a `dist_sync_fn` or an override of its synchronization keeps to that.
    """
    parts = _parts(metric)
    for part in parts:
        part._computed = None  # a cached value on one process may be missing on another
    with _changed(
        [
            (part, {"_sync_dist": partial(_gather_states, part, gather), "distributed_available_fn": _always})
            for part in parts
            if _has_default_sync(part)
        ]
    ):
        return _compute(metric)


def _num_updates(metric: Any) -> tuple[int, ...]:
    return tuple(part.update_count for part in _parts(metric))


def _compute(metric: Any) -> Any:
    with warnings.catch_warnings():
        # rightly so on a process without a batch
        warnings.filterwarnings("ignore", message=r"The ``compute`` method of metric .* was called before the")
        return metric.compute()


def _parts(metric: Any) -> list[Any]:
    return [part for part in metric.modules() if is_metric(part)]


@contextmanager
def _changed(changes: list[tuple[Any, dict[str, Any]]]) -> Iterator[None]:
    """Set attributes of metrics for the duration of a `with` statement."""
    before = [
        (vars(part), {name: vars(part)[name] for name in changed if name in vars(part)}, changed)
        for part, changed in changes
    ]
    for own, _, changed in before:
        own.update(changed)
    try:
        yield
    finally:
        for own, values, changed in before:
            for name in changed:
                own.pop(name, None)
            own.update(values)


def _always() -> bool:
    return True


def _never() -> bool:
    return False


def _has_default_sync(part: Any) -> bool:
    from torchmetrics import Metric

    return (
        type(part)._sync_dist is Metric._sync_dist
        and type(part).sync is Metric.sync
        and getattr(part, "dist_sync_fn", None) is None
        and getattr(part, "process_group", None) is None
    )


def _gather_states(metric: Any, gather: Gather, *_: Any, **__: Any) -> None:
    """Give a metric the reduced states of all processes; torchmetrics restores its own afterwards."""
    names = list(metric._reductions)
    gathered = gather([_moved(getattr(metric, name), torch.device("cpu")) for name in names])
    for position, name in enumerate(names):
        states = [of_process[position] for of_process, counts in gathered if counts]
        reduction, current = metric._reductions[name], getattr(metric, name)
        if isinstance(metric._defaults[name], Tensor):
            reduced = torch.stack(states).to(current.device)
            setattr(metric, name, reduced if reduction is None else reduction(reduced))
            continue
        device = torch.device("cpu") if metric.compute_on_cpu else metric.device
        items = [_moved(item, device) for state in states for item in (state if isinstance(state, list) else [state])]
        if reduction is None:
            setattr(metric, name, items)
        else:
            setattr(metric, name, reduction(items) if items else torch.empty(0, device=device))


def _moved(state: Any, device: torch.device) -> Any:
    if isinstance(state, Tensor):
        return state.detach().to(device)
    return [_moved(item, device) for item in state] if isinstance(state, list) else state

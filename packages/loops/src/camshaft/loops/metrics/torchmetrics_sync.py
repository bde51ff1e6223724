"""Computing a torchmetrics metric of the batches of this process alone, or of those of all processes.

torchmetrics gathers each tensor of each metric by itself, and waits for ever where processes hold different numbers of
them, as they do after different numbers of batches. Here all states of a metric travel together, through the
strategy, which also knows of a process that failed.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from camshaft.hooks_core.protocols import Strategy
from camshaft.loops.metrics.reductions import gather_data
from camshaft.loops.metrics.values import is_metric

_ABSENT = object()


def compute_alone(metric: Any) -> Any:
    """What a metric computes of this process's batches. Not collective, and nothing of it is kept."""
    with _changed(metric, distributed_available_fn=lambda: False, _computed=None):
        return _compute(metric)


def compute_together(metric: Any, strategy: Strategy) -> Any:
    """What a metric computes of the batches of all processes. Collective: also where it was never updated.

    A metric with a `process_group`, a `dist_sync_fn` or a way of its own to gather its states keeps to that.
    """
    for part in _parts(metric):
        part._computed = None  # what one process still knows another may not
    with _gathering(metric, strategy):
        return _compute(metric)


def num_updates(metric: Any) -> tuple[int, ...]:
    """How often a metric, and those within it, was updated since it was reset."""
    return tuple(part.update_count for part in _parts(metric))


def _compute(metric: Any) -> Any:
    with warnings.catch_warnings():
        # a process without a batch has not updated it, which is as it should be
        warnings.filterwarnings("ignore", message=r"The ``compute`` method of metric .* was called before the")
        return metric.compute()


def _parts(metric: Any) -> list[Any]:
    return [part for part in metric.modules() if is_metric(part)]


@contextmanager
def _changed(metric: Any, **attributes: Any) -> Iterator[None]:
    """Give a metric and those within it other attributes for the length of a `with` statement."""
    before = [(part, {name: vars(part).get(name, _ABSENT) for name in attributes}) for part in _parts(metric)]
    for part, _ in before:
        vars(part).update(attributes)
    try:
        yield
    finally:
        for part, values in before:
            _put_back(part, values)


@contextmanager
def _gathering(metric: Any, strategy: Strategy) -> Iterator[None]:
    """Let a metric and those within it gather their states by a strategy's collectives."""
    before: list[tuple[Any, dict[str, Any]]] = []
    for part in _parts(metric):
        if _gathers_as_usual(part):
            changed = {"_sync_dist": partial(_gather_states, part, strategy), "distributed_available_fn": _always}
            before.append((part, {name: vars(part).get(name, _ABSENT) for name in changed}))
            vars(part).update(changed)
    try:
        yield
    finally:
        for part, values in before:
            _put_back(part, values)


def _put_back(part: Any, values: dict[str, Any]) -> None:
    for name, value in values.items():
        if value is _ABSENT:
            vars(part).pop(name, None)
        else:
            vars(part)[name] = value


def _gathers_as_usual(part: Any) -> bool:
    from torchmetrics import Metric

    return (
        type(part)._sync_dist is Metric._sync_dist
        and type(part).sync is Metric.sync
        and getattr(part, "dist_sync_fn", None) is None
        and getattr(part, "process_group", None) is None
    )


def _always() -> bool:
    return True


def _gather_states(metric: Any, strategy: Strategy, *_: Any, **__: Any) -> None:
    """Give a metric the states of all processes, reduced as it asks for; it puts its own back afterwards."""
    names = list(metric._reductions)
    gathered = gather_data(strategy, [_on_host(getattr(metric, name)) for name in names])
    for position, name in enumerate(names):
        states = [of_process[position] for of_process, counts in gathered if counts]
        reduction, current = metric._reductions[name], getattr(metric, name)
        if isinstance(metric._defaults[name], Tensor):
            reduced = torch.stack(states).to(current.device)
            setattr(metric, name, reduced if reduction is None else reduction(reduced))
            continue
        device = torch.device("cpu") if metric.compute_on_cpu else metric.device
        items = [_to(item, device) for state in states for item in (state if isinstance(state, list) else [state])]
        if reduction is None:
            setattr(metric, name, items)
        else:
            setattr(metric, name, reduction(items) if items else torch.empty(0, device=device))


def _on_host(state: Any) -> Any:
    if isinstance(state, Tensor):
        return state.detach().cpu()
    return [_on_host(item) for item in state] if isinstance(state, list) else state


def _to(item: Any, device: torch.device) -> Any:
    return item.to(device) if isinstance(item, Tensor) else item

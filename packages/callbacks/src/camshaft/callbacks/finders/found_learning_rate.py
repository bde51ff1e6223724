"""Learning rates of the groups of an optimizer, and of whatever schedules them, moved together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

_OF_GROUPS = ("lr", "initial_lr", "max_lr", "min_lr")
_OF_SCHEDULERS = ("base_lrs", "max_lrs", "_last_lr")


def base_rates(optimizer: Any) -> list[float]:
    """The rate that each group's schedule is built on: its peak, else what it starts from, else the group's own."""
    return [
        float(next(group[name] for name in ("max_lr", "initial_lr", "lr") if group.get(name) is not None))
        for group in optimizer.param_groups
    ]


def rates_in_proportion(bases: Sequence[float], rate: float) -> list[float]:
    """A rate for each group: `rate` for the largest base, and others in proportion to it; all alike if all are 0."""
    largest = max(bases)
    return [rate if base == largest else rate * (base / largest) for base in bases]


def set_rates(optimizer: Any, rates: Sequence[float]) -> None:
    """Let each group learn with a rate, whatever is scheduled."""
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        _assign(group, "lr", rate)


def scale_to(optimizer: Any, schedulers: Sequence[Any], rate: float) -> None:
    """Make a rate the base of the groups, and let everything that was built on the former bases follow.

    The group with the largest base gets the rate, others stay in proportion. A group's current rate, which a scheduler
    may have lowered already, its peak and its end, and the bases of schedulers, are scaled alike. What a scheduler has
    as an absolute rate of its own, such as `eta_min`, stays.

    Args:
        optimizer: The optimizer.
        schedulers: Its schedulers; those within others follow too.
        rate: The rate.
    """
    bases = base_rates(optimizer)
    targets = rates_in_proportion(bases, rate)
    for group, base, target in zip(optimizer.param_groups, bases, targets, strict=True):
        for name in _OF_GROUPS:
            if group.get(name) is not None:
                _assign(group, name, _scaled(float(group[name]), base, target))
    for scheduler in _flat(schedulers):
        for name in _OF_SCHEDULERS:
            values = getattr(scheduler, name, None)
            if isinstance(values, list) and len(values) == len(bases):
                triples = zip(values, bases, targets, strict=True)
                setattr(scheduler, name, [_scaled(float(value), base, target) for value, base, target in triples])


def _scaled(value: float, base: float, target: float) -> float:
    return target if value == base or base == 0 else value * (target / base)


def _assign(group: dict[str, Any], name: str, value: float) -> None:
    """In place where the rate is a tensor, which a compiled or captured step reads."""
    if isinstance(group[name], Tensor):
        group[name].fill_(value)
    else:
        group[name] = value


def _flat(schedulers: Sequence[Any]) -> Iterator[Any]:
    for scheduler in schedulers:
        yield scheduler
        yield from _flat(getattr(scheduler, "_schedulers", ()))

"""Learning rates of an optimizer's parameter groups, and the schedulers that follow them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CyclicLR, OneCycleLR
from torch.optim.swa_utils import SWALR

from camshaft.hooks_core.support.messages import must_be

_GROUP_RATES = ("lr", "initial_lr", "max_lr", "min_lr")
_SCHEDULER_RATES = ("base_lrs", "max_lrs", "_last_lr")


def base_rates(optimizer: Any) -> list[float]:
    """Return the base rate of each group: the peak of its schedule, else the initial rate, else the current one."""
    return [
        float(next(group[name] for name in ("max_lr", "initial_lr", "lr") if group.get(name) is not None))
        for group in optimizer.param_groups
    ]


def rates_in_proportion(bases: Sequence[float], rate: float) -> list[float]:
    """Return a rate for each group: `rate` for the largest base, others in proportion; the same if all are 0."""
    largest = max(bases)
    return [rate if base == largest else rate * (base / largest) for base in bases]


def set_rates(optimizer: Any, rates: Sequence[float]) -> None:
    """Set the current rate of each group."""
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        set_rate(group, rate)


def scale_to(optimizer: Any, schedulers: Sequence[Any], rate: float) -> None:
    """Make a rate the base of the groups, and scale everything that is derived from the previous bases.

    The group with the largest base gets the rate, others stay in proportion. A group's current rate, which a scheduler
    may have changed already, its peak and its final rate, and the bases of schedulers, are scaled alike. Absolute rates
    of a scheduler, such as `eta_min`, stay.

    Args:
        schedulers: Its schedulers; nested ones are scaled too.
    """
    bases = base_rates(optimizer)
    targets = rates_in_proportion(bases, rate)
    for group, base, target in zip(optimizer.param_groups, bases, targets, strict=True):
        for name in _GROUP_RATES:
            if group.get(name) is not None:
                set_rate(group, _scaled(float(group[name]), base, target), name)
    for scheduler in _with_nested(schedulers):
        for name in _SCHEDULER_RATES:
            values = getattr(scheduler, name, None)
            if isinstance(values, list) and len(values) == len(bases):
                triples = zip(values, bases, targets, strict=True)
                setattr(scheduler, name, [_scaled(float(value), base, target) for value, base, target in triples])


def _scaled(value: float, base: float, target: float) -> float:
    return target if value == base or base == 0 else value * (target / base)


def set_rate(group: dict[str, Any], value: float, name: str = "lr") -> None:
    """Set a rate of a group, in place if it is a tensor, which a compiled or captured step reads."""
    if isinstance(group[name], Tensor):
        group[name].fill_(value)
    else:
        group[name] = value


def _with_nested(schedulers: Iterable[Any]) -> Iterator[Any]:
    """Yield schedulers, each before those that it is made of."""
    for scheduler in schedulers:
        yield scheduler
        yield from _with_nested(getattr(scheduler, "_schedulers", ()))


_FIXED_SCHEDULERS = (CyclicLR, OneCycleLR, SWALR)
"""Schedulers that plan each group when constructed, by arguments that a later group does not have."""


def check_takes_groups(schedulers: Iterable[Any], where: str) -> None:
    """Raise `ValueError` if a scheduler cannot take parameter groups that are added later."""
    for scheduler in _with_nested(schedulers):
        if isinstance(scheduler, _FIXED_SCHEDULERS):
            action = "Use another scheduler, or give the optimizer all its groups in `configure_optimizers`."
            rule = "a scheduler to which parameter groups can be added"
            raise ValueError(must_be("scheduler", rule, type(scheduler).__name__, where, action))


def follow_groups(scheduler: Any, optimizer: Optimizer, group_idxs: Sequence[int], where: str) -> None:
    """Extend a scheduler to parameter groups that were added, or whose learning rates were set, after its construction.

    From here on their learning rates follow that of the first group, in their present proportion to it. A scheduler of
    another optimizer, or one without values for each group, stays as it is.

    Args:
        scheduler: The scheduler; nested ones are extended as well.
        group_idxs: Indexes of the groups, in order: of all that it lacks, or of others.
        where: The class to name in errors.

    Raises:
        ValueError: If the scheduler cannot take groups that are added later.
    """
    if getattr(scheduler, "optimizer", None) is not optimizer:
        return
    check_takes_groups([scheduler], where)
    for part in getattr(scheduler, "_schedulers", ()):
        follow_groups(part, optimizer, group_idxs, where)
    groups = optimizer.param_groups
    first = float(groups[0]["lr"])
    for idx in group_idxs:
        base_lrs = getattr(scheduler, "base_lrs", None)
        if isinstance(base_lrs, list) and base_lrs:
            lr = float(groups[idx]["lr"])
            base = lr * float(base_lrs[0]) / first if first else lr
            base_lrs[idx : idx + (len(base_lrs) == len(groups))] = [base]
            groups[idx]["initial_lr"] = base
        for name in ("lr_lambdas", "min_lrs"):
            of_groups = getattr(scheduler, name, None)
            if isinstance(of_groups, list) and 0 < len(of_groups) < len(groups):
                of_groups.insert(idx, of_groups[0])
    if isinstance(getattr(scheduler, "_last_lr", None), list):
        scheduler._last_lr = [group["lr"] for group in groups]

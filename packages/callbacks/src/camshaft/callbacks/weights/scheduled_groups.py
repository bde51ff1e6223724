"""Learning-rate schedulers whose optimizer gets more parameter groups."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import CyclicLR, OneCycleLR
from torch.optim.swa_utils import SWALR

from camshaft.hooks_core.messages import must_be

_FIXED = (CyclicLR, OneCycleLR, SWALR)
"""They plan each group's course when they are made, by arguments that a later group has not."""


def check_takes_groups(schedulers: Iterable[Any], where: str) -> None:
    """Raise `ValueError` if a scheduler cannot take parameter groups that are added later."""
    for scheduler in schedulers:
        if isinstance(scheduler, _FIXED):
            action = "Use another scheduler, or give the optimizer all its groups in `configure_optimizers`."
            rule = "one that takes parameter groups later"
            raise ValueError(must_be("scheduler", rule, type(scheduler).__name__, where, action))
        check_takes_groups(getattr(scheduler, "_schedulers", ()), where)


def follow_groups(scheduler: Any, optimizer: Optimizer, group_idxs: Sequence[int], where: str) -> None:
    """Let a scheduler go on with parameter groups that were added, or whose learning rates were set, after it was made.

    From here on their learning rates follow the course of the first group's, in the proportion that they have to it
    now. A scheduler of another optimizer, or one that keeps nothing of groups, stays as it is.

    Args:
        scheduler: The scheduler; those that it is made of follow as well.
        optimizer: The optimizer.
        group_idxs: Indexes of the groups, in order.
        where: Who asks, for the message.

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
            base_lrs[idx:] = [base, *base_lrs[idx + 1 :]]
            groups[idx]["initial_lr"] = base
    for name in ("lr_lambdas", "min_lrs"):
        of_groups = getattr(scheduler, name, None)
        if isinstance(of_groups, list) and of_groups:
            of_groups += of_groups[:1] * (len(groups) - len(of_groups))
    if isinstance(getattr(scheduler, "_last_lr", None), list):
        scheduler._last_lr = [group["lr"] for group in groups]

"""What tests of going on share: how a module is configured, and when two checkpoints hold the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from bare_parts import adam, sgd
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR, OneCycleLR, StepLR

SCHEDULERS = {
    "step": lambda optimizer: StepLR(optimizer, 2, 0.5),
    "exponential": lambda optimizer: ExponentialLR(optimizer, 0.8),
    "cosine": lambda optimizer: CosineAnnealingLR(optimizer, 5),
    "one cycle": lambda optimizer: OneCycleLR(optimizer, 0.1, total_steps=100),
}


def configuring(optimizer: str, scheduler: str | None, interval: str) -> Callable[[Any], Any]:
    """A `configure_optimizers` of a module that makes these, by their names."""

    def configure(module: Any) -> Any:
        made = (sgd if optimizer == "sgd" else adam)(module)
        if scheduler is None:
            return made
        return {"optimizer": made, "lr_scheduler": {"scheduler": SCHEDULERS[scheduler](made), "interval": interval}}

    return configure


def same_values(one: Any, other: Any) -> bool:
    """Whether two checkpoints hold the same, bit for bit."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same_values(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same_values, one, other))
    return bool(one == other)


def without_time(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """A checkpoint without the time that training took, which is never the same."""
    checkpoint["loops"]["fit"].pop("elapsed_seconds")
    return checkpoint

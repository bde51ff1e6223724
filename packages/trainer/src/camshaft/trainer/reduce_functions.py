"""The functions that reduce an epoch's values: which have a name, and what a checkpoint can hold of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_NAMES: dict[Any, str] = {
    "mean": "mean",
    "avg": "mean",
    torch.mean: "mean",
    "sum": "sum",
    torch.sum: "sum",
    sum: "sum",
    "max": "max",
    torch.max: "max",
    max: "max",
    "min": "min",
    torch.min: "min",
    min: "min",
}

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "torch.mean": torch.mean,
    "torch.sum": torch.sum,
    "builtins.sum": sum,
    "torch.max": torch.max,
    "builtins.max": max,
    "torch.min": torch.min,
    "builtins.min": min,
}


class UnknownFunction:
    """Stands for a function of one's own, which a checkpoint cannot hold, until it is passed again."""

    def __call__(self, values: Tensor) -> Any:
        raise RuntimeError("UnknownFunction must not be called.")

    def __repr__(self) -> str:
        return "<a function of one's own>"


UNKNOWN_FUNCTION = UnknownFunction()


def reduction_name(reduce_fx: object) -> str | None:
    """The reduction that is asked for: "mean", "sum", "max" or "min"; None if it has no name."""
    return _NAMES.get(reduce_fx) if reduce_fx.__hash__ is not None else None


def is_own(reduce_fx: object) -> bool:
    """Whether it is a function that has no name."""
    return callable(reduce_fx) and reduction_name(reduce_fx) is None


def label_of(reduce_fx: object) -> str | None:
    """What a function of one's own is called; None for anything else, and where it is not known."""
    if not is_own(reduce_fx) or reduce_fx is UNKNOWN_FUNCTION:
        return None
    name = getattr(reduce_fx, "__qualname__", None) or type(reduce_fx).__qualname__
    return f"{getattr(reduce_fx, '__module__', '')}.{name}"


def save_function(reduce_fx: object) -> str | None:
    """What a checkpoint holds of it: a text; None for a function of one's own."""
    if isinstance(reduce_fx, str):
        return "".join([reduce_fx])  # of `str` itself, not of a subclass
    return next((name for name, function in _FUNCTIONS.items() if function is reduce_fx), None)


def load_function(saved: str | None) -> str | Callable[[Tensor], Any]:
    """What `save_function` was given; `UNKNOWN_FUNCTION` for a function of one's own. Nothing is imported by name."""
    return UNKNOWN_FUNCTION if saved is None else _FUNCTIONS.get(saved, saved)

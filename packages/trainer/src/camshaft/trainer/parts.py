"""What each process has of a logged value, and what becomes of all of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TypeVar

import attrs
import torch
from torch import Tensor

from camshaft.hooks_core.protocols import Strategy
from camshaft.trainer.metric_values import Value, as_tensor, to_floats

T = TypeVar("T")


@attrs.frozen(eq=False)
class Part:
    """What one process has of a value.

    Attributes:
        value: The sum of weighted values, or the largest or smallest; for a function of one's own, all values as a
            one-dimensional tensor.
        weight: The sum of their weights.
        dtype: Type of the reduced tensor; None if only numbers were logged, so that the result is a number.
    """

    value: Value
    weight: float = 1.0
    dtype: torch.dtype | None = None


def gather_data(strategy: Strategy, value: T) -> list[tuple[T, bool]]:
    """The values of all processes, each with whether it counts: of processes with the same data the first. Collective.

    Args:
        strategy: Connects the processes.
        value: This one's.
    """
    gathered = strategy.all_gather((strategy.data_rank, value))
    data_ranks = [data_rank for data_rank, _ in gathered]
    return [(each, data_ranks.index(data_rank) == rank) for rank, (data_rank, each) in enumerate(gathered)]


def part_of_step(value: Value, *, is_own: bool) -> Part:
    """The part of a process that logged one value; `is_own` says whether a function of one's own reduces it."""
    if is_own:
        return Part(as_tensor(value).reshape(1).cpu())
    return Part(value, 1.0, result_dtype(value.dtype) if isinstance(value, Tensor) else None)


def result_dtype(dtype: torch.dtype) -> torch.dtype:
    """Double precision for what has it or holds integers, else single precision."""
    return (
        torch.float32 if (dtype.is_floating_point and dtype != torch.float64) or dtype == torch.bool else torch.float64
    )


def on_host(parts: Sequence[Part | None]) -> list[Part | None]:
    """The same parts with numbers for tensors of shape (), in one transfer from each device. Waits for the devices."""
    scalars = [part.value for part in parts if part is not None and _is_scalar(part.value)]
    numbers = iter(to_floats(scalars))
    return [
        attrs.evolve(part, value=next(numbers)) if part is not None and _is_scalar(part.value) else part
        for part in parts
    ]


def merge(reduction: str, parts: Sequence[Part]) -> Value:
    """The value of all processes, the same to the bit wherever it is computed.

    Args:
        reduction: "mean", "sum", "max" or "min".
        parts: One or more, with numbers, in the order of the processes.

    Returns:
        A tensor on the CPU; a number if only numbers were logged.
    """
    numbers = [float(part.value) for part in parts]
    if reduction in ("max", "min"):
        value = math.nan if any(map(math.isnan, numbers)) else (max if reduction == "max" else min)(numbers)
    else:
        value = sum(numbers)
        if reduction == "mean":
            weight = sum(part.weight for part in parts)
            value = value / weight if weight else math.nan
    return as_value(value, _widest(part.dtype for part in parts))


def all_values(parts: Sequence[Part]) -> Tensor:
    """What a function of one's own reduces: the values of all processes, in the order of the processes."""
    tensors = [part.value for part in parts if isinstance(part.value, Tensor)]
    return torch.cat(tensors)


def as_value(number: float, dtype: torch.dtype | None) -> Value:
    """A number as a tensor of a type on the CPU; as it is if there is no type."""
    return number if dtype is None else torch.tensor(number, dtype=dtype)


def _widest(dtypes: Iterable[torch.dtype | None]) -> torch.dtype | None:
    present = [dtype for dtype in dtypes if dtype is not None]
    return None if not present else torch.float64 if torch.float64 in present else torch.float32


def _is_scalar(value: Value) -> bool:
    return not isinstance(value, Tensor) or value.ndim == 0

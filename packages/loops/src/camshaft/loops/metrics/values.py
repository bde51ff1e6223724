"""What may be logged, how large a batch is, and how values become numbers."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from camshaft.hooks_core.messages import must_be
from camshaft.hooks_core.transfer import parts_of

Value = Tensor | float
"""A kept value: a detached tensor of shape () on its device, or a Python number."""

_ALLOWED = "a number, a tensor with one element or a torchmetrics metric"


def is_metric(value: object) -> bool:
    """Whether a value is a `torchmetrics.Metric`; torchmetrics is not imported for that."""
    torchmetrics = sys.modules.get("torchmetrics")
    return torchmetrics is not None and isinstance(value, torchmetrics.Metric)


def is_metric_collection(value: object) -> bool:
    """Whether a value is a `torchmetrics.MetricCollection`; torchmetrics is not imported for that."""
    torchmetrics = sys.modules.get("torchmetrics")
    return torchmetrics is not None and isinstance(value, torchmetrics.MetricCollection)


def check_number(name: str, value: Any) -> float:
    """A logged number as a plain Python number.

    Raises:
        TypeError: If it is neither a real number nor anything else that can be logged.
    """
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, Mapping) or is_metric_collection(value):
        action = "Log each of its values with `log_dict`."
    else:
        action = "Convert it to a number."
    raise TypeError(must_be("value", _ALLOWED, value, f"log({name!r})", action))


def check_tensor(name: str, value: Tensor) -> Tensor:
    """A logged tensor without its graph and with shape (); not a copy. Does not wait for the device.

    Raises:
        ValueError: If it has no element or several.
        TypeError: If it is complex.
    """
    if value.numel() != 1:
        raise ValueError(
            f"`value` must be {_ALLOWED}, but got shape {tuple(value.shape)} ({type(value).__name__}) in "
            f"log({name!r}). Reduce it first, for example with `.mean()`."
        )
    if value.is_complex():
        raise TypeError(
            f"`value` must be a real tensor, but got {value.dtype} ({type(value).__name__}) in log({name!r}). "
            "Log its real part or its absolute value."
        )
    return value.detach().reshape(())


def check_batch_size(name: str, batch_size: Any) -> float:
    """The weight of a value as a number. Waits for the device of a tensor.

    Raises:
        TypeError: If it is neither a number nor a tensor with one element.
        ValueError: If it is negative.
    """
    if isinstance(batch_size, (int, float)) and batch_size >= 0:
        return batch_size
    if isinstance(batch_size, Tensor) and batch_size.numel() == 1 and not batch_size.is_complex():
        return check_batch_size(name, batch_size.item())
    if isinstance(batch_size, Real) and not isinstance(batch_size, (int, float)):  # of NumPy, say
        return check_batch_size(name, float(batch_size))
    error = ValueError if isinstance(batch_size, (int, float)) else TypeError
    rule = "a number, 0 or more"
    raise error(must_be("batch_size", rule, batch_size, f"log({name!r})", "Pass the number of samples in the batch."))


def as_tensor(value: Value) -> Tensor:
    """A value as a tensor; a Python number in the precision that Python gives it."""
    return value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)


def to_floats(values: Sequence[Value]) -> list[float]:
    """Values as Python numbers, in one transfer from each device that holds any. Waits for these devices."""
    numbers: list[float] = [0.0] * len(values)
    on_devices: dict[torch.device, list[int]] = {}
    for position, value in enumerate(values):
        if isinstance(value, Tensor):
            on_devices.setdefault(value.device, []).append(position)
        else:
            numbers[position] = float(value)
    for device, positions in on_devices.items():
        wide = widest_float(device)
        tensors = [as_tensor(values[position]) for position in positions]
        # promotion keeps single precision's values; integers and half precision are widened first
        stacked = torch.stack([t if t.dtype in (torch.float32, wide) else t.to(wide) for t in tensors])
        for position, number in zip(positions, stacked.tolist(), strict=True):
            numbers[position] = number
    return numbers


def widest_float(device: torch.device) -> torch.dtype:
    """The most accurate type in which a device can add up."""
    return torch.float32 if device.type == "mps" else torch.float64


class SeenBatch:
    """A batch that something was logged for; stands in for it on the metric log until the next batch.

    Attributes:
        batch: The batch; None once its size is known, so that it is not kept alive.
        size: Number of samples; 0 until it is asked for.
    """

    __slots__ = ("batch", "size")

    def __init__(self, batch: Any) -> None:
        self.batch = batch
        self.size = 0

    def measure(self) -> int:
        """The size of the batch: of the first tensor in it along dimension 0, 1 for a tensor of shape ().

        Raises:
            ValueError: If there is no tensor in it.
        """
        if self.batch is None:
            return self.size or 1
        first = next(_tensors_in(self.batch), None)
        if first is None:
            raise ValueError(
                "`batch` must contain a tensor to weigh an epoch's mean by its size, but got none "
                f"({type(self.batch).__name__}) in log. Pass `batch_size`."
            )
        self.size = first.size(0) if first.ndim else 1
        self.batch = None
        return self.size


def _tensors_in(batch: Any) -> Iterator[Tensor]:
    if isinstance(batch, Tensor):
        yield batch
        return
    for part in parts_of(batch) or ():
        yield from _tensors_in(part)

"""Logged values in a checkpoint: copies, with the devices that they belong on."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from camshaft.trainer.metric_values import Value


def save_tensor(tensor: Tensor) -> dict[str, Any]:
    """A tensor's copy, without its graph, and its device. Does not wait for the device."""
    return _with_device(tensor.detach().clone())


def load_tensor(saved: dict[str, Any]) -> Tensor:
    """A copy of a saved tensor on its device.

    Where this process lacks the device it is on the current one of its type, or else on the CPU.
    """
    tensor: Tensor = saved["tensor"]
    return tensor.to(_present(torch.device(saved["device"])), copy=True)


def save_tensors(tensors: Iterable[Tensor]) -> list[dict[str, Any]]:
    """Many tensors of shape () as few: one for neighbours of the same type and device. Does not wait for a device."""
    blocks = groupby(tensors, key=lambda tensor: (tensor.dtype, tensor.device))
    return [_with_device(torch.stack(list(block))) for _, block in blocks]


def load_tensors(saved: Iterable[dict[str, Any]]) -> list[Tensor]:
    """The tensors that `save_tensors` was given, in their order."""
    return [tensor for block in saved for tensor in load_tensor(block).unbind()]


def save_value(value: Value | None) -> Any:
    """A logged value as a checkpoint holds it. Does not wait for its device."""
    return save_tensor(value) if isinstance(value, Tensor) else value


def load_value(saved: Any) -> Value | None:
    """The value that `save_value` was given."""
    return load_tensor(saved) if isinstance(saved, dict) else saved


def save_number(number: float) -> float:
    """A number, such as NumPy's, as one of Python's own."""
    return int(number) if isinstance(number, int) else float(number)


def _with_device(tensor: Tensor) -> dict[str, Any]:
    if type(tensor) is not Tensor and not hasattr(tensor, "__tensor_flatten__"):
        tensor = tensor.as_subclass(Tensor)  # a checkpoint's reader refuses types that it does not know
    return {"tensor": tensor, "device": str(tensor.device)}


def _present(device: torch.device) -> torch.device:
    if device.type in ("cpu", "meta"):
        return device
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is None or accelerator.type != device.type:
        return torch.device("cpu")
    if device.index is not None and device.index < torch.accelerator.device_count():
        return device
    return torch.device(device.type, torch.accelerator.current_device_index())

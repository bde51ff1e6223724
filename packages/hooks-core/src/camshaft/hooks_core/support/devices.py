"""What a device can do. Code asks here, or torch, for a capability; the names of device types that differ are here."""

from __future__ import annotations

from functools import cache
from typing import Any

TYPES_WITHOUT_FLOAT64 = ("mps",)
"""Types of devices none of which has float64. Of others, `widest_float` tells."""

_BLOCKING_TYPES = ("cpu", "meta", "mps")


def copies_asynchronously(device: Any) -> bool:
    """Return whether copies between a `torch.device` and pinned memory may be left unfinished, in a stream's order.

    Not on MPS: what reads the target there may find it unfinished.
    """
    return device.type not in _BLOCKING_TYPES


@cache
def widest_float(device: Any) -> Any:
    """Return the most accurate dtype in which a `torch.device` can add: float64, or float32 where it has none."""
    import torch

    try:
        torch.zeros((), dtype=torch.float64, device=device).add_(1)
    except (RuntimeError, TypeError):  # as MPS raises; others have the memory, and no kernel
        return torch.float32
    return torch.float64


def name_of_device(device: Any) -> str:
    """Return the name of the model of a `torch.device`, such as "NVIDIA H100 80GB HBM3"; else its type."""
    import torch

    name: Any = getattr(getattr(torch, device.type, None), "get_device_name", None)
    return device.type if name is None else str(name(device))


def make_current(device: Any) -> None:
    """Make a `torch.device` the current one of this thread, for tensors of its type that are made without an index."""
    import torch

    accelerator = torch.accelerator.current_accelerator()
    if accelerator is not None and accelerator.type == device.type and device.index is not None:
        torch.accelerator.set_device_index(device)

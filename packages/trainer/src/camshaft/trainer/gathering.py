"""`TrainingModule.all_gather`: tensors of all processes, stacked."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from camshaft.hooks_core.support.transfer import map_nested, move_to_device
from camshaft.strategies import SingleDeviceStrategy


def all_gather(data: Any, device: torch.device, strategy: Any, group: Any, sync_grads: bool) -> Any:
    """Gather the tensors in a collection; see `TrainingModule.all_gather`."""
    on_device = move_to_device(_as_tensors(data, device), device)
    if isinstance(strategy, SingleDeviceStrategy) or not dist.is_initialized():
        return on_device
    from torch.distributed.nn.functional import all_gather  # imports much

    def gather(tensor: Tensor) -> Tensor:
        with nullcontext() if sync_grads else torch.no_grad():
            return torch.stack(all_gather(tensor.contiguous(), group))  # type: ignore[no-untyped-call]

    return map_nested(on_device, lambda item: isinstance(item, Tensor), gather)


def _as_tensors(data: Any, device: torch.device) -> Any:
    """Return a collection with tensors in place of its numbers and NumPy's arrays."""
    numpy = sys.modules.get("numpy")
    kinds: tuple[type, ...] = (int, float) if numpy is None else (int, float, numpy.ndarray)  # bool is an int

    def convert(item: Any) -> Tensor:
        if isinstance(item, bool):
            return torch.tensor(item, dtype=torch.uint8, device=device)  # NCCL knows no bool
        if isinstance(item, int):
            return torch.tensor(item, dtype=torch.int, device=device)
        if isinstance(item, float):
            return torch.tensor(item, dtype=torch.float, device=device)
        return torch.from_numpy(item)

    return map_nested(data, lambda item: isinstance(item, kinds), convert)

"""Collectives of earlier releases, which leave a tensor as it is in a single process."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.nn.functional import all_gather


def sync_ddp(result: Tensor, group: Any = None, reduce_op: Any = None) -> Tensor:
    """Return a tensor reduced over processes; it may be changed in place. Collective.

    Args:
        result: The tensor.
        group: The processes; None means all.
        reduce_op: One of `torch.distributed.ReduceOp` or its name, "avg" or "mean"; None means the sum.
    """
    name = reduce_op.lower() if isinstance(reduce_op, str) else ""
    is_mean = name in ("avg", "mean")
    operation = getattr(dist.ReduceOp, name.upper()) if name and not is_mean else reduce_op
    dist.all_reduce(result, dist.ReduceOp.SUM if is_mean or operation is None else operation, group)
    return result / dist.get_world_size(group) if is_mean else result


def sync_ddp_if_available(result: Tensor, group: Any = None, reduce_op: Any = None) -> Tensor:
    """Return what `sync_ddp` does where there are processes that joined, else the tensor. Collective."""
    return sync_ddp(result, group, reduce_op) if _have_joined() else result


class AllGatherGrad:
    """`AllGatherGrad.apply(tensor, group)` gathers a tensor, and gradients flow through it."""

    @staticmethod
    def apply(tensor: Tensor, group: Any = None) -> Tensor:
        """Return the tensors of all processes, along a new first dimension. Collective."""
        return torch.stack(all_gather(tensor, dist.group.WORLD if group is None else group))  # type: ignore[no-untyped-call]


def all_gather_ddp_if_available(tensor: Tensor, group: Any = None, sync_grads: bool = False) -> Tensor:
    """Return a tensor of all processes, along a new first dimension; in a single process the tensor. Collective.

    Args:
        tensor: The tensor.
        group: The processes; None means all.
        sync_grads: Whether gradients flow through it.
    """
    if not _have_joined():
        return tensor
    with torch.set_grad_enabled(sync_grads and torch.is_grad_enabled()):
        return AllGatherGrad.apply(tensor, group)


def _have_joined() -> bool:
    return dist.is_available() and dist.is_initialized()

"""Cutting whole tensors into the parts that this process holds of sharded ones, and the other way round."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.placement_types import Placement

from camshaft.hooks_core.messages import must_be


def local_part(full: Tensor, mesh: DeviceMesh, placements: Sequence[Placement]) -> Tensor:
    """The part of a whole tensor that this process holds if it is sharded; a view of it. Not collective.

    Args:
        full: The whole tensor.
        mesh: The processes.
        placements: How it is laid out along each dimension of the mesh: sharded or replicated. Strided shards, as
            `fully_shard` makes them of tensor-parallel parameters, are cut after what lies to their right.

    Raises:
        ValueError: If it is laid out otherwise.
    """
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return full.new_empty(0)
    strided = list[tuple[int, int]]()
    part = full
    for mesh_dim, placement in enumerate(placements):
        if isinstance(placement, Replicate):
            continue
        dim = getattr(placement, "dim", None)
        if dim is None:
            rule, action = "sharded or replicated", "Redistribute it first."
            raise ValueError(must_be("placements", rule, tuple(placements), "local_part", action))
        if hasattr(placement, "split_factor"):
            strided.append((mesh_dim, dim))
        else:
            part = _chunk(part, mesh.size(mesh_dim), coordinate[mesh_dim], dim)
    for mesh_dim, dim in reversed(strided):
        part = _chunk(part, mesh.size(mesh_dim), coordinate[mesh_dim], dim)
    return part


def distribute(full: Tensor, like: DTensor, device: torch.device) -> DTensor:
    """A sharded tensor with the values of a whole one, laid out as another one. Not collective.

    Args:
        full: The whole tensor, with the same values on all processes, on any device.
        like: The other one, of the same shape.
        device: Where this process's part is to be.
    """
    part = local_part(full.detach(), like.device_mesh, like.placements)
    local = torch.empty(part.size(), dtype=full.dtype, device=device)
    return from_local(local.copy_(part), like)


def from_local(local: Tensor, like: DTensor) -> DTensor:
    """A sharded tensor of this process's part, laid out as another one. Not collective."""
    return DTensor.from_local(
        local, like.device_mesh, like.placements, run_check=False, shape=like.size(), stride=like.stride()
    )


def _chunk(tensor: Tensor, num_chunks: int, chunk_idx: int, dim: int) -> Tensor:
    """One of the chunks that `torch.chunk` makes; empty if it makes fewer."""
    size = tensor.size(dim)
    length = -(-size // num_chunks)
    start = min(chunk_idx * length, size)
    return tensor.narrow(dim, start, min(length, size - start))

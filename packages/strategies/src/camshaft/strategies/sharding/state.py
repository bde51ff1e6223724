"""The layout of sharded tensors: state dicts of modules and optimizers, and parts of whole tensors."""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta  # as `torch.distributed.fsdp` makes them
from torch.distributed.tensor.placement_types import Placement
from torch.optim import Optimizer

from camshaft.hooks_core.support.messages import must_be
from camshaft.strategies.sharding.policy import class_name

_CPU = torch.device("cpu")


def module_state_for(module: nn.Module, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a module's state dict in the layout of the module, for its `load_state_dict`. Collective.

    Args:
        module: The module, with sharded parameters.
        state: Whole tensors, with the same values on all ranks, or sharded ones, on the CPU. Those of another shape
            than the module's stay as they are, for torch to refuse.
    """
    own = module.state_dict()
    laid_out = _laid_out([(value, own.get(name)) for name, value in state.items()], is_state=False)
    return dict(zip(state, laid_out, strict=True))


def optimizer_state_for(optimizer: Optimizer, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return an optimizer's state dict in the layout of its parameters, for its `load_state_dict`. Collective.

    Tensors of their parameter's shape are sharded as it is, scalars such as step counts stay as they are, and others,
    such as factored moments, are replicated.

    Args:
        optimizer: The optimizer of sharded parameters.
        state: Whole or sharded tensors, as for `module_state_for`.
    """
    indexes = [idx for group in state["param_groups"] for idx in group["params"]]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    by_index = dict(zip(indexes, parameters, strict=False))  # torch refuses other numbers of parameters
    places = [(idx, name) for idx, values in state["state"].items() for name in values]
    pairs = [(state["state"][idx][name], by_index.get(idx)) for idx, name in places]
    laid_out: dict[Any, dict[str, Any]] = {idx: {} for idx in state["state"]}
    for (idx, name), value in zip(places, _laid_out(pairs, is_state=True), strict=True):
        laid_out[idx][name] = value
    return {**state, "state": laid_out}


def tensor_like(value: Tensor, parameter: Tensor) -> Tensor:
    """Return a copy of a whole or sharded tensor in the layout of a parameter of its shape. Collective."""
    [laid_out] = _laid_out([(value, parameter)], is_state=True)
    placed: Tensor = laid_out
    return placed if isinstance(placed, DTensor) else placed.to(parameter.device)


def _laid_out(pairs: Sequence[tuple[Any, Any]], *, is_state: bool) -> list[Any]:
    """Return values in the layouts of tensors of their shapes. Collective.

    Args:
        pairs: The values, and the tensors; each value of another shape is made whole.
        is_state: Whether these are states of an optimizer, which changes them in place: they are copied, and whole ones
            are replicated as their parameters are.
    """
    is_alike = [
        isinstance(like, DTensor) and isinstance(value, Tensor) and value.dim() > 0 and value.size() == like.size()
        for value, like in pairs
    ]
    with torch.no_grad():
        parts = _parts([(value, like if alike else None) for (value, like), alike in zip(pairs, is_alike, strict=True)])
    results = list[Any]()
    for (value, like), alike, part in zip(pairs, is_alike, parts, strict=True):
        if alike:
            results.append(_with_part(part, like, _device(like), copy=is_state))
        elif is_state and isinstance(like, DTensor) and isinstance(value, Tensor) and value.dim() > 0:
            mesh, whole = like.device_mesh, part.to(_device(like), copy=True)
            results.append(_from_part(whole, mesh, [Replicate()] * mesh.ndim, whole.size(), whole.stride()))
        else:
            results.append(part.clone() if is_state and isinstance(part, Tensor) else part)
    return results


def _parts(pairs: Sequence[tuple[Any, DTensor | None]]) -> list[Any]:
    """Return this rank's part of each value as another tensor is cut; the whole value for None. Collective.

    Tensors that are cut alike, such as chunks of a checkpoint and parameters sharded over all ranks, need no
    communication.
    """
    parts = list[Any]()
    chunked = dict[int, tuple[DTensor, DTensor | None]]()
    cut = functools.cache(_cut)  # many tensors, few meshes
    for idx, (value, like) in enumerate(pairs):
        if isinstance(value, DTensor):
            mesh = value.device_mesh
            own_cut = cut(mesh, value.placements)
            if like is not None and own_cut == cut(like.device_mesh, like.placements):
                parts.append(value.to_local())
                continue
            if mesh.ndim == 1 and value.device.type == "cpu" and own_cut[1] == [(mesh.size(), Shard, 0)]:
                chunked[idx] = value, like
            value = None if idx in chunked else value.full_tensor()
        if like is not None and isinstance(value, Tensor):
            value = local_part(value.detach(), like.device_mesh, like.placements)
        parts.append(value)
    for idx, part in zip(chunked, _exchanged(list(chunked.values())), strict=True):
        parts[idx] = part
    return parts


def _cut(mesh: DeviceMesh, placements: tuple[Placement, ...]) -> tuple[list[int], list[tuple[int, type, int | None]]]:
    """Return the ranks that have parts of a tensor, and how each dimension of their mesh cuts it."""
    cuts = [
        (mesh.size(mesh_dim), type(placement), getattr(placement, "dim", None))
        for mesh_dim, placement in enumerate(placements)
        if mesh.size(mesh_dim) > 1
    ]
    return mesh.mesh.flatten().tolist(), cuts


_Box = tuple[tuple[int, ...], tuple[int, ...]]
"""Offsets and sizes of a part of a tensor."""

_BYTES_AT_ONCE = 2**28


def _exchanged(pairs: Sequence[tuple[DTensor, DTensor | None]]) -> list[Tensor]:
    """Return what `_parts` does, for tensors in equal chunks of their first dimension. Collective among their ranks.

    Each rank sends every other the rows that this one needs, and no more; several tensors at once.
    """
    parts = list[Tensor]()
    bunch = list[tuple[DTensor, DTensor | None]]()
    for idx, pair in enumerate(pairs):
        bunch.append(pair)
        is_full = sum(value.nbytes for value, _ in bunch) >= _BYTES_AT_ONCE
        if is_full or idx == len(pairs) - 1:
            parts += _exchange([value for value, _ in bunch], [_box(value, like) for value, like in bunch])
            bunch.clear()
    return parts


def _box(value: Tensor, like: DTensor | None) -> _Box:
    """Return where this rank's part of a tensor is, if it is cut as another of its shape; all of it for None."""
    whole = torch.empty(value.size(), device="meta")
    part = whole if like is None else local_part(whole, like.device_mesh, like.placements)
    if part.numel() == 0:
        return (0,) * value.dim(), tuple(part.size()) if part.dim() == value.dim() else (0,) * value.dim()
    offset, offsets = int(part.storage_offset()), list[int]()
    for stride in whole.stride():
        offsets.append(offset // stride)
        offset %= stride
    return tuple(offsets), tuple(part.size())


def _exchange(chunks: Sequence[DTensor], boxes: Sequence[_Box]) -> list[Tensor]:
    """Return the contents of this rank's boxes of tensors. Collective among the ranks that hold their chunks."""
    group = chunks[0].device_mesh.get_group()
    num_ranks, rank = group.size(), group.rank()
    wanted: list[Sequence[_Box]] = [[]] * num_ranks
    dist.all_gather_object(wanted, list(boxes), group=group)
    sent = list[Tensor]()
    for other in range(num_ranks):
        pieces = list[Tensor]()
        for chunk, (offsets, sizes) in zip(chunks, wanted[other], strict=True):
            first, length = _rows(chunk.size(0), rank, num_ranks, offsets, sizes)
            piece = chunk.to_local().narrow(0, first - _rows(chunk.size(0), rank, num_ranks)[0], length)
            for dim in range(1, chunk.dim()):
                piece = piece.narrow(dim, offsets[dim], sizes[dim])
            pieces.append(piece.flatten().clone(memory_format=torch.contiguous_format).view(torch.uint8))
        sent.append(torch.cat(pieces))
    shapes = [
        [
            (_rows(chunk.size(0), other, num_ranks, *box)[1], *box[1][1:])
            for chunk, box in zip(chunks, boxes, strict=True)
        ]
        for other in range(num_ranks)
    ]
    num_bytes = [
        [math.prod(shape) * chunk.itemsize for shape, chunk in zip(of_rank, chunks, strict=True)] for of_rank in shapes
    ]
    received = torch.empty(sum(map(sum, num_bytes)), dtype=torch.uint8)
    splits = [sum(of_rank) for of_rank in num_bytes], [piece.numel() for piece in sent]
    dist.all_to_all_single(received, torch.cat(sent), *splits, group=group)
    pieces_of = [
        iter(torch.split(part, of_rank))
        for part, of_rank in zip(torch.split(received, splits[0]), num_bytes, strict=True)
    ]
    parts = list[Tensor]()
    for idx, chunk in enumerate(chunks):
        # cloned, as a view of another dtype must be aligned
        rows = [next(pieces_of[rank]).clone().view(chunk.dtype).reshape(shapes[rank][idx]) for rank in range(num_ranks)]
        parts.append(torch.cat(rows))
    return parts


def _rows(
    num_rows: int, rank: int, num_ranks: int, offsets: tuple[int, ...] = (), sizes: tuple[int, ...] = ()
) -> tuple[int, int]:
    """Return the first and the number of the rows that a rank's chunk holds; with a box, of those that are in it."""
    length = -(-num_rows // num_ranks)
    start, end = min(rank * length, num_rows), min((rank + 1) * length, num_rows)
    if not sizes:
        return start, end - start
    first = min(max(start, offsets[0]), end)
    return first, max(0, min(end, offsets[0] + sizes[0]) - first)


def _device(like: DTensor) -> torch.device:
    with torch.no_grad():
        return like.to_local().device


def local_part(full: Tensor, mesh: DeviceMesh, placements: Sequence[Placement]) -> Tensor:
    """Return a view of this rank's part of a whole tensor. Not collective.

    Args:
        placements: Sharded or replicated, for each dimension of the mesh. Strided shards, which `fully_shard` makes of
            tensor-parallel parameters, are cut after the shards of later mesh dimensions.

    Raises:
        ValueError: If there is another placement.
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
    """Return a sharded tensor with the values of a whole one and the layout of another. Not collective.

    Args:
        full: The whole tensor, with the same values on all ranks, on any device.
        like: The sharded tensor of the layout, of the same shape.
        device: The device of this rank's part.
    """
    return _with_part(local_part(full.detach(), like.device_mesh, like.placements), like, device, copy=True)


def _with_part(part: Tensor, like: DTensor, device: torch.device, *, copy: bool) -> DTensor:
    """Return a sharded tensor of this rank's part and the layout of another."""
    local = part.to(device, copy=copy, memory_format=torch.contiguous_format)
    return _from_part(local, like.device_mesh, like.placements, like.size(), like.stride())


def _from_part(
    part: Tensor, mesh: DeviceMesh, placements: Sequence[Placement], size: torch.Size, stride: tuple[int, ...]
) -> DTensor:
    """Return the tensor of this rank's part where that is: `DTensor.from_local` moves offloaded ones to the mesh."""
    spec = DTensorSpec(mesh, tuple(placements), tensor_meta=TensorMeta(size, stride, part.dtype))
    return DTensor(part, spec, requires_grad=False)  # type: ignore[no-untyped-call]


def _chunk(tensor: Tensor, num_chunks: int, chunk_idx: int, dim: int) -> Tensor:
    """Return one of the chunks of `torch.chunk`; an empty tensor if it makes fewer."""
    size = tensor.size(dim)
    length = -(-size // num_chunks)
    start = min(chunk_idx * length, size)
    return tensor.narrow(dim, start, min(length, size - start))


def check_parameters(
    optimizers: Iterable[Optimizer], module: nn.Module, replaced: Sequence[tuple[weakref.ref[Tensor], str]]
) -> None:
    """Raise `ValueError` unless all parameters of optimizers are the module's.

    Args:
        replaced: Parameters of the module before it was sharded, with their names.
    """
    own = {id(parameter) for parameter in module.parameters()}
    earlier = {id(reference()): name for reference, name in replaced if reference() is not None}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) in own:
                    continue
                name = earlier.get(id(parameter))
                found = f"{name} as it was before" if name is not None else tuple(parameter.shape)
                rule = f"a parameter that the sharded {class_name(module)} has"
                action = "Build the optimizer in `configure_optimizers`, or after `setup_module`."
                raise ValueError(must_be("parameter", rule, found, type(optimizer).__qualname__, action))

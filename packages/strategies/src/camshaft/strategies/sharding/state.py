"""The layout of sharded tensors: state dicts of modules and optimizers, and parts of whole tensors."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate
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
    return {name: _laid_out(value, own.get(name)) for name, value in state.items()}


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
    laid_out = {
        idx: {name: _laid_out(value, by_index.get(idx), is_state=True) for name, value in values.items()}
        for idx, values in state["state"].items()
    }
    return {**state, "state": laid_out}


def tensor_like(value: Tensor, parameter: Tensor) -> Tensor:
    """Return a copy of a whole or sharded tensor in the layout of a parameter of its shape. Collective."""
    if isinstance(parameter, DTensor):
        return distribute(_whole(value), parameter, _device(parameter))
    return _whole(value).to(parameter.device, copy=True)


def _laid_out(value: Any, like: Any, *, is_state: bool = False) -> Any:
    if not isinstance(value, Tensor):
        return value
    if isinstance(like, DTensor) and value.size() == like.size() and value.dim() > 0:
        return distribute(_whole(value), like, _device(like))
    if not isinstance(like, DTensor) or not is_state or value.dim() == 0:
        # cloned, since an optimizer changes its state in place
        return _whole(value).clone() if is_state else _whole(value)
    mesh, whole = like.device_mesh, _whole(value).to(_device(like), copy=True)
    return _from_part(whole, mesh, [Replicate()] * mesh.ndim, whole.size(), whole.stride())


def _whole(value: Tensor) -> Tensor:
    """Return the whole tensor. Collective if it is sharded."""
    with torch.no_grad():
        return value.full_tensor() if isinstance(value, DTensor) else value


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
    part = local_part(full.detach(), like.device_mesh, like.placements)
    local = torch.empty(part.size(), dtype=full.dtype, device=device)
    return _from_part(local.copy_(part), like.device_mesh, like.placements, like.size(), like.stride())


def _from_part(
    part: Tensor, mesh: DeviceMesh, placements: Sequence[Placement], size: torch.Size, stride: tuple[int, ...]
) -> DTensor:
    """Return the tensor of this rank's part where that is: `DTensor.from_local` moves offloaded ones to the mesh."""
    spec = DTensorSpec(mesh, tuple(placements), tensor_meta=TensorMeta(size, stride, part.dtype))
    return DTensor(part, spec, requires_grad=False)


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

"""Bringing the state of a module or an optimizer, whole or sharded in whichever way, into a sharded one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.optim import Optimizer

from camshaft.strategies.fsdp.shards import distribute

_CPU = torch.device("cpu")


def module_state_for(module: nn.Module, state: Mapping[str, Any]) -> dict[str, Any]:
    """A module's state laid out as the module is, for its `load_state_dict`. Collective.

    Args:
        module: The module, some of whose parameters are sharded.
        state: Whole tensors, with the same values on all processes, or sharded ones, on the CPU. Those of another shape
            than the module's stay as they are, for torch to refuse them.
    """
    own = module.state_dict()
    return {name: _laid_out(value, own.get(name)) for name, value in state.items()}


def optimizer_state_for(optimizer: Optimizer, state: Mapping[str, Any]) -> dict[str, Any]:
    """An optimizer's state laid out as its parameters are, for its `load_state_dict`. Collective.

    What has the shape of its parameter is sharded as that is; scalars, such as counts of steps, stay as they are; other
    tensors (factors of moments) are replicated.

    Args:
        optimizer: The optimizer of sharded parameters.
        state: Whole or sharded tensors, as above.
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
    """A copy of a whole or sharded tensor, laid out and on the device as a parameter of its shape is. Collective."""
    if isinstance(parameter, DTensor):
        return distribute(_whole(value), parameter, _device(parameter))
    return _whole(value).to(parameter.device, copy=True)


def _laid_out(value: Any, like: Any, *, is_state: bool = False) -> Any:
    if not isinstance(value, Tensor):
        return value
    if isinstance(like, DTensor) and value.size() == like.size() and value.dim() > 0:
        return distribute(_whole(value), like, _device(like))
    if not isinstance(like, DTensor) or not is_state or value.dim() == 0:
        # an optimizer takes such tensors as they are, and changes them in place
        return _whole(value).clone() if is_state else _whole(value)
    mesh = like.device_mesh
    return distribute_tensor(_whole(value).to(_device(like)), mesh, [Replicate()] * mesh.ndim, src_data_rank=None)


def _whole(value: Tensor) -> Tensor:
    """A tensor as every process has it if it is not sharded."""
    with torch.no_grad():
        return value.full_tensor() if isinstance(value, DTensor) else value


def _device(like: DTensor) -> torch.device:
    with torch.no_grad():
        return like.to_local().device

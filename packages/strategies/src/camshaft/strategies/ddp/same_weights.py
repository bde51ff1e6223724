"""Letting all processes begin with the same weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from camshaft.hooks_core.messages import must_be

_WHERE = "setup_module"


def check_same_structure(module: nn.Module, all_gather: Callable[[Any], list[Any]]) -> None:
    """Raise, on every process, unless all have the same parameters and buffers in the same order. Collective.

    Args:
        module: This process's module.
        all_gather: Returns what all processes pass to it.

    Raises:
        ValueError: If one has others than the first process, or some that have no shape yet.
    """
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    lazy = [name for name, value in tensors.items() if isinstance(value, UninitializedParameter)]
    own = [(name, None if name in lazy else tuple(value.shape), value.dtype) for name, value in tensors.items()]
    gathered = all_gather(own)
    if lazy:
        action = "Run the module once on a batch in `configure_model` or before."
        raise ValueError(must_be("parameter", "of a known shape", lazy[0], _WHERE, action))
    for rank, other in enumerate(gathered):
        if other != gathered[0]:
            pairs = zip(gathered[0], other, strict=False)
            first = next((pair for pair in pairs if pair[0] != pair[1]), (len(gathered[0]), len(other)))
            rule = f"the same on all ranks (rank 0 has {first[0]})"
            action = "Build the module without looking at the rank."
            raise ValueError(must_be("module", rule, first[1], f"{_WHERE} on rank {rank}", action))


def broadcast_tensors(tensors: Iterable[Tensor]) -> None:
    """Give tensors the values that they have on the first process, in place. Collective."""
    with torch.no_grad():
        pending = []
        for tensor in tensors:
            if tensor.numel() == 0:
                continue
            values = tensor.detach()
            sent = torch.view_as_real(values) if values.is_complex() else values
            sent = sent.contiguous()
            pending.append((values, sent, dist.broadcast(sent, src=0, async_op=True)))
        for values, sent, work in pending:
            work.wait()
            received = torch.view_as_complex(sent) if values.is_complex() else sent
            if received.data_ptr() != values.data_ptr():
                values.copy_(received)

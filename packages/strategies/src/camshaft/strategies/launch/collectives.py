"""What the processes of a run tell each other: objects through the CPU, tensors where they are."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, get_args

import torch
import torch.distributed as dist
from torch import Tensor

from camshaft.hooks_core.messages import must_be
from camshaft.hooks_core.protocols import ReduceOp

T = TypeVar("T")

_OPS = {"mean": dist.ReduceOp.SUM, "sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}
# What the backends cannot reduce, or would reduce with too little room, and what they reduce instead.
_WIDER_INTEGERS = {torch.int16: torch.int32, torch.uint16: torch.int32, torch.uint32: torch.int64}
_INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64)
# Kept, so that no thread of the backend is the last to hold it when the interpreter ends.
_NOTHING = torch.zeros(1)


def broadcast(value: T, src: int, group: dist.ProcessGroup) -> T:
    """The value of the rank `src`. Collective. CUDA tensors in it come out on each process's own device.

    Args:
        value: Anything that can be pickled; only that of `src` counts.
        src: A global rank.
        group: A group with a backend for the CPU.

    Raises:
        ValueError: If there is no such rank.
    """
    num_ranks = group.size()
    if not 0 <= src < num_ranks:
        raise ValueError(must_be("src", f"from 0 to {num_ranks - 1}", src, "broadcast", "Pass the rank of a process."))
    is_source = dist.get_rank() == src
    payload = [to_bytes(value) if is_source else None]
    with _saying_where("broadcast"):
        dist.broadcast_object_list(payload, src=src, group=group, device=torch.device("cpu"))
    sent = payload[0]
    assert sent is not None
    return value if is_source else from_bytes(sent)


def all_gather(value: T, group: dist.ProcessGroup) -> list[T]:
    """The values of all ranks, in their order. Collective. CUDA tensors come out on each process's own device.

    Args:
        value: Anything that can be pickled.
        group: A group with a backend for the CPU.
    """
    payloads: list[bytes] = [b""] * group.size()
    payload = to_bytes(value)
    with _saying_where("all_gather"):
        dist.all_gather_object(payloads, payload, group=group)
    return [from_bytes(payload) for payload in payloads]


def reduce(tensor: Tensor, op: ReduceOp, group: dist.ProcessGroup | None, num_ranks: int) -> Tensor:
    """A new tensor of all ranks' tensors, element by element. Collective. It carries no gradient.

    Args:
        tensor: Of the same shape and dtype on all ranks; it stays as it is. Those of 16 bits are added up in 32.
        op: "mean", "sum", "max" or "min". The sum of integers or booleans is of `torch.int64`, as `torch.sum` has it;
            their mean is of the default floating-point dtype.
        group: A group with a backend for the tensor's device; None for one rank.
        num_ranks: How many ranks there are.

    Raises:
        ValueError: If `op` is none of these, or one that the dtype does not have.
    """
    if op not in _OPS:
        raise ValueError(must_be("op", f"one of {', '.join(get_args(ReduceOp))}", op, "reduce", "Pass one of these."))
    given = tensor.dtype
    computed, result = _dtypes(given, op)
    # A copy in any case, which the backend overwrites.
    values = tensor.detach().to(computed, copy=True, memory_format=torch.contiguous_format)
    if group is not None:
        with _saying_where("reduce"):
            dist.all_reduce(torch.view_as_real(values) if values.is_complex() else values, _OPS[op], group=group)
    if op == "mean":
        values = values / num_ranks
    return values.to(result)


def wait_for_all(group: dist.ProcessGroup) -> None:
    """Return when every process is here. Collective. No device takes part.

    Args:
        group: A group with a backend for the CPU.
    """
    with _saying_where("barrier"):
        # `torch.distributed.barrier` would wait for the GPU of a group that has one.
        dist.all_reduce(_NOTHING, group=group)


def to_bytes(value: object) -> bytes:
    """Pickle a value such that its CUDA tensors can be read by a process with another device."""
    buffer = io.BytesIO()
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(value)
    return buffer.getvalue()


def from_bytes(payload: bytes) -> Any:
    """The value, with CUDA tensors on this process's current device."""
    return pickle.loads(payload)


class _Pickler(pickle.Pickler):
    """Sends a CUDA tensor as one of the CPU: torch pickles it with the number of its sender's device."""

    def reducer_override(self, obj: Any) -> Any:
        # A parameter and other subclasses hold a plain tensor, which comes by here too.
        if type(obj) is Tensor and obj.is_cuda:
            return _on_own_device, (obj.detach().cpu(), obj.requires_grad)
        return NotImplemented


def _on_own_device(tensor: Tensor, requires_grad: bool) -> Tensor:
    return tensor.to("cuda").requires_grad_(requires_grad)


def _dtypes(given: torch.dtype, op: ReduceOp) -> tuple[torch.dtype, torch.dtype]:
    """In which dtype a reduction is computed, and that of its result."""
    if given is torch.bool or given in _INTEGERS:
        if op == "mean":
            return torch.float64, torch.get_default_dtype()
        if op == "sum":
            return torch.int64, torch.int64
        return (torch.uint8, given) if given is torch.bool else (_WIDER_INTEGERS.get(given, given), given)
    if given.is_complex and op in ("max", "min"):
        raise ValueError(must_be("op", f"'mean' or 'sum' for {given}", op, "reduce", "Reduce its absolute values."))
    if given.is_floating_point and given.itemsize < 4:
        return torch.float32, given
    return given, given


@contextmanager
def _saying_where(collective: str) -> Iterator[None]:
    """Note on an error of the backend in which collective it came."""
    try:
        yield
    except RuntimeError as error:
        error.add_note(
            f"Raised on rank {dist.get_rank()} in the collective `{collective}`, which every rank must call."
        )
        raise

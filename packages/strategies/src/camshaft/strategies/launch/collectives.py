"""Collectives: objects are exchanged on the CPU, tensors on their device."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, get_args

import torch
import torch.distributed as dist
from torch import Tensor

from camshaft.hooks_core.protocols import ReduceOp
from camshaft.hooks_core.support.messages import must_be
from camshaft.strategies.checks import require

T = TypeVar("T")

_OPS = {"mean": dist.ReduceOp.SUM, "sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}
# Dtypes that the backends cannot reduce, or that would overflow, with the dtype in which they are reduced.
_WIDER_INTEGERS = {torch.int16: torch.int32, torch.uint16: torch.int32, torch.uint32: torch.int64}
# Global, so that no thread of the backend holds the last reference when the interpreter ends.
_NOTHING = torch.zeros(1)


def broadcast(value: T, src: int, group: dist.ProcessGroup) -> T:
    """Broadcast a value from the rank `src`. Collective. CUDA tensors in it are moved to each rank's own device.

    Args:
        value: Any object that can be pickled; ignored on ranks other than `src`.
        group: A group with a backend for the CPU.

    Raises:
        ValueError: If there is no such rank.
    """
    num_ranks = group.size()
    require(0 <= src < num_ranks, "src", f"from 0 to {num_ranks - 1}", src, "broadcast")
    is_source = dist.get_rank() == src
    payload = [to_bytes(value) if is_source else None]
    with _noting("broadcast"):
        dist.broadcast_object_list(payload, src=src, group=group, device=torch.device("cpu"))
    sent = payload[0]
    assert sent is not None
    return value if is_source else from_bytes(sent)


def all_gather(value: T, group: dist.ProcessGroup) -> list[T]:
    """Gather the values of all ranks, in their order. Collective. CUDA tensors are moved to each rank's own device.

    Args:
        value: Any object that can be pickled.
        group: A group with a backend for the CPU.
    """
    payloads: list[bytes] = [b""] * group.size()
    payload = to_bytes(value)
    with _noting("all_gather"):
        dist.all_gather_object(payloads, payload, group=group)
    return [from_bytes(payload) for payload in payloads]


def gather(value: T, group: dist.ProcessGroup) -> list[T] | None:
    """Return the values of all ranks, in their order, in the group's first rank, and None in others. Collective.

    Args:
        value: Any object that can be pickled. Tensors on an accelerator are moved to the first rank's own device.
        group: A group with a backend for the CPU.
    """
    payloads: list[bytes] | None = [b""] * group.size() if group.rank() == 0 else None
    with _noting("gather"):
        dist.gather_object(to_bytes(value), payloads, group=group, group_dst=0)
    return None if payloads is None else [from_bytes(payload) for payload in payloads]


def reduce(tensor: Tensor, op: ReduceOp, group: dist.ProcessGroup | None, num_ranks: int) -> Tensor:
    """Return the reduction of all ranks' tensors, element by element, without a gradient. Collective.

    Args:
        tensor: A tensor of the same shape and dtype on all ranks; it is not changed. 16 bits are added up in 32.
        op: "mean", "sum", "max" or "min". The sum of integers or booleans is of `torch.int64`, as for `torch.sum`;
            their mean is of the default floating-point dtype.
        group: A group with a backend for the tensor's device; None for one rank.
        num_ranks: The number of ranks.

    Raises:
        ValueError: If `op` is none of these, or the dtype does not support it.
    """
    if op not in _OPS:
        raise ValueError(must_be("op", f"one of {', '.join(get_args(ReduceOp))}", op, "reduce", "Pass one of these."))
    given = tensor.dtype
    computed, result = _dtypes(given, op)
    # Always a copy: the backend overwrites it.
    values = tensor.detach().to(computed, copy=True, memory_format=torch.contiguous_format)
    if group is not None:
        with _noting("reduce"):
            dist.all_reduce(torch.view_as_real(values) if values.is_complex() else values, _OPS[op], group=group)
    if op == "mean":
        values = values / num_ranks
    return values.to(result)


def start_max(values: Sequence[int], group: dist.ProcessGroup) -> Callable[[], list[int]]:
    """Begin to find the maxima of ints over all ranks. Collective. Returns a function that waits for them.

    Args:
        values: As many on all ranks.
        group: A group with a backend for the CPU, whose threads do the work.
    """
    maxima = torch.tensor(values, dtype=torch.int64)
    with _noting("reduce"):
        work = dist.all_reduce(maxima, dist.ReduceOp.MAX, group=group, async_op=True)

    def reduce() -> list[int]:  # a process that waits here is reported by this name
        with _noting("reduce"):
            work.wait()
        found: list[int] = maxima.tolist()
        return found

    return reduce


def wait_for_all(group: dist.ProcessGroup) -> None:
    """Wait until every rank calls this. Collective. No GPU takes part.

    Args:
        group: A group with a backend for the CPU.
    """
    with _noting("barrier"):
        # `torch.distributed.barrier` would wait for the GPU of a group that has one.
        dist.all_reduce(_NOTHING, group=group)


def to_bytes(value: object) -> bytes:
    """Pickle a value such that a process with another device can read its tensors on an accelerator."""
    buffer = io.BytesIO()
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(value)
    return buffer.getvalue()


def from_bytes(payload: bytes) -> Any:
    """Return a pickled value, with tensors that were on an accelerator on this process's current device."""
    return pickle.loads(payload)


class _Pickler(pickle.Pickler):
    """A pickler that sends an accelerator's tensors through the CPU: torch's would send the sender's device index."""

    def reducer_override(self, obj: Any) -> Any:
        # Parameters and other subclasses contain a plain tensor, which is pickled here too.
        if type(obj) is Tensor and obj.device.type not in ("cpu", "meta"):
            return _to_own_device, (obj.detach().cpu(), obj.requires_grad, obj.device.type)
        return NotImplemented


def _to_own_device(tensor: Tensor, requires_grad: bool, device_type: str) -> Tensor:
    return tensor.to(device_type).requires_grad_(requires_grad)


def _dtypes(given: torch.dtype, op: ReduceOp) -> tuple[torch.dtype, torch.dtype]:
    """Return the dtype in which a reduction is computed, and the dtype of its result."""
    if not given.is_floating_point and not given.is_complex:
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
def _noting(collective: str) -> Iterator[None]:
    """Add the collective's name to the notes of a backend's error."""
    try:
        yield
    except RuntimeError as error:
        error.add_note(
            f"Raised on rank {dist.get_rank()} in the collective `{collective}`, which every rank must call."
        )
        raise

"""Sums over logical ranks along one binary tree: the same bits on any number of processes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from camshaft.strategies.checks import require

_WHERE = "tree_reduce"
_BUCKET_BYTES = 2**25
# Renamed in torch 2.13, which deprecates the other name.
_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

Tensors = list[Tensor | None]
"""The tensors of one or several logical ranks; None stands for zeros."""


def tree_reduce(
    parts: Iterable[Sequence[Tensor]],
    *,
    op: Literal["sum", "mean"] = "sum",
    group: dist.ProcessGroup | None = None,
) -> list[Tensor]:
    """Reduce the tensors of all logical ranks along one binary tree, element by element. Collective.

    Each of W processes passes the tensors of its L logical ranks; logical ranks are numbered through, from those of
    process 0 on. Neighbours are added up, then sums of two, and so on. So the bits of the result depend on the L * W
    parts alone, not on how many processes hold them. Each process sends and receives as many bytes as in an all-reduce
    along a ring, and holds log2(L) + 1 copies of the tensors, if a generator makes each part when it is asked for.

    For example::

        gradients = ([*torch.autograd.grad(loss_of(rank), parameters)] for rank in logical_ranks)
        for parameter, gradient in zip(parameters, tree_reduce(gradients, op="mean")):
            parameter.grad = gradient

    Args:
        parts: For each logical rank of this process, in their order, its tensors: as many of the same shapes, dtypes
            and device for all logical ranks of all processes. They are not changed. The number of parts is a power of
            two, the same on all processes.
        op: "sum" or "mean". Sums are computed in the tensors' own dtype.
        group: The process group, whose size is a power of two and which has a backend for the device. None is the
            default group, and a single process where there is none.

    Returns:
        A new tensor, contiguous and without a gradient, in place of each of a part.

    Raises:
        ValueError: If the number of parts or of processes is not a power of two, `op` is another, the mean of integers
            is asked for, or parts differ in their numbers of tensors.
    """
    require(op in ("sum", "mean"), "op", "'sum' or 'mean'", op, _WHERE, "Pass one of the two.")
    sums, num_parts, expected = PartialSums(), 0, 0
    with torch.no_grad():
        for num_parts, part in enumerate(parts, 1):
            expected = len(part) if num_parts == 1 else expected
            rule = f"as many tensors as the first part ({expected})"
            require(len(part) == expected, "parts", rule, len(part), _WHERE, "Pass zeros where one is missing.")
            # sums overwrite what stands on their left
            sums.add([one.detach().clone() if num_parts % 2 else one.detach() for one in part])
        check_power_of_two("parts", num_parts, _WHERE)
        group = dist.group.WORLD if group is None and dist.is_initialized() else group
        num_processes = 1 if group is None else group.size()
        check_power_of_two("group", num_processes, _WHERE)
        (total,) = sums.newest_first()
        reduced: list[Tensor] = [one for one in total if one is not None]
        divisor = num_parts * num_processes if op == "mean" else 1
        for one in reduced if divisor > 1 else []:
            rule, is_fractional = "'sum' for integers", one.is_floating_point() or one.is_complex()
            require(is_fractional, "op", rule, op, _WHERE, "Convert them, or divide the sum.")
        if group is None or num_processes == 1:
            return [one.contiguous() if divisor == 1 else one.div_(divisor).contiguous() for one in reduced]
        return reduce_over_processes(reduced, group, divisor)


def check_power_of_two(name: str, number: int, where: str) -> None:
    """Raise `ValueError` unless a number is a power of two, so that all subtrees of its tree are whole."""
    is_one = isinstance(number, int) and not isinstance(number, bool) and number > 0 and number & (number - 1) == 0
    require(is_one, name, "a power of two", number, where, "Pass 1, 2, 4, 8, ... of them.")


class PartialSums:
    """Sums of the tensors of consecutive logical ranks, one for each bit of their number: a binary counter."""

    def __init__(self) -> None:
        self._sums: list[tuple[int, Tensors]] = []

    def add(self, tensors: Tensors) -> None:
        """Add the next logical rank's tensors. They, and previous ones, may be overwritten."""
        size = 1
        while self._sums and self._sums[-1][0] == size:
            tensors = add_right(self._sums.pop()[1], tensors)
            size *= 2
        self._sums.append((size, tensors))

    def newest_first(self) -> list[Tensors]:
        """Return the sums, of more and more logical ranks; what follows in the tree is their right neighbour."""
        return [tensors for _, tensors in reversed(self._sums)]

    def clear(self) -> None:
        """Forget all."""
        self._sums.clear()


def add_right(left: Tensors, right: Tensors) -> Tensors:
    """Return the sums of neighbours in the tree. Those on the left are overwritten."""
    pairs = [(one, other) for one, other in zip(left, right, strict=True) if one is not None and other is not None]
    if pairs:
        torch._foreach_add_([one for one, _ in pairs], [other for _, other in pairs])
    if len(pairs) == len(left):
        return left
    return [
        one if one is not None and other is not None else _plus_zeros(other if one is None else one)
        for one, other in zip(left, right, strict=True)
    ]


def _plus_zeros(tensor: Tensor | None) -> Tensor | None:
    """Return the sum of a tensor and zeros, in which -0.0 is 0.0."""
    return None if tensor is None else tensor + 0


def sum_rows(rows: Tensor) -> Tensor:
    """Return the tree's sum of the rows of a tensor, a power of two of them. They are overwritten."""
    stride = 1
    while stride < len(rows):
        rows[:: 2 * stride].add_(rows[stride :: 2 * stride])
        stride *= 2
    return rows[0]


def tree_norm(gradients: Sequence[Tensor]) -> Tensor:
    """Return the 2-norm of gradients, with the same bits however they are sharded. Collective if they are.

    Squares are added up along one tree over the elements of each row (an index of the first dimension), and then along
    one over all rows, element by element: so no sum depends on how many rows a process has.

    Args:
        gradients: At least one, whole or sharded along the first dimension over one process group.

    Returns:
        The norm, in single precision or that of wider gradients, on their device.
    """
    parts = [_rows_of(gradient) for gradient in gradients]
    dtype = torch.promote_types(torch.float32, parts[0][0].dtype)
    for part, _, _ in parts[1:]:
        dtype = torch.promote_types(dtype, part.dtype)
    groups = {tuple(dist.get_process_group_ranks(group)): group for _, _, group in parts if group is not None}
    require(len(groups) < 2, "gradients", "sharded over the same ranks", [*groups], "tree_norm", "Shard them alike.")
    group = next(iter(groups.values()), None)
    firsts = [0, *itertools.accumulate(len(gradient) if gradient.dim() else 1 for gradient in gradients)]
    totals = parts[0][0].new_zeros(firsts[-1], dtype=dtype)
    by_width: dict[int, list[tuple[int, Tensor]]] = {}
    for first, (part, start, of_group) in zip(firsts, parts, strict=False):
        if group is None or of_group is not None or group.rank() == 0:  # whole ones count once
            num_rows = max(1, _BUCKET_BYTES // max(1, part.shape[1] * part.itemsize))
            for offset, rows in enumerate(torch.split(part, num_rows)):
                by_width.setdefault(part.shape[1], []).append((first + start + offset * num_rows, rows))
    for placed in by_width.values():
        for bucket in _buckets([rows for _, rows in placed]):
            values = torch.cat([placed[idx][1] for idx in bucket]).to(dtype)
            squares = _sum_columns(values * values)
            of_parts = torch.split(squares, [len(placed[idx][1]) for idx in bucket])
            for idx, sums in zip(bucket, of_parts, strict=True):
                totals[placed[idx][0] : placed[idx][0] + len(sums)] = sums
    if group is not None:
        dist.all_reduce(totals, group=group)  # of each row one process has more than zero
    return _sum_columns(totals.view(1, -1)).view(()).sqrt()


def _rows_of(gradient: Any) -> tuple[Tensor, int, dist.ProcessGroup | None]:
    """Return this process's rows of a gradient as a matrix, the first one's index, and the group that shards them."""
    part, start, group = gradient, 0, None
    if hasattr(gradient, "device_mesh"):
        part, mesh = gradient.to_local(), gradient.device_mesh
        for dim, placement in enumerate(gradient.placements):
            if not placement.is_replicate() and mesh.size(dim) > 1:
                rule, fits = "sharded along its first dimension, once", placement.is_shard(0) and group is None
                require(fits, "gradient", rule, gradient.placements, "tree_norm", "Shard it so.")
                group = mesh.get_group(dim)
                start = min(len(gradient), -(-len(gradient) // mesh.size(dim)) * mesh.get_local_rank(dim))
    part = torch.view_as_real(part.detach()) if part.is_complex() else part.detach()
    return part.reshape(len(part), -1) if part.dim() and part.numel() else part.reshape(part.numel(), 1), start, group


def _sum_columns(rows: Tensor) -> Tensor:
    """Return the tree's sum of the columns of a matrix, which may be overwritten."""
    width = rows.shape[1]
    while width > 1:
        half = (width + 1) // 2
        rows[:, : width - half].add_(rows[:, half:width])
        width = half
    return rows[:, 0]


class Exchange:
    """The tree's sum of one tensor over processes, in two steps, each of which begins a collective.

    Each process sums one chunk of all processes' values, and sends it to all. The steps are taken by the caller, in the
    same order on all processes, rather than when the collective before is over, since that may differ between them.

    Args:
        values: A contiguous tensor of one dimension, of the same size on all processes. It may be overwritten.
        group: The process group, whose size is a power of two.
        divisor: What the sum is divided by.
    """

    def __init__(self, values: Tensor, group: dist.ProcessGroup, divisor: int) -> None:
        self._is_complex = values.is_complex()
        self._values = torch.view_as_real(values).view(-1) if self._is_complex else values
        self._group, self._divisor, self._num_processes = group, divisor, group.size()
        size = self._values.numel()
        self._chunk = -(-size // self._num_processes)
        sizes = [max(0, min(self._chunk, size - idx * self._chunk)) for idx in range(self._num_processes)]
        own = sizes[group.rank()]
        self._rows = values.new_empty((self._num_processes, own), dtype=self._values.dtype)
        self._work: Any = dist.all_to_all_single(
            self._rows.view(-1), self._values, [own] * self._num_processes, sizes, group=group, async_op=True
        )

    def gather(self) -> None:
        """Sum this process's chunk once it is there, and begin to send it to all."""
        self._work.wait()
        own = sum_rows(self._rows)
        if self._divisor != 1:
            own.div_(self._divisor)
        if own.numel() < self._chunk:
            own = torch.cat([own, own.new_zeros(self._chunk - own.numel())])
        self._rows = own  # alive until it is sent
        size = self._chunk * self._num_processes
        self._all = self._values if size == self._values.numel() else self._values.new_empty(size)
        self._work = _all_gather(self._all, own, group=self._group, async_op=True)

    def finish(self) -> Tensor:
        """Return the values of all chunks once they are there."""
        self._work.wait()
        values = self._all[: self._values.numel()]
        return torch.view_as_complex(values.view(-1, 2)) if self._is_complex else values


def reduce_over_processes(tensors: list[Tensor], group: dist.ProcessGroup, divisor: int) -> list[Tensor]:
    """Return the tree's sums over processes, divided. Small tensors travel together."""
    reduced: list[Tensor] = [*tensors]
    before: tuple[list[int], Exchange] | None = None
    for bucket in [*_buckets(tensors), None]:
        current = None
        if bucket is not None:
            flat = torch.cat([tensors[idx].reshape(-1) for idx in bucket])
            current = bucket, Exchange(flat, group, divisor)
        if before is not None:  # the next bucket is under way
            before[1].gather()
            values = before[1].finish()
            parts = torch.split(values, [tensors[idx].numel() for idx in before[0]])
            for idx, part in zip(before[0], parts, strict=True):
                reduced[idx] = part.view(tensors[idx].shape)
        before = current
    return reduced


def _buckets(tensors: Sequence[Tensor]) -> list[list[int]]:
    """Return the indices of tensors in groups of one dtype and device, each of about 32 MiB or one tensor."""
    groups: dict[Any, list[list[int]]] = {}
    sizes: dict[Any, int] = {}
    for idx, tensor in enumerate(tensors):
        key = tensor.dtype, tensor.device
        if key not in groups or sizes[key] + tensor.nbytes > _BUCKET_BYTES:
            groups.setdefault(key, []).append([])
            sizes[key] = 0
        groups[key][-1].append(idx)
        sizes[key] += tensor.nbytes
    return [bucket for of_kind in groups.values() for bucket in of_kind]


def world() -> dist.ProcessGroup:
    """Return the default process group, which is initialised."""
    assert dist.group.WORLD is not None
    return dist.group.WORLD


class TreeHook:
    """A communication hook of DistributedDataParallel: averages gradients over logical ranks along one binary tree.

    While a bucket is exchanged, the one before is summed and sent to all; after the last, this process waits for all.

    Args:
        num_logical_ranks: The number of logical ranks of all processes.
        merge: Adds the gradients of this process's other logical ranks, called with the parameters of a bucket and
            views of their gradients, in place.
    """

    def __init__(self, num_logical_ranks: int, merge: Callable[[list[Tensor], list[Tensor]], None]) -> None:
        self._num_logical_ranks, self._merge = num_logical_ranks, merge
        self._under_way: list[tuple[Exchange, torch.futures.Future[Tensor]]] = []

    def __call__(self, state: None, bucket: Any) -> torch.futures.Future[Tensor]:
        """Begin to reduce a bucket. Returns the future of its values."""
        if bucket.index() == 0:
            self._under_way.clear()  # of a backward that failed
        values = bucket.buffer()
        self._merge(bucket.parameters(), bucket.gradients())
        devices = [] if values.device.type == "cpu" else [values.device]
        future: torch.futures.Future[Tensor] = torch.futures.Future(devices=devices)
        self._under_way.append((Exchange(values, world(), self._num_logical_ranks), future))
        if len(self._under_way) > 1:
            self._under_way[-2][0].gather()
        if bucket.is_last():
            self._under_way[-1][0].gather()
            for exchange, result in self._under_way:
                result.set_result(exchange.finish())
            self._under_way.clear()
        return future

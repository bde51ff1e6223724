"""Copies of tensors in CPU memory, from which a checkpoint is written in the background."""

from __future__ import annotations

import mmap
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor

_ALIGNMENT_BYTES = 16
"""Alignment of the first byte of a copied range: the size of the largest elements."""

_CACHE_LINE_BYTES = 64


class StagingBuffers:
    """CPU memory for snapshots of tensors on any device, reused by the next snapshot.

    New memory costs more than the copy itself, since the operating system maps it page by page on the first write. So
    each snapshot of a run reuses the memory of the one before, which must not be needed any more by then. Memory for
    tensors on a GPU is pinned. Tensors that share memory do so in the snapshot.
    """

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None
        self._pinned: dict[int, list[Tensor]] = {}
        self._ranges: dict[tuple[torch.device, int], _Range] = {}

    def add(self, tensor: Tensor) -> Tensor:
        """Add a tensor to the next snapshot.

        Returns:
            A tensor on the CPU, without a gradient, that has the values once `copy` was called; not before.
        """
        tensor = tensor.detach()
        if tensor.numel() == 0 or not _is_plain_memory(tensor):
            return tensor.to("cpu", copy=True)
        storage = tensor.untyped_storage()
        start = _first_byte(tensor)
        extent = sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride(), strict=True))
        end = start + (extent + 1) * tensor.itemsize
        start -= start % _ALIGNMENT_BYTES
        part = self._ranges.setdefault((tensor.device, storage.data_ptr()), _Range(tensor, start, end))
        part.start, part.end = min(part.start, start), max(part.end, end)
        staged = torch.empty(0, dtype=tensor.dtype)
        part.views.append((tensor, staged))
        return staged

    def copy(self) -> None:
        """Copy the tensors that were added since the last call, and return when that is done."""
        ranges, self._ranges = list(self._ranges.values()), {}
        self._copy_from_cpu([part for part in ranges if part.source.device.type == "cpu"])
        self._copy_from_cuda([part for part in ranges if part.source.device.type == "cuda"])

    def forget(self) -> None:
        """Drop the tensors that were added since the last `copy`."""
        self._ranges = {}

    def _copy_from_cpu(self, ranges: list[_Range]) -> None:
        padded_sizes = (-(-part.num_bytes // _CACHE_LINE_BYTES) * _CACHE_LINE_BYTES for part in ranges)
        starts = list(accumulate(padded_sizes, initial=0))
        num_bytes = starts.pop()
        if num_bytes == 0:
            return
        if self._memory is None or len(self._memory) < num_bytes:
            # Shared with forked processes, such as data loader workers. Private memory would be copied page by page
            # on the next write as long as they live.
            self._memory = mmap.mmap(-1, num_bytes)
        for part, start in zip(ranges, starts, strict=True):
            # One storage for each range: torch writes whole storages.
            buffer = torch.frombuffer(self._memory, dtype=torch.uint8, count=part.num_bytes, offset=start)
            buffer.copy_(part.bytes())
            part.set_views(buffer)

    def _copy_from_cuda(self, ranges: list[_Range]) -> None:
        free, self._pinned = self._pinned, {}
        for part in ranges:
            same_size = free.get(part.num_bytes)
            buffer = same_size.pop() if same_size else torch.empty(part.num_bytes, dtype=torch.uint8, pin_memory=True)
            self._pinned.setdefault(part.num_bytes, []).append(buffer)
            buffer.copy_(part.bytes(), non_blocking=True)
            part.set_views(buffer)
        for device in {part.source.device for part in ranges}:
            torch.cuda.current_stream(device).synchronize()


@dataclass
class _Range:
    """The part of a storage that tensors of a snapshot are views of.

    Attributes:
        source: A tensor on the storage.
        start: Offset of the first byte in the storage.
        end: Offset after the last one.
        views: The tensors, with the copy of each in the snapshot.
    """

    source: Tensor
    start: int
    end: int
    views: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    @property
    def num_bytes(self) -> int:
        return self.end - self.start

    def bytes(self) -> Tensor:
        """Return a view of the part as bytes."""
        empty = torch.empty(0, dtype=torch.uint8, device=self.source.device)
        return _view(empty, self.source, self.start, (self.num_bytes,), (1,))

    def set_views(self, buffer: Tensor) -> None:
        """Make the tensors of the snapshot views of a buffer with a copy of this part."""
        for tensor, staged in self.views:
            offset = (_first_byte(tensor) - self.start) // tensor.itemsize
            _view(staged, buffer, offset, tensor.size(), tensor.stride())


def _is_plain_memory(tensor: Tensor) -> bool:
    """Return whether a tensor is dense memory on the CPU or a CUDA device, and of no subclass."""
    return (
        tensor.layout is torch.strided
        and tensor.device.type in ("cpu", "cuda")
        and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
        and type(tensor) is Tensor
    )


def _first_byte(tensor: Tensor) -> int:
    return int(tensor.storage_offset()) * tensor.itemsize


def _view(tensor: Tensor, memory: Tensor, offset: int, size: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
    """Make a tensor a view of another's storage, of any dtype."""
    return tensor.set_(memory.untyped_storage(), offset, size, stride)

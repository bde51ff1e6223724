"""Saving and loading the checkpoints of a strategy, on all ranks together, also in the background from copies."""

from __future__ import annotations

import atexit
import hashlib
import mmap
import os
import pickle
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from camshaft.hooks_core.protocols import Collectives, PendingSave
from camshaft.hooks_core.support.devices import copies_asynchronously, make_current
from camshaft.hooks_core.support.messages import must_be
from camshaft.hooks_core.support.remote_files import INDEX_FILE, is_folder, is_url
from camshaft.strategies.checkpoints.contents import PLACEHOLDER, Keys, dense_parts, is_sharded, name_of, separate
from camshaft.strategies.checkpoints.file import check_is_file, write_plain
from camshaft.strategies.checkpoints.reading import locate, read_checkpoint, with_objects

if TYPE_CHECKING:
    from camshaft.strategies.checkpoints.sharded import KeptPlan

T = TypeVar("T")


class Peers(Collectives, Protocol):
    """The attributes and collectives of a strategy that checkpoints need."""

    device: torch.device
    global_rank: int
    world_size: int


class CheckpointWriter:
    """A writer and reader of the checkpoints of a strategy, one after the other.

    Replicated state is one file, written by rank 0. A checkpoint with sharded tensors is a directory, into which every
    rank writes its parts. Either is durable and whole once it has its name.

    Args:
        strategy: The strategy, for its rank and collectives.
        asynchronous: Whether a thread writes in the background. A save then blocks only for a copy of the tensors
            into memory that is kept, of the checkpoint's size.
    """

    def __init__(self, strategy: Peers, asynchronous: bool) -> None:
        self._strategy = strategy
        self._buffers = StagingBuffers() if asynchronous else None
        self._latest: PendingWrite | None = None
        self._group: dist.ProcessGroup | None = None
        self._group_of: dist.ProcessGroup | None = None
        self._kept_plan: KeptPlan | None = None

    def save(self, checkpoint: Mapping[str, Any], path: str) -> PendingSave | None:
        """Write a checkpoint, after the previous one is written. Collective.

        Args:
            checkpoint: Nested dictionaries and lists of tensors, plain values and objects. Plain values, whole tensors
                and objects are those of rank 0, sharded tensors those of every rank.
            path: The target; directories are created as needed.

        Returns:
            None if it is durable and whole now; if asynchronous, a handle to wait for that.

        Raises:
            TypeError: If an object in it cannot be pickled.
            ValueError: If ranks have different sharded tensors.
            OSError: If the disk refuses; the target is untouched then.
            Exception: The error of the previous checkpoint, if it was not waited for; this one is not written then.
                Every rank raises it.
        """
        self._wait_for_latest()
        parts = _Parts(self._buffers, is_first=self._strategy.global_rank == 0)
        _, error = _attempt(lambda: parts.collect(checkpoint))
        self._agree_on(parts, error, path)
        write = self._write_function(parts, path)
        if self._buffers is None:
            _, error = _attempt(write)
            self._raise_shared(error, path)
            return None
        self._latest = PendingWrite(self._strategy, path, write)
        return self._latest

    def load(self, path: str, *, sharded: bool, weights_only: bool | None = None) -> dict[str, Any]:
        """Read a checkpoint, after the previous one is written. Collective.

        Args:
            path: The file or directory.
            sharded: Whether to return the sharded tensors of a directory sharded (in chunks of the first dimension over
                all ranks) rather than whole.
            weights_only: False unpickles the objects in it, as in `read_checkpoint`.

        Returns:
            The checkpoint, with its tensors on the CPU. Those of a file may be views of it, shared by the processes of
            a machine, if the strategy copies them anyway: to a GPU, or in parts.

        Raises:
            FileNotFoundError, CheckpointError: As `read_checkpoint`.
            NotSharedError: If it is a directory that is not the same for all ranks. A file that only rank 0 has, such
                as one on its machine's disk, is sent to the others.
        """
        self._wait_for_latest()
        seen = self._what_ranks_see(path)
        is_same = seen.count(seen[0]) == len(seen)
        if seen[0].is_folder and not is_same:
            from camshaft.strategies.checkpoints.sharded import not_shared

            others = [f"{rank} (node {one.node!r})" for rank, one in enumerate(seen) if one != seen[0]]
            problem = f"ranks {', '.join(others)} do not see what rank 0 (node {seen[0].node!r}) does"
            raise not_shared(problem, path, "load")
        if not is_same:
            return self._received(path, weights_only)
        if seen[0].is_folder and sharded and dist.is_initialized():
            return self._parts_of(path, weights_only)
        is_copied = sharded or self._strategy.device.type != "cpu"
        mmap = is_copied and self._strategy.world_size > 1
        return read_checkpoint(path, mmap=mmap, weights_only=weights_only)

    def _what_ranks_see(self, path: str) -> list[_Seen]:
        """Return what is at a path, as every rank sees it, or raise the error of rank 0. Collective."""
        own, error = _attempt(lambda: _seen(path))
        self._raise_shared(error if self._strategy.global_rank == 0 else None, path)
        own = own or _Seen(socket.gethostname(), is_folder=False, content=None)
        return [own] if self._strategy.world_size == 1 else self._strategy.all_gather(own)

    def _parts_of(self, path: str, weights_only: bool | None) -> dict[str, Any]:
        """Return a checkpoint in a directory, with this rank's parts of sharded tensors. Collective."""
        from camshaft.strategies.checkpoints.sharded import read_chunks, read_plain_part

        group = self._checkpoint_group()
        is_first = self._strategy.global_rank == 0
        content, error = _attempt((lambda: read_plain_part(locate(path))) if is_first else None)
        self._raise_shared(error, path)
        if self._strategy.world_size > 1:
            content = self._strategy.broadcast(content)
        assert content is not None
        parts = content
        checkpoint, error = _attempt(lambda: with_objects(read_chunks(parts, group), path, weights_only))
        self._raise_shared(error, path)
        assert checkpoint is not None
        return checkpoint

    def _received(self, path: str, weights_only: bool | None) -> dict[str, Any]:
        """Return a checkpoint in a file that rank 0 alone reads and sends to the others. Collective."""
        is_first = self._strategy.global_rank == 0
        own, error = _attempt((lambda: read_checkpoint(path, weights_only=weights_only)) if is_first else None)
        self._raise_shared(error, path)
        with tempfile.TemporaryDirectory() as folder:
            source = locate(path) if is_first else Path(folder, os.path.basename(path))
            with open(source, "rb" if is_first else "wb") as file:
                piece: bytes | None = None
                while piece != b"":
                    piece, error = _attempt((lambda: file.read(_PIECE_BYTES)) if is_first else None)
                    self._raise_shared(error, path)
                    piece = self._strategy.broadcast(piece)
                    if not is_first:
                        file.write(piece or b"")
            return own if own is not None else read_checkpoint(source, weights_only=weights_only)

    def _wait_for_latest(self) -> None:
        if self._latest is not None and not self._latest.is_settled:
            self._latest.wait()
        self._latest = None

    def _agree_on(self, parts: _Parts, error: BaseException | None, path: str) -> None:
        """Raise on all ranks if one has an error or other sharded tensors. Collective."""
        self._raise_shared(error, path)
        digest = hashlib.sha256("\n".join(sorted(parts.sharded)).encode()).digest()  # names of many ranks are long
        own = (digest, parts.same_as)
        gathered = [own] if self._strategy.world_size == 1 else self._strategy.all_gather(own)
        digests = [of_rank for of_rank, _ in gathered]
        if len(set(digests)) > 1:
            names = self._strategy.all_gather(set(parts.sharded))
            other_rank = next(rank for rank, of_rank in enumerate(digests) if of_rank != digests[0])
            differing = sorted(names[0] ^ names[other_rank])
            rule = f"the same sharded tensors on every rank; ranks 0 and {other_rank} differ in these"
            raise ValueError(must_be("checkpoint", rule, differing, "save", "Save the same names everywhere."))
        for name in gathered[0][1]:
            del parts.sharded[name], parts.local_parts[name]

    def _raise_shared(self, error: BaseException | None, path: str) -> None:
        """Raise the error of this rank, or else that of the lowest rank with one. Collective."""
        shared = _shared_error(error, self._strategy, path)
        if shared is not None:
            raise shared

    def _write_function(self, parts: _Parts, path: str) -> Callable[[], None] | None:
        """Return the function that writes this rank's part; None if it has none."""
        plain, sharded, local_parts = parts.plain, parts.sharded, parts.local_parts
        if sharded:
            from camshaft.strategies.checkpoints.sharded import KeptPlan, write_sharded

            group = self._checkpoint_group()
            self._kept_plan = kept = self._kept_plan or KeptPlan()
            return lambda: write_sharded(plain, sharded, local_parts, path, group, kept)
        if self._strategy.global_rank == 0:
            return lambda: write_plain(plain, path)
        return None

    def _checkpoint_group(self) -> dist.ProcessGroup:
        """Return a process group on the CPU for checkpoints alone, so that a thread can use it. Collective."""
        world = dist.group.WORLD
        if self._group is None or self._group_of is not world:
            timeout: timedelta | None = getattr(self._strategy, "timeout", None)
            self._group = dist.new_group(backend="gloo", timeout=timeout, group_desc="checkpoints")
            self._group_of = world
            self._kept_plan = None
        return self._group


_PIECE_BYTES = 2**26


@dataclass(frozen=True)
class _Seen:
    """The view of a rank of a checkpoint's path.

    Attributes:
        node: The rank's machine.
        is_folder: Whether it is a directory.
        content: Size and digest of the end of the file, or of the directory's plain part, which have the checksums of
            all else; None if there is none, or in a store, which is the same for all.
    """

    node: str = field(compare=False)
    is_folder: bool
    content: tuple[int, str] | None


def _seen(path: str) -> _Seen:
    place = str(locate(path))
    is_directory = is_folder(place)
    file = Path(place, INDEX_FILE) if is_directory else Path(place)
    content = None
    if not is_url(place) and file.exists():
        check_is_file(file)
        with file.open("rb") as stream:
            num_bytes = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, num_bytes - 2**16))
            content = num_bytes, hashlib.sha256(stream.read()).hexdigest()
    return _Seen(socket.gethostname(), is_directory, content)


class _Parts:
    """This rank's parts of a checkpoint.

    Sharded tensors have names that are the same on every rank: the keys that lead to the tensor, joined by dots, as in
    `torch.distributed.checkpoint`.

    Args:
        buffers: Memory for copies of the tensors, if they are written in the background.
        is_first: Whether this is rank 0, whose plain values are written.

    Attributes:
        plain: The checkpoint, with placeholders for sharded tensors.
        sharded: The sharded tensors by name.
        local_parts: This rank's parts of them, by name.
        same_as: The name that a tensor is stored under, for names that share one, such as those of tied weights. It is
            what this rank finds; that of rank 0 is used.
    """

    def __init__(self, buffers: StagingBuffers | None, *, is_first: bool) -> None:
        self._buffers = buffers
        self._is_first = is_first
        self.plain: Any = None
        self.sharded: dict[str, Any] = {}
        self.local_parts: dict[str, Tensor] = {}
        self.same_as: dict[str, str] = {}
        self._by_memory: dict[tuple[Any, ...], str] = {}

    def collect(self, checkpoint: Mapping[str, Any]) -> None:
        """Separate a checkpoint into its parts, and copy its tensors if there are buffers."""
        if self._buffers is not None:
            self._buffers.forget()  # what a save that failed left
        self.plain = separate(checkpoint, self._replace_tensor)
        if self._buffers is not None:
            self._buffers.copy()

    def _replace_tensor(self, tensor: Tensor, keys: Keys) -> Any:
        """Return a tensor for the plain part, or add a sharded one and return the placeholder for it."""
        if not is_sharded(tensor):
            return self._snapshot(tensor) if self._is_first else None
        sharded: Any = tensor
        if any(placement.is_partial() for placement in sharded.placements):
            action = "Reduce it first, with `full_tensor()` or `redistribute()`."
            rule = "sharded or replicated, not a partial sum"
            raise TypeError(must_be(name_of(keys), rule, sharded.placements, "a checkpoint", action))
        name = ".".join(str(key) for key in keys)
        if name in self.sharded:  # keys with dots in them
            name = name_of(keys)
        with torch.no_grad():
            local = sharded.to_local()
        if sum(part.nbytes for part in dense_parts(local)) < local.nbytes:  # chunks of codes without their scales
            action = "Use strategy='ddp', or an optimizer or layer that is not quantised."
            raise TypeError(
                f"`{name_of(keys)}` must be in full precision where it is sharded, but got quantised values "
                f"({type(local).__name__}) in a checkpoint. {action}"
            )
        self.sharded[name], self.local_parts[name] = sharded, self._snapshot(local)
        first = name
        if local.numel():
            layout = (local.dtype, local.stride(), sharded.shape, sharded.placements, sharded.device_mesh)
            first = self._by_memory.setdefault((local.data_ptr(), *layout), name)
        if first != name:
            self.same_as[name] = first
        return {PLACEHOLDER: first}

    def _snapshot(self, tensor: Tensor) -> Tensor:
        return tensor if self._buffers is None else self._buffers.add(tensor)


class PendingWrite:
    """A checkpoint that is being written by a thread, or by another rank alone.

    The interpreter does not exit before the thread ends. An error that was not waited for is printed then.

    Args:
        strategy: The strategy, whose ranks exchange their errors in `wait`.
        write: Writes this rank's part; None if it has none.

    Attributes:
        is_settled: Whether `wait` was called.
    """

    def __init__(self, strategy: Peers, path: str, write: Callable[[], None] | None) -> None:
        self._strategy = strategy
        self._path = path
        self._error: BaseException | None = None
        self.is_settled = False
        self._thread: threading.Thread | None = None
        if write is not None:
            self._thread = threading.Thread(target=self._run, args=(write,), name="camshaft-checkpoint", daemon=False)
            self._thread.start()

    def wait(self) -> None:
        """Wait until the checkpoint is durable and whole. Collective the first time.

        Raises:
            Exception: The error of any rank, on every rank.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if not self.is_settled:
            self.is_settled = True
            self._error = _shared_error(self._error, self._strategy, self._path)
            _unsettled.discard(self)
        if self._error is not None:
            raise self._error

    def _run(self, write: Callable[[], None]) -> None:
        try:
            make_current(self._strategy.device)  # each thread has its own
            write()
        except BaseException as error:
            self._error = error
            _unsettled.add(self)


_unsettled: set[PendingWrite] = set()
"""Failed writes that were not waited for."""


@atexit.register
def _report_unsettled() -> None:
    for pending in _unsettled:
        path, error = pending._path, pending._error
        print(f"error: the checkpoint {path!r} was not written ({type(error).__qualname__}: {error})", file=sys.stderr)


def _attempt(function: Callable[[], T] | None) -> tuple[T | None, BaseException | None]:
    """Return the result of a function, or the error that it raised."""
    try:
        return None if function is None else function(), None
    except BaseException as error:
        return None, error


def _shared_error(error: BaseException | None, strategy: Peers, path: str) -> BaseException | None:
    """Return the error for this rank to raise: its own, or else that of the lowest rank with one. Collective."""
    if strategy.world_size == 1:
        return error
    gathered = strategy.all_gather(None if error is None else _portable(error, strategy.global_rank, path))
    return next((one for one in (error, *gathered) if one is not None), None)


def _portable(error: BaseException, rank: int, path: str) -> BaseException:
    """Return a copy of an error that other ranks can raise, with a note about its origin."""
    try:
        copied: BaseException = pickle.loads(pickle.dumps(error))
    except Exception:  # the constructor of an exception class may raise anything
        copied = RuntimeError(f"{type(error).__qualname__}: {error}")
    copied.add_note(f"Raised on rank {rank} by the checkpoint {path!r}.")
    return copied


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
        self._copy_from_devices([part for part in ranges if part.source.device.type != "cpu"])

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

    def _copy_from_devices(self, ranges: list[_Range]) -> None:
        free, self._pinned = self._pinned, {}
        for part in ranges:
            same_size = free.get(part.num_bytes)
            buffer = same_size.pop() if same_size else torch.empty(part.num_bytes, dtype=torch.uint8, pin_memory=True)
            self._pinned.setdefault(part.num_bytes, []).append(buffer)
            buffer.copy_(part.bytes(), non_blocking=True)
            part.set_views(buffer)
        for device in {part.source.device for part in ranges}:
            torch.accelerator.current_stream(device).synchronize()


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
    """Return whether a tensor is dense memory that can be copied to pinned memory, or the CPU's, and of no subclass."""
    return (
        tensor.layout is torch.strided
        and (tensor.is_cpu or copies_asynchronously(tensor.device))
        and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
        and type(tensor) is Tensor
    )


def _first_byte(tensor: Tensor) -> int:
    return int(tensor.storage_offset()) * tensor.itemsize


def _view(tensor: Tensor, memory: Tensor, offset: int, size: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
    """Make a tensor a view of another's storage, of any dtype."""
    return tensor.set_(memory.untyped_storage(), offset, size, stride)

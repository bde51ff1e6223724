"""How the processes of a strategy save and load checkpoints together, also while training goes on."""

from __future__ import annotations

import atexit
import ctypes
import mmap
import os
import pickle
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from camshaft.hooks_core.messages import must_be
from camshaft.hooks_core.protocols import Collectives, PendingSave
from camshaft.strategies.checkpoints.contents import Keys, is_sharded, separate
from camshaft.strategies.checkpoints.file import locate, read_checkpoint, with_objects, write_plain

if TYPE_CHECKING:
    from camshaft.strategies.checkpoints.sharded import ShardedTensors


T = TypeVar("T")


class CheckpointWriter:
    """Writes and reads the checkpoints of a strategy, one after the other.

    Replicated state is one file, which the first process writes. A checkpoint with sharded tensors is a directory, into
    which every process writes its parts. Either is durable and whole once it has its name.

    Args:
        strategy: Tells the processes apart and lets them talk.
        asynchronous: Whether a thread writes while training goes on. A save then blocks only for a copy of the tensors
            into memory that is kept, as much as the checkpoint has.
    """

    def __init__(self, strategy: Peers, asynchronous: bool) -> None:
        self._strategy = strategy
        self._buffers = StagingBuffers() if asynchronous else None
        self._latest: PendingWrite | None = None
        self._group: dist.ProcessGroup | None = None
        self._group_of: dist.ProcessGroup | None = None

    def save(self, checkpoint: Mapping[str, Any], path: str) -> PendingSave | None:
        """Write a checkpoint, after the one before is written. Collective.

        Args:
            checkpoint: Nested dictionaries and lists of tensors, plain values and objects. The first process's plain
                values, whole tensors and objects count, and every one's sharded tensors.
            path: The target; directories are created as needed.

        Returns:
            None if it is durable and whole now; if asynchronous, what waits until it is.

        Raises:
            TypeError: If an object in it cannot be pickled.
            ValueError: If the processes have different sharded tensors.
            OSError: If the disk refuses; the target is untouched then.
            Exception: What writing the checkpoint before raised, if nobody has waited for that one; this one is not
                written then. Whatever it is, every process raises it.
        """
        self._wait_for_latest()
        parts = _Parts(self._buffers, is_first=self._strategy.global_rank == 0)
        error = _error_of(lambda: parts.take(checkpoint))
        self._agree_on(parts, error, path)
        write = self._how_to_write(parts, path)
        if self._buffers is None:
            error = agreed(_error_of(write), self._strategy, path)
            if error is not None:
                raise error
            return None
        self._latest = PendingWrite(self._strategy, path, write)
        return self._latest

    def load(self, path: str, *, sharded: bool, weights_only: bool | None = None) -> dict[str, Any]:
        """Read a checkpoint, after the one before is written. Collective.

        Args:
            path: The file or directory.
            sharded: Whether the sharded tensors of a directory come as such, chunks of the first dimension over all
                processes, rather than whole.
            weights_only: False unpickles the objects in it, as in `read_checkpoint`.

        Returns:
            The checkpoint, with its tensors on the CPU. Those of a file may be views of it, which the processes of a
            machine share, where the strategy copies them anyway: to a GPU, or in parts.

        Raises:
            FileNotFoundError, CheckpointError: As `read_checkpoint`.
        """
        self._wait_for_latest()
        group = self._checkpoint_group() if sharded and dist.is_initialized() else None
        if group is not None and locate(path).is_dir():
            from camshaft.strategies.checkpoints import sharded as sharded_reading

            content, error = _result_of(lambda: sharded_reading.read_plain_part(locate(path)))
            error = agreed(error, self._strategy, path)
            if error is not None or content is None:
                raise error or AssertionError
            return with_objects(sharded_reading.read_chunks(content, group), content.directory, weights_only)
        is_copied = sharded or self._strategy.device.type != "cpu"
        mmap = is_copied and self._strategy.world_size > 1
        return read_checkpoint(path, mmap=mmap, weights_only=weights_only)

    def finish(self) -> None:
        """Return when this process writes no more. Not collective, and silent about errors, which `wait` raises."""
        if self._latest is not None:
            self._latest.join()

    def _wait_for_latest(self) -> None:
        if self._latest is not None and not self._latest.is_settled:
            self._latest.wait()
        self._latest = None

    def _agree_on(self, parts: _Parts, error: BaseException | None, path: str) -> None:
        """Find out that all processes can go on to write the same sharded tensors; raise on all if they cannot."""
        if self._strategy.world_size == 1:
            if error is not None:
                raise error
            parts.drop(parts.same_as)
            return
        told = None if error is None else portable(error, self._strategy.global_rank, path)
        answers = self._strategy.all_gather((told, parts.names, parts.same_as))
        error = own_or_first(error, [answer[0] for answer in answers])
        if error is not None:
            raise error
        _, names, same_as = answers[0]
        for other_rank, (_, other_names, _) in enumerate(answers):
            if other_names != names:
                differing = sorted(names ^ other_names)
                rule = f"the same sharded tensors on every rank; ranks 0 and {other_rank} differ in these"
                raise ValueError(must_be("checkpoint", rule, differing, "save", "Save the same names everywhere."))
        parts.drop(same_as)

    def _how_to_write(self, parts: _Parts, path: str) -> Callable[[], None] | None:
        """What this process has to do, if anything."""
        plain, shards = parts.plain, parts.shards
        if shards is not None:
            from camshaft.strategies.checkpoints.sharded import write_sharded

            tensors, local_parts, group = shards.tensors, parts.local, self._checkpoint_group()
            return lambda: write_sharded(plain, tensors, local_parts, path, group)
        if self._strategy.global_rank == 0:
            return lambda: write_plain(plain, path)
        return None

    def _checkpoint_group(self) -> dist.ProcessGroup:
        """All processes, talking through the CPU about checkpoints alone, so that a thread may do so. Collective."""
        world = dist.group.WORLD
        if self._group is None or self._group_of is not world:
            timeout: timedelta | None = getattr(self._strategy, "timeout", None)
            self._group = dist.new_group(backend="gloo", timeout=timeout, group_desc="checkpoints")
            self._group_of = world
        return self._group


class _Parts:
    """What one process contributes to a checkpoint.

    Args:
        buffers: Where tensors are copied to, if training goes on before they are written.
        is_first: Whether this process's plain values count.

    Attributes:
        plain: The checkpoint, with placeholders for sharded tensors.
        shards: The sharded tensors, if there are any.
        local: This process's parts of them, by name.
    """

    def __init__(self, buffers: StagingBuffers | None, *, is_first: bool) -> None:
        self._buffers = buffers
        self._is_first = is_first
        self.plain: Any = None
        self.shards: ShardedTensors | None = None
        self.local: dict[str, Tensor] = {}

    @property
    def names(self) -> set[str]:
        return set() if self.shards is None else set(self.shards.tensors)

    @property
    def same_as(self) -> dict[str, str]:
        return {} if self.shards is None else self.shards.same_as

    def take(self, checkpoint: Mapping[str, Any]) -> None:
        """Take a checkpoint apart, and copy what is to be written if training goes on meanwhile."""
        try:
            self.plain = separate(checkpoint, self._take_tensor)
            if self.shards is not None:
                self.local = {name: self._snapshot(self.shards.local(name)) for name in self.shards.tensors}
            if self._buffers is not None:
                self._buffers.copy()
        except BaseException:
            if self._buffers is not None:
                self._buffers.forget()
            raise

    def drop(self, names: Mapping[str, str]) -> None:
        """Leave out sharded tensors that are written under another name."""
        if self.shards is not None:
            for name in names:
                del self.shards.tensors[name]
                del self.local[name]

    def _take_tensor(self, tensor: Tensor, keys: Keys) -> Any:
        if not is_sharded(tensor):
            return self._snapshot(tensor) if self._is_first else None
        if self.shards is None:
            from camshaft.strategies.checkpoints.sharded import ShardedTensors

            self.shards = ShardedTensors()
        return self.shards.take(tensor, keys)

    def _snapshot(self, tensor: Tensor) -> Tensor:
        return tensor if self._buffers is None else self._buffers.add(tensor)


def _result_of(function: Callable[[], T]) -> tuple[T | None, BaseException | None]:
    try:
        return function(), None
    except BaseException as error:
        return None, error


def _error_of(function: Callable[[], None] | None) -> BaseException | None:
    return None if function is None else _result_of(function)[1]


class Peers(Collectives, Protocol):
    """What a checkpoint needs of a strategy."""

    device: torch.device
    global_rank: int
    world_size: int


class PendingWrite:
    """A checkpoint that a thread of this process writes, or another process alone.

    The interpreter does not end before the thread does. An error that nobody waited for is told then.

    Args:
        strategy: Lets the processes talk when they wait.
        path: The target.
        write: What writes; None where this process has nothing to write.
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
        """Return when the checkpoint is durable and whole. Collective the first time.

        Raises:
            Exception: What writing it raised on any process, on every process.
        """
        self.join()
        if not self.is_settled:
            self.is_settled = True
            self._error = agreed(self._error, self._strategy, self._path)
            _unsettled.discard(self)
        if self._error is not None:
            raise self._error

    def join(self) -> None:
        """Return when this process has written its part, or failed to."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def tell(self) -> None:
        """Print the error, if there is one."""
        if self._error is not None:
            what = f"{type(self._error).__qualname__}: {self._error}"
            print(f"error: the checkpoint {self._path!r} was not written ({what})", file=sys.stderr)

    def _run(self, write: Callable[[], None]) -> None:
        try:
            write()
        except BaseException as error:
            self._error = error
            _unsettled.add(self)


_unsettled: set[PendingWrite] = set()
"""Writes that failed and that nobody has waited for since."""


@atexit.register
def _tell_unsettled() -> None:
    for pending in _unsettled:
        pending.tell()


def agreed(error: BaseException | None, strategy: Peers, path: str) -> BaseException | None:
    """What every process is to raise: what it ran into itself, or else what that of the lowest rank did. Collective."""
    if strategy.world_size == 1:
        return error
    told = None if error is None else portable(error, strategy.global_rank, path)
    return own_or_first(error, strategy.all_gather(told))


def own_or_first(own: BaseException | None, errors: list[BaseException | None]) -> BaseException | None:
    """Among the errors of all processes, the one that this one raises."""
    return own if own is not None else next((error for error in errors if error is not None), None)


def portable(error: BaseException, rank: int, path: str) -> BaseException:
    """An error as other processes can raise it, with a note that says where it comes from."""
    try:
        told: BaseException = pickle.loads(pickle.dumps(error))
    except Exception:  # whatever somebody's exception raises when it is made anew
        told = RuntimeError(f"{type(error).__qualname__}: {error}")
    told.add_note(f"Raised on rank {rank} by the checkpoint {path!r}.")
    return told


_ALIGNMENT_BYTES = 16
"""What the first byte of a copied range is a multiple of: the size of the largest elements."""

_CACHE_LINE_BYTES = 64

_PIECE_BYTES = 8 * 2**20
"""How much a thread copies in one call, so that threads end at about the same time."""

_MAX_COPY_THREADS = 4
"""Beyond a few threads the memory is what limits, and the loop's own threads are to stay undisturbed."""


@dataclass
class _Range:
    """The part of a storage that tensors of a snapshot look at.

    Attributes:
        source: A tensor on the storage.
        start: Offset of the first byte in the storage.
        end: Offset after the last one.
        views: The tensors, with what becomes of each in the snapshot.
    """

    source: Tensor
    start: int
    end: int
    views: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    @property
    def num_bytes(self) -> int:
        return self.end - self.start

    def bytes(self) -> Tensor:
        """The part as bytes, without a copy."""
        empty = torch.empty(0, dtype=torch.uint8, device=self.source.device)
        return _view(empty, self.source, self.start, (self.num_bytes,), (1,))

    def show_copy(self, buffer: Tensor) -> None:
        """Let the tensors of the snapshot look at a buffer with a copy of this part."""
        for tensor, staged in self.views:
            offset = (_first_byte(tensor) - self.start) // tensor.itemsize
            _view(staged, buffer, offset, tensor.size(), tensor.stride())


class StagingBuffers:
    """Copies tensors of any device into CPU memory, which it keeps for the next snapshot.

    New memory costs more than the copy itself, since the operating system hands it out page by page as it is first
    written. So the second snapshot of a run and later ones reuse the memory of the one before, which must not be
    needed any more by then. Memory for tensors on a GPU is pinned. Tensors that share memory do so in the snapshot.

    Args:
        num_threads: How many threads copy; by default as many as this process has cores to itself, up to four.
    """

    def __init__(self, num_threads: int | None = None) -> None:
        self._num_threads = num_threads or min(_MAX_COPY_THREADS, _num_cores())
        self._executor: ThreadPoolExecutor | None = None
        self._memory: mmap.mmap | None = None
        self._pinned: dict[int, list[Tensor]] = {}
        self._ranges: dict[tuple[torch.device, int], _Range] = {}

    def add(self, tensor: Tensor) -> Tensor:
        """Make a tensor part of the next snapshot.

        Returns:
            What is a copy of it on the CPU, without a gradient, as soon as `copy` has been called; not before.
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
        """Copy everything that was added since the last time, and return when that is done."""
        ranges, self._ranges = list(self._ranges.values()), {}
        self._copy_from_cpu([part for part in ranges if part.source.device.type == "cpu"])
        self._copy_from_cuda([part for part in ranges if part.source.device.type == "cuda"])

    def forget(self) -> None:
        """Drop what was added since the last `copy`."""
        self._ranges = {}

    def release(self) -> None:
        """Give the memory back as soon as nobody looks at the last snapshot any more."""
        self._memory = None
        self._pinned = {}
        if self._executor is not None:
            self._executor.shutdown()
            self._executor = None

    def _copy_from_cpu(self, ranges: list[_Range]) -> None:
        starts = list(accumulate((_aligned(part.num_bytes) for part in ranges), initial=0))
        num_bytes = starts.pop()
        if num_bytes == 0:
            return
        if self._memory is None or len(self._memory) < num_bytes:
            # Shared with processes that are forked, such as workers that load data: memory that is a process's own
            # would be handed out anew, page by page, when it is next written while they live.
            self._memory = mmap.mmap(-1, num_bytes)
        pieces: deque[tuple[int, int, int]] = deque()
        for part, start in zip(ranges, starts, strict=True):
            # A storage of its own for each: torch writes whole storages.
            buffer = torch.frombuffer(self._memory, dtype=torch.uint8, count=part.num_bytes, offset=start)
            target, source = buffer.data_ptr(), part.source.untyped_storage().data_ptr() + part.start
            for offset in range(0, part.num_bytes, _PIECE_BYTES):
                length = min(_PIECE_BYTES, part.num_bytes - offset)
                pieces.append((target + offset, source + offset, length))
            part.show_copy(buffer)
        num_others = min(self._num_threads, -(-num_bytes // _PIECE_BYTES)) - 1
        if num_others > 0 and self._executor is None:
            self._executor = ThreadPoolExecutor(self._num_threads - 1, "camshaft-staging")
        others = [self._executor.submit(_copy_all, pieces) for _ in range(num_others)] if self._executor else []
        _copy_all(pieces)
        wait(others)

    def _copy_from_cuda(self, ranges: list[_Range]) -> None:
        free, self._pinned = self._pinned, {}
        for part in ranges:
            same_size = free.get(part.num_bytes)
            buffer = same_size.pop() if same_size else torch.empty(part.num_bytes, dtype=torch.uint8, pin_memory=True)
            self._pinned.setdefault(part.num_bytes, []).append(buffer)
            buffer.copy_(part.bytes(), non_blocking=True)
            part.show_copy(buffer)
        for device in {part.source.device for part in ranges}:
            torch.cuda.current_stream(device).synchronize()


def _copy_all(pieces: deque[tuple[int, int, int]]) -> None:
    """Copy pieces (target, source, length) until none is left; several threads may do so together.

    A call through `ctypes` lets other threads of Python run. Tensor's own copy would start a second set of PyTorch's
    threads within each of these.
    """
    while pieces:
        try:
            piece = pieces.popleft()
        except IndexError:  # another thread took the last
            return
        ctypes.memmove(*piece)


def _is_plain_memory(tensor: Tensor) -> bool:
    """Whether a tensor is nothing but numbers in a storage on the CPU or a CUDA device."""
    return (
        tensor.layout is torch.strided
        and tensor.device.type in ("cpu", "cuda")
        and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
        and type(tensor) is Tensor
    )


def _first_byte(tensor: Tensor) -> int:
    return int(tensor.storage_offset()) * tensor.itemsize


def _view(tensor: Tensor, memory: Tensor, offset: int, size: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
    """Make a tensor look at another's storage, whatever its type is."""
    return tensor.set_(memory.untyped_storage(), offset, size, stride)


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _CACHE_LINE_BYTES) * _CACHE_LINE_BYTES


def _num_cores() -> int:
    """How many cores this process has to itself: its share, where several run on this machine."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    local_world_size = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return max(1, available // max(1, int(local_world_size) if local_world_size.isdigit() else 1))

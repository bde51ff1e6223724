"""Saving and loading the checkpoints of a strategy, on all ranks together, also in the background."""

from __future__ import annotations

import atexit
import pickle
import sys
import threading
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from camshaft.hooks_core.protocols import Collectives, PendingSave
from camshaft.hooks_core.support.messages import must_be
from camshaft.hooks_core.support.remote_files import is_folder
from camshaft.strategies.checkpoints.contents import PLACEHOLDER, Keys, is_sharded, name_of, separate
from camshaft.strategies.checkpoints.file import write_plain
from camshaft.strategies.checkpoints.reading import locate, read_checkpoint, with_objects

if TYPE_CHECKING:
    from camshaft.strategies.checkpoints.staging import StagingBuffers

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
        self._buffers: StagingBuffers | None = None
        if asynchronous:
            from camshaft.strategies.checkpoints.staging import StagingBuffers  # rarely needed

            self._buffers = StagingBuffers()
        self._latest: PendingWrite | None = None
        self._group: dist.ProcessGroup | None = None
        self._group_of: dist.ProcessGroup | None = None

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
        """
        self._wait_for_latest()
        group = self._checkpoint_group() if sharded and dist.is_initialized() else None
        if group is not None and is_folder(str(locate(path))):
            from camshaft.strategies.checkpoints.sharded import read_chunks, read_plain_part

            content, error = _attempt(lambda: read_plain_part(locate(path)))
            self._raise_shared(error, path)
            assert content is not None
            return with_objects(read_chunks(content, group), content.directory, weights_only)
        is_copied = sharded or self._strategy.device.type != "cpu"
        mmap = is_copied and self._strategy.world_size > 1
        return read_checkpoint(path, mmap=mmap, weights_only=weights_only)

    def _wait_for_latest(self) -> None:
        if self._latest is not None and not self._latest.is_settled:
            self._latest.wait()
        self._latest = None

    def _agree_on(self, parts: _Parts, error: BaseException | None, path: str) -> None:
        """Raise on all ranks if one has an error or other sharded tensors. Collective."""
        self._raise_shared(error, path)
        own = (set(parts.sharded), parts.same_as)
        gathered = [own] if self._strategy.world_size == 1 else self._strategy.all_gather(own)
        names, same_as = gathered[0]
        for other_rank, (other_names, _) in enumerate(gathered):
            if other_names != names:
                differing = sorted(names ^ other_names)
                rule = f"the same sharded tensors on every rank; ranks 0 and {other_rank} differ in these"
                raise ValueError(must_be("checkpoint", rule, differing, "save", "Save the same names everywhere."))
        for name in same_as:
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
            from camshaft.strategies.checkpoints.sharded import write_sharded

            group = self._checkpoint_group()
            return lambda: write_sharded(plain, sharded, local_parts, path, group)
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
        return self._group


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
        try:
            self.plain = separate(checkpoint, self._replace_tensor)
            if self._buffers is not None:
                self._buffers.copy()
        except BaseException:
            if self._buffers is not None:
                self._buffers.forget()
            raise

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

"""How the processes of a strategy save and load checkpoints together, also while training goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import torch.distributed as dist
from torch import Tensor

from camshaft.hooks_core.messages import must_be
from camshaft.hooks_core.protocols import PendingSave
from camshaft.strategies.checkpoints.checkpoint_file import locate, read_checkpoint, with_objects, write_plain
from camshaft.strategies.checkpoints.objects import separate
from camshaft.strategies.checkpoints.pending_write import Peers, PendingWrite, agreed, own_or_first, portable
from camshaft.strategies.checkpoints.plain_values import Keys, is_sharded
from camshaft.strategies.checkpoints.staging import StagingBuffers

if TYPE_CHECKING:
    from camshaft.strategies.checkpoints.sharded_checkpoint import ShardedTensors

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
            from camshaft.strategies.checkpoints import sharded_reading

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
            from camshaft.strategies.checkpoints.sharded_checkpoint import write_sharded

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
            from camshaft.strategies.checkpoints.sharded_checkpoint import ShardedTensors

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

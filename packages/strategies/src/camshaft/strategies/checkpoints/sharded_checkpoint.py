"""A checkpoint with sharded tensors is a directory: what it holds, and how all processes together write it.

`plain.ckpt` is a checkpoint file with everything that is not sharded, and an index of where each chunk of the sharded
tensors is in the `.distcp` files of `torch.distributed.checkpoint`. The `.metadata` beside them says the same for tools
of torch; it is a pickle, so it is never read here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.tensor import DTensor
from torch.futures import Future

from camshaft.hooks_core.durable_paths import flush, remove
from camshaft.hooks_core.messages import must_be
from camshaft.hooks_core.partial_paths import claimed, new_partial_name
from camshaft.strategies.checkpoints.checkpoint_file import write_plain
from camshaft.strategies.checkpoints.durable_files import PLAIN_FILE, check_replaceable, naming, put_in_place
from camshaft.strategies.checkpoints.plain_values import Keys, name_of

FORMAT = "camshaft sharded checkpoint"
VERSION = 1
PLACEHOLDER = "__sharded_tensor__"
"""A dictionary with this key alone stands for the sharded tensor that its value names."""


class ShardedTensors:
    """The sharded tensors of a nested checkpoint, under names that are the same on every process.

    A name is the keys that lead to the tensor with dots between them, as `torch.distributed.checkpoint` names them.

    Attributes:
        tensors: The tensors by name.
        same_as: For names whose tensor is another one's too, as that of tied weights is, the other name. It is what
            this process finds; the first process's counts.
    """

    def __init__(self) -> None:
        self.tensors: dict[str, DTensor] = {}
        self.same_as: dict[str, str] = {}
        self._by_memory: dict[tuple[Any, ...], str] = {}

    def take(self, tensor: Tensor, keys: Keys) -> dict[str, str]:
        """Keep a tensor. Returns what stands for it among the plain values."""
        assert isinstance(tensor, DTensor)
        if any(placement.is_partial() for placement in tensor.placements):
            action = "Reduce it first, with `full_tensor()` or `redistribute()`."
            rule = "sharded or replicated, not a part of a sum"
            raise TypeError(must_be(name_of("checkpoint", keys), rule, tensor.placements, "a checkpoint", action))
        name = ".".join(str(key) for key in keys)
        if name in self.tensors:  # keys with dots in them
            name = name_of("checkpoint", keys)
        self.tensors[name] = tensor
        local = self.local(name)
        first = name
        if local.numel():
            memory = (
                local.data_ptr(),
                local.dtype,
                local.stride(),
                tensor.shape,
                tensor.placements,
                tensor.device_mesh,
            )
            first = self._by_memory.setdefault(memory, name)
        if first != name:
            self.same_as[name] = first
        return {PLACEHOLDER: first}

    def local(self, name: str) -> Tensor:
        """This process's part of a tensor."""
        with torch.no_grad():
            return self.tensors[name].to_local()


def write_sharded(
    plain: Any, tensors: Mapping[str, DTensor], local_parts: Mapping[str, Tensor], path: str, group: dist.ProcessGroup
) -> None:
    """Write a checkpoint with sharded tensors so that it is durable and whole once it has its name.

    Collective among the group, in any thread; what one process raises, all raise. A directory beside the target is
    written, flushed to disk and renamed by the first process after all are done. What a killed writer leaves there,
    `hooks_core.partial_paths.abandoned_in` finds.

    Args:
        plain: Plain values, with placeholders; those of the first process count.
        tensors: What is written, under the same names on every process. Only shapes and placements are looked at.
        local_parts: This process's parts of them.
        path: The target.
        group: All processes, with a backend for the CPU.
    """
    target = Path(path)
    is_first = dist.get_rank(group) == 0
    names: list[Any] = [str(new_partial_name(target)) if is_first else None]
    dist.broadcast_object_list(names, src=0, group=group)
    partial = Path(names[0])
    with naming(target), contextlib.ExitStack() as claim:
        try:
            with cause_raised():
                metadata = save(
                    dict(tensors),
                    storage_writer=_PartialDirectory(partial, target, claim),
                    planner=_LocalParts(local_parts),
                    process_group=group,
                )
            outcome: list[BaseException | None] = [None]
            if is_first:
                outcome = [_finish(plain, metadata, partial, target)]
            dist.broadcast_object_list(outcome, src=0, group=group)
            if outcome[0] is not None:
                raise outcome[0]
        except BaseException:
            if is_first:
                with contextlib.suppress(OSError):  # it is what failed
                    remove(partial)
            raise


@contextlib.contextmanager
def cause_raised() -> Iterator[None]:
    """Raise what a process raised where torch would tell of it in an exception of its own."""
    try:
        yield
    except CheckpointException as failure:
        rank, (cause, _) = min(failure.failures.items(), key=lambda item: item[0])
        cause.add_note(f"Raised on rank {rank}.")
        raise cause from failure


def _finish(plain: Any, metadata: Metadata, partial: Path, target: Path) -> BaseException | None:
    """Write the plain part and give the directory its name. Returns what went wrong."""
    content = {"format": FORMAT, "version": VERSION, "tensors": _index_of(metadata), "checkpoint": plain}
    try:
        with naming(target):
            write_plain(content, partial / PLAIN_FILE)
            flush(partial)
            put_in_place(partial, target)
    except Exception as error:
        return error
    return None


def _index_of(metadata: Metadata) -> dict[str, dict[str, Any]]:
    """Where the chunks of each tensor are, as plain values."""
    index = {}
    for name, entry in metadata.state_dict_metadata.items():
        assert isinstance(entry, TensorStorageMetadata)
        chunks = []
        for chunk in entry.chunks:
            place = metadata.storage_data[MetadataIndex(name, chunk.offsets)]
            chunks.append(
                {
                    "offsets": list(chunk.offsets),
                    "sizes": list(chunk.sizes),
                    "file": place.relative_path,
                    "start": place.offset,
                    "num_bytes": place.length,
                }
            )
        index[name] = {"dtype": entry.properties.dtype, "size": list(entry.size), "chunks": chunks}
    return index


class _LocalParts(DefaultSavePlanner):
    """Plans by the tensors' placements and writes copies of their parts, so that the tensors may change meanwhile."""

    def __init__(self, local_parts: Mapping[str, Tensor]) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._local_parts = local_parts

    def lookup_object(self, index: MetadataIndex) -> Tensor:
        return self._local_parts[index.fqn]


class _PartialDirectory(FileSystemWriter):
    """Writes into a directory that nobody reads yet, and that the first process claims as long as it is written."""

    def __init__(self, partial: Path, target: Path, claim: contextlib.ExitStack) -> None:
        super().__init__(partial, sync_files=True)
        self._target = target
        self._claim = claim
        self._is_coordinator = False

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        self._is_coordinator = is_coordinator
        super().set_up_storage_writer(is_coordinator, *args, **kwargs)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        if not self._is_coordinator:
            return plan  # the others come to the directory once the first process has made it
        check_replaceable(self._target)
        Path(self.path).mkdir(parents=True)
        self._claim.enter_context(claimed(Path(self.path)))
        return super().prepare_local_plan(plan)

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        Path(self.path).mkdir(parents=True, exist_ok=True)
        with naming(self._target):  # an error of torch's loses its context on the way to other processes
            return super().write_data(plan, planner)

    def storage_meta(self) -> StorageMeta | None:
        return None  # it would hold this machine's path

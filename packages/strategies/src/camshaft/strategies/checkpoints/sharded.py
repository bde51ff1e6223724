"""A checkpoint with sharded tensors: a directory that all ranks write, and that any number of processes read.

`plain.ckpt` is a checkpoint file with everything that is not sharded, and an index of where each chunk of the sharded
tensors is in the `.distcp` files of `torch.distributed.checkpoint`. The `.metadata` beside them is the same index for
tools of torch; it is a pickle, so it is never read here.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import socket
import sys
import uuid
import warnings
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint import planner as planning
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import (
    DefaultLoadPlanner,
    DefaultSavePlanner,
    create_default_local_save_plan,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor import empty as empty_dtensor
from torch.futures import Future

from camshaft.hooks_core.support.durable_files import flush, lock, make_folder, new_partial_name, remove
from camshaft.hooks_core.support.messages import must_be
from camshaft.hooks_core.support.remote_files import exists, is_url, join, local_path, size_of
from camshaft.strategies.checkpoints import file as files
from camshaft.strategies.checkpoints.contents import PLACEHOLDER, CheckpointError, first_line, unreadable
from camshaft.strategies.checkpoints.file import PLAIN_FILE

if TYPE_CHECKING:
    from camshaft.strategies.checkpoints.sharded_in_store import NewStoreDirectory

FORMAT = "camshaft sharded checkpoint"
VERSION = 1


@dataclass
class KeptPlan:
    """The plan of the latest save, which saves of tensors in the same parts use again.

    Not torch's cache of plans: this one belongs to a writer, tells dtypes apart, takes files of other names, and has no
    copy of every rank's plan.

    Attributes:
        proposed: What this rank could write.
        items: What it was to write of it.
        index: The index of all tensors, on rank 0.
    """

    proposed: planning.SavePlan | None = None
    items: list[planning.WriteItem] = field(default_factory=list)
    index: metadata.Metadata = field(default_factory=lambda: metadata.Metadata({}))


def write_sharded(
    plain: Any,
    tensors: Mapping[str, DTensor],
    local_parts: Mapping[str, Tensor],
    path: str,
    group: dist.ProcessGroup,
    kept: KeptPlan,
) -> None:
    """Write a checkpoint with sharded tensors durably and atomically.

    Collective among the group, in any thread; an error of one rank is raised on all. A directory beside the target is
    written and flushed to disk; rank 0 renames it after all are done. A killed writer leaves a directory that
    `camshaft.hooks_core.support.durable_files.abandoned_files` finds. In a store files with names of their own are
    written into the directory itself, and rank 0 publishes the plain part, which lists them.

    Args:
        plain: Plain values, with placeholders; those of rank 0 are written.
        tensors: The tensors, under the same names on every rank. Only shapes and placements are read.
        local_parts: This rank's parts of them.
        path: The target, or its URL.
        group: All ranks, with a backend for the CPU.
        kept: The plan of the latest save with this group; becomes this one's.

    Raises:
        NotSharedError: If rank 0 does not see what other ranks wrote, on every rank; nothing is published then.
    """
    is_first = dist.get_rank(group) == 0
    place = local_path(path)
    new_name = f"__{uuid.uuid4().hex[:8]}" if is_url(place) else str(new_partial_name(Path(place)))
    proposed = create_default_local_save_plan(dict(tensors), is_first)
    states: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(states, (new_name if is_first else "", proposed == kept.proposed), group=group)
    new_name = states[0][0]
    planner = _Planner(local_parts, proposed, kept if all(is_kept for _, is_kept in states) else None)
    directory: NewLocalDirectory | NewStoreDirectory
    if is_url(place):
        from camshaft.strategies.checkpoints.sharded_in_store import NewStoreDirectory  # imports fsspec

        directory = NewStoreDirectory(place, new_name, is_first)
    else:
        directory = NewLocalDirectory(Path(place), Path(new_name), is_first)
    with directory.opened:
        try:
            try:
                index = save(dict(tensors), storage_writer=directory, planner=planner, process_group=group)
            except CheckpointException as failure:
                rank, (cause, _) = min(failure.failures.items(), key=lambda item: item[0])
                cause.add_note(f"Raised on rank {rank}.")
                raise cause from failure
            _check_arrived(place, str(directory.path), index, group)
            outcome: list[BaseException | None] = [None]
            if is_first:
                content = {"format": FORMAT, "version": VERSION, "tensors": _plain_index(index), "checkpoint": plain}
                try:
                    directory.publish(content, index)
                except Exception as error:  # for the other ranks
                    outcome = [error]
            dist.broadcast_object_list(outcome, src=0, group=group)
            if outcome[0] is not None:
                raise outcome[0]
            kept.proposed, kept.items = proposed, planner.plan.items
            if is_first:
                kept.index = index
        except BaseException as error:
            kept.proposed = None
            if is_first or isinstance(error, NotSharedError):
                with contextlib.suppress(Exception):  # the first error is the one to raise
                    directory.discard()
            raise


class NotSharedError(OSError):
    """A directory that is not the same for all ranks, such as one on the disk of each machine."""


def not_shared(problem: str, path: str, where: str) -> NotSharedError:
    """Return the error for a directory that is not the same for all ranks."""
    action = "Use a `dirpath` that all machines share, or a store such as 's3://bucket/runs'."
    return NotSharedError(must_be("path", f"one directory for all ranks; {problem}", path, where, action))


def _check_arrived(target: str, directory: str, index: metadata.Metadata, group: dist.ProcessGroup) -> None:
    """Raise `NotSharedError` on every rank unless rank 0 sees every file of the index with its size. Collective.

    Args:
        target: The name that the directory is to have, for the error.
        directory: The directory that was written.
    """
    outcome: list[Any] = [None]
    if dist.get_rank(group) == 0:
        ends: dict[str, int] = {}
        for place in index.storage_data.values():
            ends[place.relative_path] = max(ends.get(place.relative_path, 0), place.offset + place.length)
        try:
            outcome = [sorted(file for file, end in ends.items() if _size_or_zero(join(directory, file)) < end)]
        except Exception as error:  # for the other ranks
            outcome = [error]
    dist.broadcast_object_list(outcome, src=0, group=group)
    if isinstance(outcome[0], Exception):
        raise outcome[0]
    if not outcome[0]:
        return
    nodes: list[str] = [""] * dist.get_world_size(group)
    dist.all_gather_object(nodes, socket.gethostname(), group=group)
    lacking = ", ".join(f"{file} (node {nodes[int(file.split('_')[-2])]!r})" for file in outcome[0])
    raise not_shared(f"rank 0 (node {nodes[0]!r}) does not see what others wrote: {lacking}", target, "save")


def _size_or_zero(path: str) -> int:
    try:
        return size_of(path)
    except FileNotFoundError:
        return 0


def _plain_index(index: metadata.Metadata) -> dict[str, dict[str, Any]]:
    """Return the place of each tensor's chunks, as plain values."""
    plain = {}
    for name, entry in _entries(index):
        chunks = []
        for chunk in entry.chunks:
            place = index.storage_data[metadata.MetadataIndex(name, chunk.offsets)]
            where = {"file": place.relative_path, "start": place.offset, "num_bytes": place.length}
            chunks.append({"offsets": list(chunk.offsets), "sizes": list(chunk.sizes), **where})
        plain[name] = {"dtype": entry.properties.dtype, "size": list(entry.size), "chunks": chunks}
    return plain


class _Planner(DefaultSavePlanner):
    """A planner by the tensors' placements that writes copies of their parts, so that the tensors may change.

    Args:
        local_parts: The copies of this rank.
        proposed: What this rank could write.
        kept: The plan of an earlier save, if all ranks propose what they did then.
    """

    def __init__(self, local_parts: Mapping[str, Tensor], proposed: planning.SavePlan, kept: KeptPlan | None) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._local_parts = local_parts
        self.plan = proposed
        self._kept = kept

    def create_local_plan(self) -> planning.SavePlan:
        return self.plan if self._kept is None else planning.SavePlan([])

    def create_global_plan(
        self, all_plans: list[planning.SavePlan]
    ) -> tuple[list[planning.SavePlan], metadata.Metadata]:
        return super().create_global_plan(all_plans) if self._kept is None else (all_plans, self._kept.index)

    def finish_plan(self, new_plan: planning.SavePlan) -> planning.SavePlan:
        self.plan = new_plan if self._kept is None else replace(new_plan, items=self._kept.items)
        return self.plan

    def lookup_object(self, index: metadata.MetadataIndex) -> Tensor:
        return self._local_parts[index.fqn]


class NewLocalDirectory(filesystem.FileSystemWriter):
    """A new directory that all ranks write beside its target, and to which rank 0 renames it.

    Attributes:
        opened: The context in which this rank writes; rank 0 locks the directory in it.
    """

    def __init__(self, target: Path, partial: Path, is_first: bool) -> None:
        super().__init__(partial, sync_files=True)
        self._target = target
        self._partial = partial
        self._is_first = is_first
        self.opened = contextlib.ExitStack()
        self.opened.enter_context(files.disk_errors(target))

    def prepare_local_plan(self, plan: planning.SavePlan) -> planning.SavePlan:
        if not self._is_first:
            return plan  # only rank 0 creates the directory
        files.check_replaceable(self._target)
        self._partial.mkdir(parents=True)
        make_folder(self._partial.parent)
        self.opened.enter_context(lock(self._partial))
        return super().prepare_local_plan(plan)

    def write_data(self, plan: planning.SavePlan, planner: planning.SavePlanner) -> Future[list[WriteResult]]:
        self._partial.mkdir(parents=True, exist_ok=True)
        with files.disk_errors(self._target):  # here, since an error loses its context on the way to other ranks
            return super().write_data(plan, planner)

    def storage_meta(self) -> metadata.StorageMeta | None:
        return None  # it would hold this machine's path

    def publish(self, content: dict[str, Any], index: metadata.Metadata) -> None:
        """Write the plain part, and give the directory its name."""
        files.write_plain(content, self._partial / PLAIN_FILE)
        flush(self._partial)
        files.rename_durably(self._partial, self._target)

    def discard(self) -> None:
        """Remove what was written."""
        remove(self._partial)


@dataclass
class ShardedContent:
    """The plain part of a directory.

    Attributes:
        directory: The directory; a string if it is a URL.
        plain: Nested plain values with placeholders.
        index: The index of the sharded tensors, for `torch.distributed.checkpoint`.
    """

    directory: Path | str
    plain: Any
    index: metadata.Metadata


def read_whole(directory: Path | str, map_location: torch.device | str | None = "cpu") -> dict[str, Any]:
    """Read the directory of a sharded checkpoint with whole tensors. Not collective.

    Args:
        map_location: The device of the tensors; None is the CPU.

    Raises:
        CheckpointError: If a part is missing or damaged, or this is no such directory.
    """
    content = read_plain_part(directory, map_location)
    tensors: dict[str, Tensor] = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype) for name, entry in _entries(content.index)
    }
    _load(content, tensors)
    return _filled(content, {name: tensor.to(map_location or "cpu") for name, tensor in tensors.items()})


def read_chunks(content: ShardedContent, group: dist.ProcessGroup) -> dict[str, Any]:
    """Read this rank's share of the sharded tensors of a directory: equal chunks of them. Not collective.

    Args:
        group: All ranks, with a backend for the CPU.

    Returns:
        The checkpoint, with tensors on the CPU, sharded in their first dimension; a tensor without dimensions is
        replicated.

    Raises:
        CheckpointError: If a part that this rank reads is missing or damaged.
    """
    mesh = DeviceMesh.from_group(group, "cpu")
    tensors: dict[str, Tensor] = {}
    for name, entry in _entries(content.index):
        placements = [Shard(0) if entry.size else Replicate()]
        tensors[name] = empty_dtensor(entry.size, dtype=entry.properties.dtype, device_mesh=mesh, placements=placements)
    _load(content, tensors)
    return _filled(content, tensors)


def read_plain_part(directory: Path | str, map_location: torch.device | str | None = "cpu") -> ShardedContent:
    """Read the plain part of a directory. Not collective.

    Raises:
        CheckpointError: If there is none or it is damaged.
    """
    index = join(str(directory), PLAIN_FILE)
    if not exists(index):
        raise _unreadable(directory, f"has no {PLAIN_FILE}")
    content = files.read_file(index if is_url(index) else Path(index), map_location)
    if content.get("format") != FORMAT:
        raise _unreadable(directory, f"has a {PLAIN_FILE} of another format")
    if content.get("version") != VERSION:
        raise _unreadable(directory, f"has format version {content.get('version')!r}; this package reads {VERSION}")
    try:
        plain, index_of_tensors = content["checkpoint"], _torch_index(content["tensors"], directory)
    except CheckpointError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RuntimeError) as error:
        raise _unreadable(directory, f"has a damaged index in {PLAIN_FILE} ({first_line(error)})") from error
    if not isinstance(plain, dict):
        raise _unreadable(directory, f"has a {type(plain).__name__} in {PLAIN_FILE}")
    return ShardedContent(directory, plain, index_of_tensors)


def _torch_index(index: dict[str, dict[str, Any]], directory: Path | str) -> metadata.Metadata:
    """Return the index as torch's metadata; raise `ValueError` if it is inconsistent.

    Sizes are compared with those of the files, so that a damaged index never allocates more memory than these.
    """
    entries: dict[str, Any] = {}
    places: dict[metadata.MetadataIndex, filesystem._StorageInfo] = {}
    claimed_bytes = Counter[str]()
    for name, entry in index.items():
        if not isinstance(entry["dtype"], torch.dtype):
            raise ValueError(f"{name} has no dtype")
        size = torch.Size(entry["size"])
        chunks = []
        for chunk in entry["chunks"]:
            offsets, sizes = torch.Size(chunk["offsets"]), torch.Size(chunk["sizes"])
            place = filesystem._StorageInfo(str(chunk["file"]), int(chunk["start"]), int(chunk["num_bytes"]))
            if os.path.basename(place.relative_path) != place.relative_path or min(place.offset, place.length) < 0:
                raise ValueError(f"{name} has a chunk in {place.relative_path!r}, outside of the directory")
            spans = zip(offsets, sizes, size, strict=True)
            if not all(min(first, length) >= 0 and first + length <= whole for first, length, whole in spans):
                raise ValueError(f"{name} has a chunk outside of it")
            if math.prod(sizes) * entry["dtype"].itemsize > place.length:
                raise ValueError(f"{name} has a chunk that is larger than its part of {place.relative_path}")
            claimed_bytes[place.relative_path] += place.length
            chunks.append(metadata.ChunkStorageMetadata(offsets, sizes))
            places[metadata.MetadataIndex(name, offsets)] = place
        if sum(math.prod(chunk.sizes) for chunk in chunks) != math.prod(size):
            raise ValueError(f"{name} lacks a chunk")
        properties = metadata.TensorProperties(dtype=entry["dtype"])
        entries[name] = metadata.TensorStorageMetadata(properties, size, chunks)
    for file, num_bytes in claimed_bytes.items():
        _check_size(directory, file, num_bytes)
    return metadata.Metadata(entries, storage_data=places)


def _check_size(directory: Path | str, file: str, num_bytes: int) -> None:
    try:
        if isinstance(directory, Path):
            files.check_is_file(directory / file)
        size = size_of(join(str(directory), file))
    except FileNotFoundError as error:
        raise _unreadable(directory, f"has no {file}") from error
    if num_bytes > size:
        problem = f"has a damaged {file}, or an index that claims too much of it ({num_bytes} bytes of {size})"
        raise _unreadable(directory, problem)


def _entries(index: metadata.Metadata) -> list[tuple[str, metadata.TensorStorageMetadata]]:
    entries = index.state_dict_metadata.items()
    return [(name, entry) for name, entry in entries if isinstance(entry, metadata.TensorStorageMetadata)]


def _load(content: ShardedContent, tensors: dict[str, Tensor]) -> None:
    """Read the chunks of tensors into them, or into this rank's parts of them. Not collective.

    Each rank plans its own reads, which no other rank has to know.
    """
    with warnings.catch_warnings():
        # torch warns that it reads in one process, as intended here
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
        warnings.filterwarnings("ignore", message="The given buffer is not writable")  # it is copied
        try:
            load(
                tensors,
                storage_reader=CheckingReader(content),
                planner=DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False),
                no_dist=True,
            )
        except CheckpointException as failure:
            [(cause, _)] = failure.failures.values()
            raise cause from failure


def _filled(content: ShardedContent, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Return the checkpoint with tensors in place of their placeholders."""

    def fill(value: Any) -> Any:
        kind = type(value)
        if kind is list or kind is tuple:
            return kind([fill(item) for item in value])
        if not isinstance(value, dict):
            return value
        if len(value) == 1 and PLACEHOLDER in value:
            if value[PLACEHOLDER] not in tensors:
                raise _unreadable(content.directory, f"lacks the tensor {value[PLACEHOLDER]!r}")
            return tensors[value[PLACEHOLDER]]
        for key in value:
            value[key] = fill(value[key])
        return value  # the same dictionary, which may have the version of a module's state as an attribute

    filled: dict[str, Any] = fill(content.plain)
    return filled


class CheckingReader(filesystem.FileSystemReader):
    """A reader that verifies the chunks' checksums, by an index that is no pickle."""

    def __init__(self, content: ShardedContent) -> None:
        super().__init__(content.directory)
        if not isinstance(content.directory, Path):  # in a store, which torch's `FsspecReader` reaches by this
            from torch.distributed.checkpoint._fsspec_filesystem import FileSystem  # imports fsspec

            store: Any = FileSystem()
            self.fs, self.path = store, store.init_path(content.directory)
        self._content = content

    def read_metadata(self, *args: Any, **kwargs: Any) -> metadata.Metadata:
        return self._content.index

    def read_data(self, plan: planning.LoadPlan, planner: planning.LoadPlanner) -> Future[None]:
        layouts: dict[tuple[bytes, ...], _Layout] = {}
        by_file: dict[str, list[planning.ReadItem]] = defaultdict(list)
        for item in plan.items:
            by_file[self.storage_data[item.storage_index].relative_path].append(item)
        for file, items in by_file.items():
            try:
                with self.fs.create_stream(self.fs.concat_path(self.path, file), "rb") as stream:
                    for item in sorted(items, key=lambda one: self.storage_data[one.storage_index].offset):
                        place = self.storage_data[item.storage_index]
                        stream.seek(place.offset)
                        chunk = _chunk_of(stream.read(place.length), layouts)
                        part = narrow_tensor_by_index(chunk, item.storage_offsets, item.lengths)
                        target = planner.resolve_tensor(item).detach()
                        if part.size() != target.size():
                            raise ValueError(f"a chunk of {tuple(part.size())} in place of {tuple(target.size())}")
                        target.copy_(part)
            except FileNotFoundError as error:
                raise _unreadable(self._content.directory, f"has no {file}") from error
            except OSError:
                raise
            except Exception as error:  # torch and zipfile raise many kinds of errors for a damaged chunk
                problem = f"has a damaged {file} ({first_line(error)})"
                raise _unreadable(self._content.directory, problem) from error
        done: Future[None] = Future()
        done.set_result(None)
        return done


_Layout = tuple[torch.dtype, torch.Size, tuple[int, ...], int]
"""Dtype, size, stride and storage offset of a tensor."""


def _chunk_of(archive: bytes, layouts: dict[tuple[bytes, ...], _Layout]) -> Tensor:
    """Return the tensor of an archive of `torch.save`, as a view of it, once its checksums are verified.

    Unpickling takes longer than all else, and equal pickles have tensors of one layout.

    Args:
        archive: The archive.
        layouts: Those of earlier archives, by their pickles; this one's is added.
    """
    records = files.verified_records(archive)
    data = records.get("data/0", memoryview(b""))
    key = tuple(bytes(records.get(name, b"")) for name in ("data.pkl", "byteorder"))
    if key not in layouts:
        chunk: Tensor = torch.load(io.BytesIO(archive), map_location="cpu", weights_only=True)
        is_plain = type(chunk) is Tensor and chunk.layout is torch.strided and not (chunk.is_conj() or chunk.is_neg())
        if not is_plain or chunk.untyped_storage().nbytes() != len(data) or key[1] != sys.byteorder.encode():
            return chunk
        layouts[key] = chunk.dtype, chunk.size(), chunk.stride(), int(chunk.storage_offset())
    dtype, size, stride, offset = layouts[key]
    flat = torch.frombuffer(data, dtype=dtype) if len(data) else torch.empty(0, dtype=dtype)
    tensor: Tensor = flat.as_strided(size, stride, offset)
    return tensor


def _unreadable(directory: Path | str, problem: str) -> CheckpointError:
    return unreadable(directory, problem, "the directory of a whole checkpoint")

"""A checkpoint with sharded tensors is a directory: what it holds, and how all processes together write it.

`plain.ckpt` is a checkpoint file with everything that is not sharded, and an index of where each chunk of the sharded
tensors is in the `.distcp` files of `torch.distributed.checkpoint`. The `.metadata` beside them says the same for tools
of torch; it is a pickle, so it is never read here.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem, SavePlan, SavePlanner
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor import empty as empty_dtensor
from torch.futures import Future

from camshaft.hooks_core.durable_paths import flush, remove
from camshaft.hooks_core.messages import must_be
from camshaft.hooks_core.partial_paths import claimed, new_partial_name
from camshaft.strategies.checkpoints.contents import Keys, name_of
from camshaft.strategies.checkpoints.file import (
    PLAIN_FILE,
    CheckpointError,
    check_archive,
    check_is_file,
    check_replaceable,
    first_line,
    naming,
    put_in_place,
    read_file,
    write_plain,
)

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


@dataclass(frozen=True)
class _Place:
    """Where a chunk is; torch's reader looks at these attributes."""

    relative_path: str
    offset: int
    length: int
    transform_descriptors: None = None


@dataclass
class ShardedContent:
    """The plain part of a directory.

    Attributes:
        directory: Where it is.
        plain: Nested plain values with placeholders.
        metadata: What `torch.distributed.checkpoint` needs to know of the sharded tensors.
    """

    directory: Path
    plain: Any
    metadata: Metadata


def read_whole(directory: Path, map_location: torch.device | str | None = "cpu") -> dict[str, Any]:
    """Read the directory of a sharded checkpoint with its tensors put together. Needs no other process.

    Args:
        directory: The directory.
        map_location: Where tensors go; None is the CPU.

    Raises:
        CheckpointError: If a part is missing or damaged, or this is no such directory.
    """
    content = read_plain_part(directory, map_location)
    tensors: dict[str, Tensor] = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype) for name, entry in _entries(content)
    }
    with warnings.catch_warnings():
        # torch says that it reads without other processes, which is what was asked for
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
        _load(content, tensors, None)
    return _filled(content, {name: tensor.to(map_location or "cpu") for name, tensor in tensors.items()})


def read_chunks(content: ShardedContent, group: dist.ProcessGroup) -> dict[str, Any]:
    """Read the sharded tensors of a directory, of each about as much on every process. Collective.

    Args:
        content: The plain part.
        group: All processes, with a backend for the CPU.

    Returns:
        The checkpoint, with sharded tensors on the CPU: chunks of the first dimension, over all processes; a tensor
        without dimensions is on each.

    Raises:
        CheckpointError: If a part is missing or damaged, on every process.
    """
    mesh = DeviceMesh.from_group(group, "cpu")
    tensors: dict[str, Tensor] = {
        name: empty_dtensor(
            entry.size,
            dtype=entry.properties.dtype,
            device_mesh=mesh,
            placements=[Shard(0) if entry.size else Replicate()],
        )
        for name, entry in _entries(content)
    }
    _load(content, tensors, group)
    return _filled(content, tensors)


def read_plain_part(directory: Path, map_location: torch.device | str | None = "cpu") -> ShardedContent:
    """Read what a directory holds beside its sharded tensors. Needs no other process.

    Raises:
        CheckpointError: If there is no such part or it is damaged.
    """
    if not (directory / PLAIN_FILE).is_file():
        raise _unreadable(directory, f"has no {PLAIN_FILE}")
    content = read_file(directory / PLAIN_FILE, map_location)
    if content.get("format") != FORMAT:
        raise _unreadable(directory, f"has a {PLAIN_FILE} of something else")
    if content.get("version") != VERSION:
        raise _unreadable(directory, f"has format version {content.get('version')!r}; this package reads {VERSION}")
    try:
        metadata = _metadata_of(content["tensors"], directory)
        plain = content["checkpoint"]
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RuntimeError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise _unreadable(directory, f"has a damaged index in {PLAIN_FILE} ({first_line(error)})") from error
    if not isinstance(plain, dict):
        raise _unreadable(directory, f"has a {type(plain).__name__} in {PLAIN_FILE}")
    return ShardedContent(directory, plain, metadata)


def _metadata_of(index: dict[str, dict[str, Any]], directory: Path) -> Metadata:
    """The index as torch has it; `ValueError` if it cannot be a checkpoint's.

    What it claims is compared with the sizes of the files, so that memory is asked for only for what is there.
    """
    entries: dict[str, Any] = {}
    claimed_bytes: dict[str, int] = {}
    places: dict[MetadataIndex, _Place] = {}
    for name, entry in index.items():
        if not isinstance(entry["dtype"], torch.dtype):
            raise ValueError(f"{name} has no dtype")
        size = torch.Size(entry["size"])
        chunks = []
        for chunk in entry["chunks"]:
            offsets, sizes = torch.Size(chunk["offsets"]), torch.Size(chunk["sizes"])
            place = _Place(str(chunk["file"]), int(chunk["start"]), int(chunk["num_bytes"]))
            if os.path.basename(place.relative_path) != place.relative_path or min(place.offset, place.length) < 0:
                raise ValueError(f"{name} is said to be in {place.relative_path!r}")
            inside = all(
                min(first, length) >= 0 and first + length <= whole
                for first, length, whole in zip(offsets, sizes, size, strict=True)
            )
            if not inside:
                raise ValueError(f"{name} has a chunk outside of it")
            if math.prod(sizes) * entry["dtype"].itemsize > place.length:
                raise ValueError(f"{name} has a chunk that is larger than its part of {place.relative_path}")
            claimed_bytes[place.relative_path] = claimed_bytes.get(place.relative_path, 0) + place.length
            chunks.append(ChunkStorageMetadata(offsets, sizes))
            places[MetadataIndex(name, offsets)] = place
        if sum(math.prod(chunk.sizes) for chunk in chunks) != math.prod(size):
            raise ValueError(f"{name} lacks a chunk")
        entries[name] = TensorStorageMetadata(TensorProperties(dtype=entry["dtype"]), size, chunks)
    for file, num_bytes in claimed_bytes.items():
        _check_size(directory, file, num_bytes)
    return Metadata(entries, storage_data=places)


def _check_size(directory: Path, file: str, num_bytes: int) -> None:
    try:
        check_is_file(directory / file)
        size = (directory / file).stat().st_size
    except FileNotFoundError as error:
        raise _unreadable(directory, f"has no {file}") from error
    if num_bytes > size:
        raise _unreadable(
            directory, f"has a damaged {file}, or an index that claims too much of it ({num_bytes} bytes of {size})"
        )


def _entries(content: ShardedContent) -> list[tuple[str, TensorStorageMetadata]]:
    entries = content.metadata.state_dict_metadata.items()
    return [(name, entry) for name, entry in entries if isinstance(entry, TensorStorageMetadata)]


def _load(content: ShardedContent, tensors: dict[str, Tensor], group: dist.ProcessGroup | None) -> None:
    """Read the chunks that tensors consist of into them."""
    with cause_raised():
        load(
            tensors,
            storage_reader=_CheckingReader(content),
            planner=DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False),
            process_group=group,
            no_dist=group is None,
        )


def _filled(content: ShardedContent, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """The checkpoint with tensors in the places that were kept for them."""

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
        return value  # the same dictionary, which may be a module's state with its version as an attribute

    filled: dict[str, Any] = fill(content.plain)
    return filled


class _CheckingReader(FileSystemReader):
    """Reads chunks whose checksums are right, by an index that did not come from a pickle."""

    def __init__(self, content: ShardedContent) -> None:
        super().__init__(content.directory)
        self._directory = content.directory
        self._metadata = content.metadata

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return self._metadata

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        by_file: dict[str, list[ReadItem]] = {}
        for item in plan.items:
            by_file.setdefault(self.storage_data[item.storage_index].relative_path, []).append(item)
        for file, items in by_file.items():
            try:
                self._check(file, items)
                super().read_data(replace(plan, items=items), planner)
            except FileNotFoundError as error:
                raise _unreadable(self._directory, f"has no {file}") from error
            except OSError:
                raise
            except Exception as error:  # torch and zipfile have many ways to find that a chunk is no such tensor
                raise _unreadable(self._directory, f"has a damaged {file} ({first_line(error)})") from error
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _check(self, file: str, items: list[ReadItem]) -> None:
        """Look at the checksums of the chunks to be read."""
        with (self._directory / file).open("rb") as stream:
            for place in {self.storage_data[item.storage_index] for item in items}:
                check_archive(_Region(stream, place.offset, place.length))


class _Region(io.RawIOBase):
    """A part of a file as a file."""

    def __init__(self, stream: IO[bytes], start: int, num_bytes: int) -> None:
        super().__init__()
        self._stream = stream
        self._start = start
        self._num_bytes = num_bytes
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._num_bytes}[whence]
        if base + offset < 0:
            raise ValueError(f"negative seek position {base + offset}")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer)[: max(0, self._num_bytes - self._position)]
        self._stream.seek(self._start + self._position)
        num_read = self._stream.readinto(view)  # type: ignore[attr-defined]
        self._position += num_read
        return int(num_read)


def _unreadable(directory: Path, what: str) -> CheckpointError:
    return CheckpointError(
        f"`path` must be the directory of a whole checkpoint, but got {str(directory)!r} (str), which {what}, in "
        "read_checkpoint. Use an earlier checkpoint.",
        str(directory),
    )

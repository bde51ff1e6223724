"""Weights in the safetensors format, and checkpoints of one file from any form."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor

from camshaft.hooks_core.support import remote_files
from camshaft.hooks_core.support.messages import must_be
from camshaft.strategies.checkpoints.contents import CheckpointError, first_line, objects_left_out
from camshaft.strategies.checkpoints.file import new_file, write_checkpoint
from camshaft.strategies.checkpoints.reading import read_checkpoint

SUFFIX = ".safetensors"
INDEX_SUFFIX = f"{SUFFIX}.index.json"
"""Suffix of the file that says in which file each weight is, as Hugging Face's libraries read it."""


def consolidate_checkpoint(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    max_shard_bytes: int | None = None,
    prefix: str = "",
) -> None:
    """Write a checkpoint as one file, durably. Not collective; needs memory for the whole checkpoint.

    Args:
        source: The directory of a sharded checkpoint, or a checkpoint file. A safetensors file, or the index of
            several, by its suffix, becomes a checkpoint with these weights only.
        target: The file; an earlier one is replaced. With the suffix `.safetensors` it gets the weights only.
        max_shard_bytes: See `export_safetensors`.
        prefix: Likewise.

    Raises:
        FileNotFoundError, CheckpointError: If the source cannot be read.
        IsADirectoryError: If the target is a directory.
        ValueError: If both are safetensors files, or weights are to be exported and there are none, or
            `max_shard_bytes` or `prefix` is given for another target.
        FileExistsError: As `export_safetensors`.
        ModuleNotFoundError: If safetensors is needed and not installed.
        OSError: If the disk refuses.
    """
    if remote_files.is_folder(remote_files.local_path(target)):
        raise IsADirectoryError(errno.EISDIR, "the target must be a file", os.fspath(target))
    imports, exports = (os.fspath(path).endswith((SUFFIX, INDEX_SUFFIX)) for path in (source, target))
    if imports and exports:
        rule = "a checkpoint file where the source is a safetensors file"
        raise ValueError(must_be("target", rule, os.fspath(target), "consolidate_checkpoint", "Copy the file."))
    for name, value in () if exports else (("max_shard_bytes", max_shard_bytes), ("prefix", prefix)):
        if value not in (None, ""):
            rule = "left out where the target is no safetensors file"
            raise ValueError(must_be(name, rule, value, "consolidate_checkpoint", "Leave it out."))
    if imports:
        import_safetensors(source, target)
    elif exports:
        export_safetensors(source, target, max_shard_bytes, prefix)
    else:
        write_checkpoint(read_checkpoint(source), target)


def export_safetensors(
    checkpoint_path: str | os.PathLike[str],
    path: str | os.PathLike[str],
    max_shard_bytes: int | None = None,
    prefix: str = "",
) -> None:
    """Write the weights of a checkpoint, its `state_dict`, as a safetensors file, or several with an index, durably.

    The format has no tensors that share memory. Tied weights are written under each of their names; a model that ties
    them does so again when it loads them.

    Args:
        checkpoint_path: A checkpoint in either form.
        path: The target; directories are created as needed.
        max_shard_bytes: Size above which the weights are split: "model.safetensors" becomes
            "model-00001-of-00003.safetensors" and so on, and last "model.safetensors.index.json", as Hugging Face's
            libraries read them. A larger weight has a file of its own. None writes one file.
        prefix: Weights whose names begin so are written, by the rest of their names: with "model." those of the part
            `self.model` of a module, as its own class loads them.

    Raises:
        FileNotFoundError, CheckpointError: If the checkpoint cannot be read.
        TypeError, ValueError: If it has no `state_dict`, or one with anything but tensors that safetensors can write,
            or no name begins with `prefix`, or `max_shard_bytes` is no positive int.
        FileExistsError: If the weights are split, and there is a file at `path`, which readers would prefer.
        ModuleNotFoundError: If safetensors is not installed.
        OSError: If the disk refuses.
    """
    safetensors = _import_safetensors()
    if max_shard_bytes is not None and (not isinstance(max_shard_bytes, int) or max_shard_bytes < 1):
        action, kind = "Pass 5_000_000_000, say.", ValueError if isinstance(max_shard_bytes, int) else TypeError
        raise kind(must_be("max_shard_bytes", "a positive int", max_shard_bytes, "export_safetensors", action))
    file = os.fspath(checkpoint_path)
    every = _weights_of(read_checkpoint(checkpoint_path), file)
    weights = {name[len(prefix) :]: weight for name, weight in every.items() if name.startswith(prefix)}
    if every and not weights:
        rule, action = f"that of a weight in {file!r}, such as {next(iter(every))!r}", "Take it from one of the names."
        raise ValueError(must_be("prefix", rule, prefix, "export_safetensors", action))
    with _explained(file):
        weights = _without_sharing(weights)
    shards = list(_shards(weights, max_shard_bytes))
    target = remote_files.local_path(path)
    if len(shards) > 1 and remote_files.exists(target):
        rule = "free where the weights are split, since readers take a file of this name before an index"
        raise FileExistsError(must_be("path", rule, target, "export_safetensors", "Remove it, or choose another."))
    stem, count = target.removesuffix(SUFFIX), len(shards)
    names = [f"{stem}-{idx:05}-of-{count:05}{SUFFIX}" for idx in range(1, count + 1)] if count > 1 else [target]
    for name, shard in zip(names, shards, strict=True):
        with new_file(name) as partial, _explained(file):
            safetensors.save_file(shard, partial, metadata={"format": "pt"})
    if count > 1:
        places = {key: os.path.basename(name) for name, shard in zip(names, shards, strict=True) for key in shard}
        index = {"metadata": {"total_size": sum(map(_num_bytes, weights.values()))}, "weight_map": places}
        with new_file(f"{stem}{INDEX_SUFFIX}") as partial:
            Path(partial).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


@contextmanager
def _explained(file: str) -> Iterator[None]:
    """Raise `ValueError` for any error: safetensors raises a class of its own, for errors of the disk too."""
    try:
        yield
    except Exception as error:
        rule = f"weights that can be written as safetensors ({first_line(error)})"
        action = "Convert them to a dtype and layout that it has, if that is why."
        raise ValueError(must_be("checkpoint_path", rule, file, "export_safetensors", action)) from error


def read_safetensors(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file, or of all files of an index, by name, on the CPU.

    Raises:
        FileNotFoundError: If there is no such file, or one of the index is missing.
        CheckpointError: If one is of another format or damaged, or a file lacks a weight of the index.
        ModuleNotFoundError: If safetensors is not installed.
    """
    safetensors = _import_safetensors()
    file = remote_files.local_path(path)
    if file.endswith(INDEX_SUFFIX):
        return _read_index(file)
    if not remote_files.exists(file) or remote_files.is_folder(file):
        rule, action = "an existing safetensors file", "Check the path."
        raise FileNotFoundError(must_be("path", rule, file, "read_safetensors", action))
    try:
        with remote_files.local_copy(file) as copy:
            tensors: dict[str, Tensor] = safetensors.load_file(copy)
    except Exception as error:  # safetensors raises a class of its own that is not public
        rule = f"a whole safetensors file ({first_line(error)})"
        raise CheckpointError(must_be("path", rule, file, "read_safetensors", "Write it again."), file) from error
    return tensors


def _read_index(file: str) -> dict[str, Tensor]:
    try:
        with remote_files.local_copy(file) as copy:
            places: dict[str, str] = json.loads(copy.read_text(encoding="utf-8"))["weight_map"]
    except (ValueError, KeyError, TypeError) as error:
        rule = f"an index of safetensors files ({first_line(error)})"
        raise CheckpointError(must_be("path", rule, file, "read_safetensors", "Write it again."), file) from error
    tensors: dict[str, Tensor] = {}
    for name in dict.fromkeys(places.values()):
        tensors |= read_safetensors(remote_files.join(remote_files.parent_of(file), name))
    missing = sorted(places.keys() - tensors.keys())
    if missing:
        rule = f"an index of the files beside it, which lack {missing[0]!r}"
        raise CheckpointError(must_be("path", rule, file, "read_safetensors", "Write them again."), file)
    return {name: tensors[name] for name in places}


def _shards(weights: Mapping[str, Tensor], max_bytes: int | None) -> Iterator[dict[str, Tensor]]:
    """Yield the weights in order, in parts that are as large as they may be."""
    shard: dict[str, Tensor] = {}
    size = 0
    for name, weight in weights.items():
        if shard and max_bytes is not None and size + _num_bytes(weight) > max_bytes:
            yield shard
            shard, size = {}, 0
        shard[name] = weight
        size += _num_bytes(weight)
    yield shard


def _num_bytes(weight: Tensor) -> int:
    return weight.numel() * weight.element_size()


def import_safetensors(path: str | os.PathLike[str], checkpoint_path: str | os.PathLike[str]) -> None:
    """Write a checkpoint file with the weights of a safetensors file as its `state_dict`, durably.

    Args:
        path: The safetensors file, or the index of several.
        checkpoint_path: The target; directories are created as needed.

    Raises:
        FileNotFoundError, CheckpointError, ModuleNotFoundError: As `read_safetensors`.
        OSError: If the disk refuses.
    """
    write_checkpoint({"state_dict": read_safetensors(path)}, checkpoint_path)


def _weights_of(checkpoint: dict[str, Any], file: str) -> dict[str, Tensor]:
    weights = checkpoint.get("state_dict")
    if not isinstance(weights, dict):
        rule, action = f"a checkpoint with a 'state_dict', not one with {sorted(checkpoint)}", "Pass a model's."
        raise ValueError(must_be("checkpoint_path", rule, file, "export_safetensors", action))
    others = [name for name, value in weights.items() if not isinstance(value, Tensor)]
    others += [keys[1] for keys in objects_left_out(checkpoint) if keys[0] == "state_dict" and len(keys) == 2]
    if others:
        rule = f"a checkpoint with tensors alone in its 'state_dict'; these are none: {', '.join(map(str, others))}"
        action = "Leave out what `get_extra_state` adds."
        raise ValueError(must_be("checkpoint_path", rule, file, "export_safetensors", action))
    return weights


def _without_sharing(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return contiguous tensors, with copies of those that share memory."""
    seen = set()
    separate = {}
    for name, tensor in weights.items():
        memory = tensor.untyped_storage().data_ptr()
        is_shared = memory in seen and tensor.numel() > 0
        separate[name] = tensor.clone() if is_shared else tensor
        separate[name] = separate[name].contiguous()
        seen.add(memory)
    return separate


def _import_safetensors() -> ModuleType:
    try:
        import safetensors.torch
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "`safetensors` must be installed to read and write its files. "
            "Run `pip install safetensors`, or install camshaft-strategies with its extra `safetensors`."
        ) from error
    return safetensors.torch

"""Weights in the safetensors format, and checkpoints of one file from any form."""

from __future__ import annotations

import errno
import os
from types import ModuleType
from typing import Any

from torch import Tensor

from camshaft.hooks_core.support import remote_files
from camshaft.hooks_core.support.messages import must_be
from camshaft.strategies.checkpoints.contents import CheckpointError, first_line, objects_left_out
from camshaft.strategies.checkpoints.file import new_file, write_checkpoint
from camshaft.strategies.checkpoints.reading import read_checkpoint

SUFFIX = ".safetensors"


def consolidate_checkpoint(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Write a checkpoint as one file, durably. Not collective; needs memory for the whole checkpoint.

    Args:
        source: The directory of a sharded checkpoint, or a checkpoint file. A safetensors file, by its suffix, becomes
            a checkpoint with these weights only.
        target: The file; an earlier one is replaced. With the suffix `.safetensors` it gets the weights only.

    Raises:
        FileNotFoundError, CheckpointError: If the source cannot be read.
        IsADirectoryError: If the target is a directory.
        ValueError: If both are safetensors files, or weights are to be exported and there are none.
        ModuleNotFoundError: If safetensors is needed and not installed.
        OSError: If the disk refuses.
    """
    if remote_files.is_folder(remote_files.local_path(target)):
        raise IsADirectoryError(errno.EISDIR, "the target must be a file", os.fspath(target))
    imports, exports = (os.fspath(path).endswith(SUFFIX) for path in (source, target))
    if imports and exports:
        rule = "a checkpoint file where the source is a safetensors file"
        raise ValueError(must_be("target", rule, os.fspath(target), "consolidate_checkpoint", "Copy the file."))
    if imports:
        import_safetensors(source, target)
    elif exports:
        export_safetensors(source, target)
    else:
        write_checkpoint(read_checkpoint(source), target)


def export_safetensors(checkpoint_path: str | os.PathLike[str], path: str | os.PathLike[str]) -> None:
    """Write the weights of a checkpoint, its `state_dict`, as a safetensors file, durably.

    The format has no tensors that share memory. Tied weights are written under each of their names; a model that ties
    them does so again when it loads them.

    Args:
        checkpoint_path: A checkpoint in either form.
        path: The target; directories are created as needed.

    Raises:
        FileNotFoundError, CheckpointError: If the checkpoint cannot be read.
        ValueError: If it has no `state_dict`, or one with anything but tensors that safetensors can write.
        ModuleNotFoundError: If safetensors is not installed.
        OSError: If the disk refuses.
    """
    safetensors = _import_safetensors()
    weights = _weights_of(read_checkpoint(checkpoint_path), os.fspath(checkpoint_path))
    with new_file(path) as partial:
        try:
            safetensors.save_file(_without_sharing(weights), partial, metadata={"format": "pt"})
        except Exception as error:  # safetensors raises a class of its own, for errors of the disk too
            rule = f"weights that can be written as safetensors ({first_line(error)})"
            action = "Convert them to a dtype and layout that it has, if that is why."
            file = os.fspath(checkpoint_path)
            raise ValueError(must_be("checkpoint_path", rule, file, "export_safetensors", action)) from error


def read_safetensors(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file by name, on the CPU.

    Raises:
        FileNotFoundError: If there is no such file.
        CheckpointError: If it is of another format or damaged.
        ModuleNotFoundError: If safetensors is not installed.
    """
    safetensors = _import_safetensors()
    file = remote_files.local_path(path)
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


def import_safetensors(path: str | os.PathLike[str], checkpoint_path: str | os.PathLike[str]) -> None:
    """Write a checkpoint file with the weights of a safetensors file as its `state_dict`, durably.

    Args:
        path: The safetensors file.
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

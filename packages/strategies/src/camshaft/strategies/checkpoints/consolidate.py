"""Turning a checkpoint of any form into one file."""

from __future__ import annotations

import errno
import os

from camshaft.strategies.checkpoints.checkpoint_file import read_checkpoint, write_checkpoint
from camshaft.strategies.checkpoints.safetensors_files import SUFFIX, export_safetensors, import_safetensors


def consolidate_checkpoint(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Write one file with all that a checkpoint holds, durably. Needs one process, with memory for all of it.

    Args:
        source: The directory of a sharded checkpoint, or a checkpoint file. A safetensors file, by its suffix, is taken
            for the weights of a checkpoint without anything else.
        target: The file; one that is there is replaced. With the suffix `.safetensors` it gets the weights only.

    Raises:
        FileNotFoundError, CheckpointError: If the source cannot be read.
        IsADirectoryError: If the target is a directory.
        ValueError: If both are safetensors files, or weights are to be exported and there are none.
        ModuleNotFoundError: If safetensors is needed and not installed.
        OSError: If the disk refuses.
    """
    if os.path.isdir(target):
        raise IsADirectoryError(errno.EISDIR, "the target must be a file", os.fspath(target))
    imports, exports = (os.fspath(path).endswith(SUFFIX) for path in (source, target))
    if imports and exports:
        raise ValueError(
            f"`target` must be a checkpoint file where the source is a safetensors file, but got "
            f"{os.fspath(target)!r} ({type(target).__name__}) in consolidate_checkpoint. Copy the file."
        )
    if imports:
        import_safetensors(source, target)
    elif exports:
        export_safetensors(source, target)
    else:
        write_checkpoint(read_checkpoint(source), target)

"""Reading a checkpoint of either form: one file, or the directory of a sharded checkpoint."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from camshaft.hooks_core.support import remote_files
from camshaft.hooks_core.support.durable_files import found_at
from camshaft.hooks_core.support.messages import must_be
from camshaft.strategies.checkpoints import contents
from camshaft.strategies.checkpoints.file import check_is_file, read_file

_ADDRESSES = ("http://", "https://")


def read_checkpoint(
    path: str | os.PathLike[str] | IO[bytes],
    map_location: Any = "cpu",
    *,
    mmap: bool = False,
    weights_only: bool | None = None,
) -> dict[str, Any]:
    """Read the tensors and plain values of a checkpoint, and its objects if the caller trusts the file.

    Unless `weights_only` is false, no name found in a file is imported or called. The values that need such a name are
    left out, and `objects_left_out` lists them. A file of another framework is refused if its weights or optimizers
    need such a name, or if it is no checkpoint; see `read_foreign_file`.

    Args:
        path: The file, or the directory of a sharded checkpoint, whose tensors are put together; or the URL of either,
            in a store that fsspec reaches; or a binary file object, or an address that begins with http:// or https://.
            Remote files are downloaded to a temporary one.
        map_location: The device of the tensors, or another mapping that `torch.load` takes; None keeps those of a file
            on the device that they were saved from.
        mmap: Whether the tensors of a file are views of it, which the operating system reads on first use and shares
            among the processes of a machine. The file must stay as long as they are used.
        weights_only: False unpickles the objects in the file, which may run any code: pass it for files that you
            trust. Otherwise they are left out, also from an address. The environment variable
            `TORCH_FORCE_WEIGHTS_ONLY_LOAD` forbids it, and `TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD` turns None into false.

    Returns:
        The checkpoint.

    Raises:
        FileNotFoundError: If there is none.
        CheckpointError: If it is truncated, damaged, lacks a part, is refused, is neither a file nor a directory, or
            holds an object that cannot be unpickled.
    """
    if not isinstance(path, (str, os.PathLike)) or (isinstance(path, str) and path.startswith(_ADDRESSES)):
        with _local_copy(path) as copy:
            return read_checkpoint(copy, map_location, weights_only=weights_only)
    found = locate(path)
    if remote_files.is_folder(str(found)):
        # Imports torch.distributed.checkpoint, which a run on one device does not need.
        from camshaft.strategies.checkpoints.sharded import read_whole

        checkpoint = read_whole(found, map_location)
    else:
        checkpoint = read_file(found, map_location, mmap=mmap, weights_only=weights_only)
    return with_objects(checkpoint, found, weights_only)


def locate(path: str | os.PathLike[str]) -> Path | str:
    """Return where a checkpoint is: at its path, or beside it if a crash interrupted `rename_durably`.

    Returns:
        The path; a string if it is a URL.

    Raises:
        FileNotFoundError: If there is none.
        CheckpointError: If the path is neither a file nor a directory.
    """
    place = remote_files.local_path(path)
    if remote_files.is_url(place):
        found: Path | str | None = place if remote_files.exists(place) else None
    else:
        found = found_at(Path(place))
    if found is None:
        rule, action = "an existing checkpoint", "Check the path."
        raise FileNotFoundError(must_be("path", rule, os.fspath(path), "read_checkpoint", action))
    if isinstance(found, Path) and not found.is_dir():
        check_is_file(found)
    return found


def with_objects(checkpoint: dict[str, Any], path: Path | str, weights_only: bool | None) -> dict[str, Any]:
    """Restore the objects of a checkpoint that was read; see `read_checkpoint`."""
    try:
        return contents.restore_objects(checkpoint, unpickle=contents.is_trusted(weights_only))
    except contents.ObjectsError as error:
        rule = "a whole checkpoint whose objects can be unpickled"
        action = "Make their classes importable, or read it without weights_only=False."
        raise contents.unreadable(path, str(error), rule, action) from error


@contextlib.contextmanager
def _local_copy(source: str | IO[bytes]) -> Iterator[Path]:
    """Yield a temporary local copy of a file object, from its position on, or of a web address.

    Raises:
        OSError: If it cannot be read (`urllib.error.URLError` for an address).
    """
    import tempfile  # rarely needed, as the next one, which imports much
    from urllib.request import urlopen

    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as opened:
        stream: Any = opened.enter_context(urlopen(source)) if isinstance(source, str) else source
        name = os.path.basename(source) if isinstance(source, str) else "file object"
        copy = Path(directory, name or "checkpoint")
        with copy.open("wb") as file:
            shutil.copyfileobj(stream, file)
        yield copy

"""One checkpoint in one file: whole and durable, or not there at all."""

from __future__ import annotations

import errno
import os
import pickle
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from camshaft.strategies.plain_values import to_plain

_UNREADABLE = (RuntimeError, EOFError, ValueError, KeyError, OSError, zipfile.BadZipFile, pickle.UnpicklingError)


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be read.

    Attributes:
        path: The file.
    """

    def __init__(self, message: str, path: str) -> None:
        self.path = path
        super().__init__(message)


def write_checkpoint(checkpoint: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Write a checkpoint so that it is durable and whole once it has its name.

    It is written beside its target, flushed to disk and renamed, so a crash at any moment leaves either the earlier
    file or the new one. Directories are created as needed.

    Args:
        checkpoint: Nested dictionaries and lists of tensors and plain values.
        path: The target.

    Raises:
        TypeError: If anything else is in it (see `to_plain`); nothing is written then.
        OSError: If the disk refuses; the target is untouched then, and no partial file stays.
    """
    target = Path(path)
    plain = to_plain(dict(checkpoint))
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, partial = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            torch.save(plain, file)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(partial, 0o666 & ~_umask())
        os.replace(partial, target)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise
    _sync_directory(target.parent)


def read_checkpoint(path: str | os.PathLike[str], map_location: torch.device | str | None = "cpu") -> dict[str, Any]:
    """Read a checkpoint; only tensors and plain values are accepted, and no name found in the file is imported.

    Args:
        path: The file.
        map_location: Where tensors go; None puts them where they were saved from.

    Returns:
        The checkpoint.

    Raises:
        FileNotFoundError: If there is no such file.
        CheckpointError: If the file is truncated, damaged, or holds anything else.
    """
    file = os.fspath(path)
    if not os.path.isfile(file):
        raise FileNotFoundError(
            f"`path` must be an existing checkpoint, but got {file!r} ({type(path).__name__}) in read_checkpoint. "
            "Check the path."
        )
    try:
        _check_archive(file)
        checkpoint = torch.load(file, map_location=map_location, weights_only=True)
    except _UNREADABLE as error:
        if (
            isinstance(error, OSError) and error.errno != errno.EINVAL
        ):  # EINVAL: an offset beyond a truncated file's end
            raise
        raise CheckpointError(
            f"`path` must be a whole checkpoint of tensors and plain values, but got {file!r} (str), which cannot be "
            f"read ({_first_line(error)}), in read_checkpoint. Use an earlier checkpoint.",
            file,
        ) from error
    if not isinstance(checkpoint, dict):
        raise CheckpointError(
            f"`path` must be a checkpoint (a dictionary), but got {file!r} (str) with a "
            f"{type(checkpoint).__name__} in read_checkpoint. Pass a checkpoint's path.",
            file,
        )
    return checkpoint


def _check_archive(file: str) -> None:
    """Raise `zipfile.BadZipFile` if an archive is truncated or a checksum in it is wrong."""
    if not zipfile.is_zipfile(file):
        return  # an older format, or no checkpoint at all: torch.load decides
    with zipfile.ZipFile(file) as archive:
        damaged = archive.testzip()
    if damaged is not None:
        raise zipfile.BadZipFile(f"wrong checksum of {damaged}")


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _sync_directory(directory: Path) -> None:
    """Make a rename durable, where directories can be opened."""
    if os.name == "nt":
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask

"""One checkpoint in one file: whole and durable, or not there at all."""

from __future__ import annotations

import errno
import os
import pickle
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from camshaft.strategies.checkpoints.durable_files import find_existing, new_file
from camshaft.strategies.checkpoints.plain_values import to_plain

_UNREADABLE = (
    *(RuntimeError, EOFError, ValueError, LookupError, OSError, zipfile.BadZipFile, pickle.UnpicklingError),
    # what else torch stumbles over in a damaged file of before torch 1.6, which has no checksums
    *(AssertionError, AttributeError, OverflowError, TypeError, struct.error),
)

_IS_DIRECTORY = 0x10


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be read.

    Attributes:
        path: The file or directory.
    """

    def __init__(self, message: str, path: str) -> None:
        self.path = path
        super().__init__(message)

    def __reduce__(self) -> tuple[type[CheckpointError], tuple[str, str]]:
        return type(self), (str(self), self.path)


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
    write_plain(to_plain(dict(checkpoint)), path)


def write_plain(checkpoint: Any, path: str | os.PathLike[str]) -> None:
    """Write what `to_plain` returned, as `write_checkpoint` does."""
    with new_file(Path(path)) as partial, open(partial, "wb") as file:
        torch.save(checkpoint, file)


def read_checkpoint(
    path: str | os.PathLike[str], map_location: torch.device | str | None = "cpu", *, mmap: bool = False
) -> dict[str, Any]:
    """Read a checkpoint; only tensors and plain values are accepted, and no name found in it is imported.

    Files of earlier releases name classes: see `read_earlier_file`.

    Args:
        path: The file, or the directory of a sharded checkpoint, whose tensors are put together.
        map_location: Where tensors go; None puts those of a file where they were saved from.
        mmap: Whether the tensors of a file are views of it, which the operating system reads as they are used and
            shares among the processes of a machine. The file must stay until they are no longer needed.

    Returns:
        The checkpoint.

    Raises:
        FileNotFoundError: If there is neither.
        CheckpointError: If it is truncated, damaged, lacks a part, or holds anything else.
    """
    found = locate(path)
    if found.is_dir():
        from camshaft.strategies.checkpoints.sharded_reading import read_whole  # reads its plain part with this module

        return read_whole(found, map_location)
    return read_file(found, map_location, mmap=mmap)


def locate(path: str | os.PathLike[str]) -> Path:
    """Where a checkpoint is.

    Raises:
        FileNotFoundError: If there is none.
    """
    found = find_existing(path)
    if found is None:
        raise FileNotFoundError(
            f"`path` must be an existing checkpoint, but got {os.fspath(path)!r} ({type(path).__name__}) in "
            "read_checkpoint. Check the path."
        )
    return found


def read_file(path: Path, map_location: torch.device | str | None = "cpu", *, mmap: bool = False) -> dict[str, Any]:
    """Read a checkpoint that is one file; see `read_checkpoint`."""
    file = str(path)
    try:
        with path.open("rb") as stream:
            is_archive = zipfile.is_zipfile(stream)
            if is_archive:
                check_archive(stream)
        # Not an archive: an older format, or no checkpoint at all. torch decides.
        checkpoint = _load(path, map_location, mmap=mmap and is_archive)
    except CheckpointError:
        raise
    except _UNREADABLE as error:
        # EINVAL: an offset beyond a truncated file's end
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise
        raise CheckpointError(
            f"`path` must be a whole checkpoint of tensors and plain values, but got {file!r} (str), which cannot be "
            f"read ({first_line(error)}), in read_checkpoint. Use an earlier checkpoint.",
            file,
        ) from error
    if not isinstance(checkpoint, dict):
        raise CheckpointError(
            f"`path` must be a checkpoint (a dictionary), but got {file!r} (str) with a "
            f"{type(checkpoint).__name__} in read_checkpoint. Pass a checkpoint's path.",
            file,
        )
    return checkpoint


def _load(path: Path, map_location: torch.device | str | None, *, mmap: bool) -> Any:
    try:
        return torch.load(str(path), map_location=map_location, weights_only=True, mmap=mmap)
    except pickle.UnpicklingError as error:
        from camshaft.strategies.checkpoints.earlier_files import UnknownNamesError, read_earlier_file  # seldom needed

        try:
            return read_earlier_file(path, map_location, mmap=mmap)
        except UnknownNamesError as unknown:
            raise CheckpointError(
                "`path` must be a whole checkpoint of tensors and plain values, but got "
                f"{str(path)!r} (str), which {unknown}",
                str(path),
            ) from unknown
        except _UNREADABLE:
            raise error from None  # it is damaged, or no file of torch's


def check_archive(stream: Any) -> None:
    """Raise `zipfile.BadZipFile` if an archive is truncated or a checksum in it is wrong; torch itself looks at none.

    Args:
        stream: A binary file that can be sought.
    """
    try:
        with zipfile.ZipFile(stream) as archive:
            # An entry that a bit turned into a directory's has no contents to torch, which reads chance values then.
            directories = [entry.filename for entry in archive.infolist() if entry.external_attr & _IS_DIRECTORY]
            damaged = directories[0] if directories else archive.testzip()
    except (OSError, zipfile.BadZipFile):
        raise
    except Exception as error:  # zlib's and others, where a damaged entry tells of a format that was never written
        raise zipfile.BadZipFile(first_line(error)) from error
    if damaged is not None:
        raise zipfile.BadZipFile(f"wrong checksum or kind of {damaged}")


def first_line(error: BaseException) -> str:
    """What an error says in a line, or its type where it says nothing."""
    return (str(error).splitlines() or [type(error).__name__])[0]

"""Checkpoint files: written durably and atomically, read with their checksums verified."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import pickle
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from camshaft.hooks_core.support import durable_files, remote_files
from camshaft.hooks_core.support.durable_files import SUFFIX, is_directory
from camshaft.hooks_core.support.remote_files import INDEX_FILE, is_url
from camshaft.strategies.checkpoints import contents

PLAIN_FILE = INDEX_FILE
"""The file that marks a directory as a sharded checkpoint. A directory without it is never replaced."""

_FAILED_WRITE = ("inline_container.cc", "PytorchStreamWriter")
"""Texts in torch's errors when its archive could not be written."""

_UNREADABLE = (
    *(RuntimeError, EOFError, ValueError, LookupError, OSError, zipfile.BadZipFile, pickle.UnpicklingError),
    # Also raised for a damaged file of before torch 1.6, which has no checksums.
    *(AssertionError, AttributeError, OverflowError, TypeError, struct.error),
)

_IS_DIRECTORY = 0x10
"""The bit of a zip entry's attributes that marks a directory."""


def write_checkpoint(checkpoint: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Write a checkpoint durably and atomically.

    It is written beside its target, flushed to disk and renamed, so a crash at any moment leaves either the previous
    file or the new one. Directories are created as needed. In a store it is published whole; see
    `camshaft.hooks_core.support.remote_files`.

    Args:
        checkpoint: Nested dictionaries and lists of tensors and plain values. Other objects go into a separate part;
            see `read_checkpoint`.
        path: The target, or its URL.

    Raises:
        TypeError: If an object in it cannot be pickled; nothing is written then.
        OSError: If the disk refuses; the target is untouched then, and no partial file stays.
    """
    write_plain(contents.separate(checkpoint), path)


def write_plain(checkpoint: Any, path: str | os.PathLike[str]) -> None:
    """Write the result of `separate`, as `write_checkpoint` does."""
    with new_file(path) as partial, open(partial, "wb") as file:
        torch.save(checkpoint, file)


@contextlib.contextmanager
def new_file(path: str | os.PathLike[str]) -> Iterator[str]:
    """Yield the path of a temporary file, which is durably renamed to the target at exit.

    As `new_file` of `camshaft.hooks_core.support.durable_files`, or of `camshaft.hooks_core.support.remote_files` for a
    URL; directories are created as needed.

    Raises:
        IsADirectoryError: If the target is a directory that is no checkpoint.
        OSError: If the disk refuses; it names the target, which is untouched then.
    """
    place = remote_files.local_path(path)
    if is_url(place):
        check_replaceable_in_store(place)
        with remote_files.new_file(place) as fresh:
            yield str(fresh)
        return
    target = Path(place)
    check_replaceable(target)
    durable_files.make_folder(target.parent)
    with disk_errors(target), durable_files.new_file(target) as partial:
        yield str(partial)
        check_replaceable(target)


@contextlib.contextmanager
def disk_errors(target: Path) -> Iterator[None]:
    """Raise failures of the disk as an `OSError` with the target's path.

    The operating system names no file if writing or flushing fails, and partial files otherwise. If a write failed,
    `torch.save` raises a `RuntimeError` of its own, with that write's error as its context, if at all.
    """
    try:
        yield
    except OSError as error:
        is_named = error.filename is not None and not any(
            part.endswith(SUFFIX) for part in Path(os.fsdecode(error.filename)).parts
        )
        if is_named or error.errno is None:
            raise
        raise _with_path(error.errno, target, error) from error
    except RuntimeError as error:
        if not any(text in str(error) for text in _FAILED_WRITE):
            raise
        cause: BaseException | None = error
        while cause is not None and not (isinstance(cause, OSError) and cause.errno is not None):
            cause = cause.__cause__ or cause.__context__
        number = errno.EIO if cause is None else cause.errno
        assert number is not None
        raise _with_path(number, target, error) from error


def _with_path(number: int, target: Path, cause: BaseException) -> OSError:
    error = OSError(number, os.strerror(number), str(target))
    for note in getattr(cause, "__notes__", ()):  # such as the rank that it comes from
        error.add_note(note)
    return error


def rename_durably(partial: Path, target: Path) -> None:
    """Rename a complete file or directory to its target, if the target may be replaced.

    Args:
        partial: The file or directory; its contents are on the disk already.
        target: Its new name in the same directory.

    Raises:
        IsADirectoryError: If the target is a directory that is no checkpoint.
        OSError: If the disk refuses.
    """
    check_replaceable(target)
    durable_files.rename_durably(partial, target)


def check_replaceable(target: Path) -> None:
    """Raise `IsADirectoryError` if a target is a directory with other contents than a checkpoint."""
    if is_directory(target) and not (target / PLAIN_FILE).is_file() and any(target.iterdir()):
        raise IsADirectoryError(errno.EISDIR, "a directory that is no checkpoint is not replaced", str(target))


def check_replaceable_in_store(url: str) -> None:
    """Raise `IsADirectoryError`, as `check_replaceable` does, for a URL; what a killed writer left may be replaced."""
    names = [file.removeprefix(remote_files.join(url, "")) for file in remote_files.files_below(url)]
    if PLAIN_FILE not in names and not all(re.fullmatch(r"__\w+\.distcp", name) for name in names):
        raise IsADirectoryError(errno.EISDIR, "a directory that is no checkpoint is not replaced", url)


def read_file(
    path: Path | str,
    map_location: Any = "cpu",
    *,
    mmap: bool = False,
    weights_only: bool | None = None,
) -> dict[str, Any]:
    """Read a checkpoint that is one file, without restoring its objects; see `read_checkpoint`.

    Args:
        path: The file; a string is the URL of one in a store, of which a copy is read.
        map_location, mmap, weights_only: As there; a copy is never mapped.
    """
    if isinstance(path, str):
        with remote_files.local_copy(path) as copy:
            try:
                return read_file(copy, map_location, weights_only=weights_only)
            except contents.CheckpointError as error:
                raise contents.CheckpointError(str(error).replace(str(copy), path), path) from error
    check_is_file(path)
    try:
        with path.open("rb") as stream:
            is_archive = zipfile.is_zipfile(stream)
            if is_archive:
                check_archive(stream)
        # Otherwise it has an older format, or is no checkpoint. torch decides.
        checkpoint = _load(path, map_location, mmap=mmap and is_archive, is_trusted=contents.is_trusted(weights_only))
    except contents.CheckpointError:
        raise
    except _UNREADABLE as error:
        # EINVAL: an offset beyond a truncated file's end
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise
        raise contents.unreadable(path, f"cannot be read ({contents.first_line(error)})") from error
    if not isinstance(checkpoint, dict):
        rule, problem = "a checkpoint (a dictionary)", f"is a file with a {type(checkpoint).__name__}"
        raise contents.unreadable(path, problem, rule, "Pass a checkpoint's path.")
    return checkpoint


def check_is_file(path: Path) -> None:
    """Raise `CheckpointError` if a path is a FIFO, a socket or a device: opening one could block forever."""
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        kinds = {stat.S_IFIFO: "FIFO", stat.S_IFSOCK: "socket", stat.S_IFCHR: "device", stat.S_IFBLK: "device"}
        kind = kinds.get(stat.S_IFMT(mode), "directory")
        raise contents.unreadable(path, f"is a {kind}", "a checkpoint's file", "Pass a checkpoint's path.")


def check_archive(stream: Any) -> None:
    """Raise `zipfile.BadZipFile` if an archive is truncated or has a wrong checksum. torch verifies none.

    Args:
        stream: A seekable binary file.
    """
    try:
        with zipfile.ZipFile(stream) as archive:
            # A flipped bit may mark an entry as a directory. torch then reads uninitialized memory in its place.
            directories = [entry.filename for entry in archive.infolist() if entry.external_attr & _IS_DIRECTORY]
            damaged = directories[0] if directories else archive.testzip()
    except (OSError, zipfile.BadZipFile):
        raise
    except Exception as error:  # such as zlib's, if a damaged entry claims another compression
        raise zipfile.BadZipFile(contents.first_line(error)) from error
    if damaged is not None:
        raise zipfile.BadZipFile(f"wrong checksum or kind of {damaged}")


def verified_records(archive: bytes) -> dict[str, memoryview]:
    """Return the contents of an archive of `torch.save` in memory by name; faster than `check_archive`.

    Raises:
        zipfile.BadZipFile, struct.error: If it is truncated or has a wrong checksum.
    """
    records = dict[str, memoryview]()
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        entries = opened.infolist()
    for entry in entries:
        # a name and further fields follow the 30 bytes of an entry's header, in lengths of their own
        start = entry.header_offset + 30 + sum(struct.unpack_from("<HH", archive, entry.header_offset + 26))
        content = memoryview(archive)[start : start + entry.file_size]
        is_stored = entry.compress_type == zipfile.ZIP_STORED and not entry.external_attr & _IS_DIRECTORY
        if not is_stored or len(content) < entry.file_size or zlib.crc32(content) != entry.CRC:
            raise zipfile.BadZipFile(f"wrong checksum or kind of {entry.filename}")
        records[entry.filename.partition("/")[2]] = content
    return records


def _load(path: Path, map_location: Any, *, mmap: bool, is_trusted: bool) -> Any:
    contents.declare_safe()  # again, as the list is the process's
    try:
        return torch.load(str(path), map_location=map_location, weights_only=True, mmap=mmap)
    except pickle.UnpicklingError as error:
        from camshaft.strategies.checkpoints import foreign_files  # rarely needed

        if is_trusted:
            return foreign_files.read_trusted_file(path, map_location, mmap=mmap)
        try:
            return foreign_files.read_foreign_file(path, map_location, mmap=mmap)
        except contents.CheckpointError:
            raise
        except _UNREADABLE:
            raise error from None  # it is damaged, or not written by `torch.save`

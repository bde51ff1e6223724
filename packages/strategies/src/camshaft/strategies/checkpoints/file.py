"""One checkpoint in one file: whole and durable, or not there at all."""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import stat
import struct
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from camshaft.hooks_core import durable_paths
from camshaft.hooks_core.durable_paths import flush, is_directory, previous_of
from camshaft.hooks_core.partial_paths import SUFFIX, claimed, new_partial_name
from camshaft.strategies.checkpoints.contents import ObjectsError, is_trusted, put_back, separate

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
        checkpoint: Nested dictionaries and lists of tensors and plain values. Other objects go into a part of their
            own, see `read_checkpoint`.
        path: The target.

    Raises:
        TypeError: If an object in it cannot be pickled; nothing is written then.
        OSError: If the disk refuses; the target is untouched then, and no partial file stays.
    """
    write_plain(separate(checkpoint), path)


def write_plain(checkpoint: Any, path: str | os.PathLike[str]) -> None:
    """Write what `separate` returned, as `write_checkpoint` does."""
    with new_file(Path(path)) as partial, open(partial, "wb") as file:
        torch.save(checkpoint, file)


def read_checkpoint(
    path: str | os.PathLike[str],
    map_location: torch.device | str | None = "cpu",
    *,
    mmap: bool = False,
    weights_only: bool | None = None,
) -> dict[str, Any]:
    """Read the tensors and plain values of a checkpoint, and its objects if the caller trusts the file.

    Unless `weights_only` is false, no name found in a file is imported or called, whatever it is: what it stands for is
    left out, and `objects_left_out` names it. A file of another framework is refused where its weights or
    optimizers need such a name, or where it is no checkpoint; see `read_earlier_file`.

    Args:
        path: The file, or the directory of a sharded checkpoint, whose tensors are put together.
        map_location: Where tensors go; None puts those of a file where they were saved from.
        mmap: Whether the tensors of a file are views of it, which the operating system reads as they are used and
            shares among the processes of a machine. The file must stay until they are no longer needed.
        weights_only: False unpickles the objects in the file, which may run any code: pass it for files that you
            trust. Otherwise they are left out. The environment variable `TORCH_FORCE_WEIGHTS_ONLY_LOAD` forbids it.

    Returns:
        The checkpoint.

    Raises:
        FileNotFoundError: If there is neither.
        CheckpointError: If it is truncated, damaged, lacks a part, is refused, is neither a file nor a directory, or
            holds an object that cannot be unpickled.
    """
    found = locate(path)
    if found.is_dir():
        from camshaft.strategies.checkpoints.sharded import read_whole  # reads its plain part with this module

        checkpoint = read_whole(found, map_location)
    else:
        checkpoint = read_file(found, map_location, mmap=mmap, weights_only=weights_only)
    return with_objects(checkpoint, found, weights_only)


def with_objects(checkpoint: dict[str, Any], path: Path, weights_only: bool | None) -> dict[str, Any]:
    """Put the objects of a checkpoint that was read back; see `read_checkpoint`."""
    try:
        return put_back(checkpoint, unpickle=is_trusted(weights_only))
    except ObjectsError as error:
        file = str(path)
        raise CheckpointError(
            f"`path` must be a whole checkpoint whose objects can be unpickled, but got {file!r} (str), which {error}, "
            "in read_checkpoint. Make their classes importable, or read it without weights_only=False.",
            file,
        ) from error


def locate(path: str | os.PathLike[str]) -> Path:
    """Where a checkpoint is.

    Raises:
        FileNotFoundError: If there is none.
        CheckpointError: If what is there is neither a file nor a directory.
    """
    found = find_existing(path)
    if found is None:
        raise FileNotFoundError(
            f"`path` must be an existing checkpoint, but got {os.fspath(path)!r} ({type(path).__name__}) in "
            "read_checkpoint. Check the path."
        )
    if not found.is_dir():
        check_is_file(found)
    return found


def check_is_file(path: Path) -> None:
    """Raise `CheckpointError` if a path leads to a FIFO, a socket or a device, whose opening could wait for ever."""
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        kinds = {stat.S_IFIFO: "FIFO", stat.S_IFSOCK: "socket", stat.S_IFCHR: "device", stat.S_IFBLK: "device"}
        kind = kinds.get(stat.S_IFMT(mode), "directory")
        raise CheckpointError(
            f"`path` must be a checkpoint's file, but got {str(path)!r} (str), which is a {kind}, in read_checkpoint. "
            "Pass a checkpoint's path.",
            str(path),
        )


def read_file(
    path: Path,
    map_location: torch.device | str | None = "cpu",
    *,
    mmap: bool = False,
    weights_only: bool | None = None,
) -> dict[str, Any]:
    """Read a checkpoint that is one file, without putting its objects back; see `read_checkpoint`."""
    file = str(path)
    check_is_file(path)
    try:
        with path.open("rb") as stream:
            is_archive = zipfile.is_zipfile(stream)
            if is_archive:
                check_archive(stream)
        # Not an archive: an older format, or no checkpoint at all. torch decides.
        checkpoint = _load(path, map_location, mmap=mmap and is_archive, is_trusted=is_trusted(weights_only))
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


def _load(path: Path, map_location: torch.device | str | None, *, mmap: bool, is_trusted: bool) -> Any:
    try:
        return torch.load(str(path), map_location=map_location, weights_only=True, mmap=mmap)
    except pickle.UnpicklingError as error:
        from camshaft.strategies.checkpoints import foreign_files  # seldom needed

        if is_trusted:
            return foreign_files.read_trusted_file(path, map_location, mmap=mmap)
        try:
            return foreign_files.read_earlier_file(path, map_location, mmap=mmap)
        except foreign_files.UnknownNamesError as unknown:
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


_FAILED_WRITE = ("inline_container.cc", "PytorchStreamWriter")
"""Texts in torch's errors where its archive could not be written."""

PLAIN_FILE = "plain.ckpt"
"""What every directory that is a checkpoint has in it; no other directory is ever replaced."""


@contextlib.contextmanager
def new_file(target: Path) -> Iterator[str]:
    """The path of an empty file beside a target; when the block ends, it is flushed to disk and renamed to the target.

    A crash at any moment leaves either what was there before or the new file, and maybe a partial file, which
    `hooks_core.partial_paths.abandoned_in` finds. Directories are created as needed.

    Args:
        target: Where the file is to be; what is there is replaced.

    Raises:
        IsADirectoryError: If the target is a directory that is no checkpoint.
        OSError: If the disk refuses; the target is untouched then, and no partial file stays.
    """
    check_replaceable(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = new_partial_name(target)
    with naming(target):
        partial.touch(mode=0o600, exist_ok=False)
        try:
            with claimed(partial):
                yield str(partial)
                flush(partial)
                os.chmod(partial, 0o666 & ~_umask())
                put_in_place(partial, target)
        except BaseException:
            with contextlib.suppress(OSError):  # what failed before is what is told
                partial.unlink(missing_ok=True)
            raise


@contextlib.contextmanager
def naming(target: Path) -> Iterator[None]:
    """Raise what the disk refuses as an `OSError` with the target's path.

    The operating system names no file where writing or flushing fails, and partial ones otherwise; `torch.save` raises
    a `RuntimeError` of its own if a write failed, and that write's error is its context, if anything is.
    """
    try:
        yield
    except OSError as error:
        is_named = error.filename is not None and not any(
            part.endswith(SUFFIX) for part in Path(os.fsdecode(error.filename)).parts
        )
        if is_named or error.errno is None:
            raise
        raise _named(error.errno, target, error) from error
    except RuntimeError as error:
        if not any(sign in str(error) for sign in _FAILED_WRITE):
            raise
        found: BaseException | None = error
        while found is not None and not (isinstance(found, OSError) and found.errno is not None):
            found = found.__cause__ or found.__context__
        number = errno.EIO if found is None else found.errno
        assert number is not None
        raise _named(number, target, error) from error


def _named(number: int, target: Path, cause: BaseException) -> OSError:
    error = OSError(number, os.strerror(number), str(target))
    for note in getattr(cause, "__notes__", ()):  # such as that of which process it comes from
        error.add_note(note)
    return error


def put_in_place(partial: Path, target: Path) -> None:
    """Rename what is whole to its target, as `durable_paths.put_in_place` does, if the target may be replaced.

    Args:
        partial: What is renamed; its contents are on the disk already.
        target: Its new name in the same directory.

    Raises:
        IsADirectoryError: If the target is a directory that is no checkpoint.
        OSError: If the disk refuses.
    """
    check_replaceable(target)
    durable_paths.put_in_place(partial, target)


def check_replaceable(target: Path) -> None:
    """Raise `IsADirectoryError` if something else than a checkpoint would be lost."""
    if is_directory(target) and not (target / PLAIN_FILE).is_file() and any(target.iterdir()):
        raise IsADirectoryError(errno.EISDIR, "a directory that is no checkpoint is not replaced", str(target))


def find_existing(path: str | os.PathLike[str]) -> Path | None:
    """Where something is that was to be at a path: there, or beside it if a crash interrupted `put_in_place`."""
    candidates = (Path(path), previous_of(Path(path)))
    return next((candidate for candidate in candidates if candidate.exists()), None)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask

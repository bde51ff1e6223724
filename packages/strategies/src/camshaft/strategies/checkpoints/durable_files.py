"""Files and directories that are whole and durable once they have their name, or not there at all."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

PLAIN_FILE = "plain.ckpt"
"""What every directory that is a checkpoint has in it; no other directory is ever replaced."""


@contextlib.contextmanager
def new_file(target: Path) -> Iterator[str]:
    """The path of an empty file beside a target; when the block ends, it is flushed to disk and renamed to the target.

    A crash at any moment leaves either what was there before or the new file. Directories are created as needed.

    Args:
        target: Where the file is to be; what is there is replaced.

    Raises:
        IsADirectoryError: If the target is a directory that is no checkpoint.
        OSError: If the disk refuses; the target is untouched then, and no partial file stays.
    """
    check_replaceable(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, partial = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent)
    os.close(handle)
    try:
        yield partial
        sync(partial)
        os.chmod(partial, 0o666 & ~_umask())
        put_in_place(Path(partial), target)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise


def put_in_place(partial: Path, target: Path) -> None:
    """Rename a file or directory that is whole to its target, durably; what was there before is gone afterwards.

    A file takes a file's place in one step of the file system. Nothing else can, so the old one first gets the name
    that `find_existing` looks for when there is no target.

    Args:
        partial: What is renamed; its contents are on the disk already.
        target: Its new name in the same directory.

    Raises:
        IsADirectoryError: If the target is a directory that is no checkpoint.
        OSError: If the disk refuses.
    """
    check_replaceable(target)
    previous = _previous_of(target)
    if os.path.lexists(target) and (_is_directory(partial) or _is_directory(target)):
        remove(previous)
        os.rename(target, previous)
        try:
            os.rename(partial, target)
        except BaseException:
            os.rename(previous, target)
            raise
    else:
        os.replace(partial, target)
    sync(target.parent)
    remove(previous)


def check_replaceable(target: Path) -> None:
    """Raise `IsADirectoryError` if something else than a checkpoint would be lost."""
    if _is_directory(target) and not (target / PLAIN_FILE).is_file() and any(target.iterdir()):
        raise IsADirectoryError(errno.EISDIR, "a directory that is no checkpoint is not replaced", str(target))


def find_existing(path: str | os.PathLike[str]) -> Path | None:
    """Where something is that was to be at a path: there, or beside it if a crash interrupted `put_in_place`."""
    candidates = (Path(path), _previous_of(Path(path)))
    return next((candidate for candidate in candidates if candidate.exists()), None)


def remove(path: Path) -> None:
    """Remove a file, a link or a directory with all that it holds, if it is there."""
    if _is_directory(path):
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def sync(path: str | os.PathLike[str]) -> None:
    """Flush a file's contents, or a directory's names, to disk."""
    if os.name == "nt" and os.path.isdir(path):
        return  # directories cannot be opened there
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_directory(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _previous_of(target: Path) -> Path:
    return target.with_name(f".{target.name}.previous")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask

"""Renaming, removing and flushing files and directories, for whoever keeps checkpoints on disk."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path


def put_in_place(partial: Path, target: Path) -> None:
    """Rename a file or directory that is whole to its target, durably; what was there before is gone afterwards.

    A file takes a file's place in one step of the file system. Nothing else can, so the old one first gets the name
    `previous_of(target)`, under which it is to be looked for when there is no target.

    Args:
        partial: What is renamed; its contents are on the disk already.
        target: Its new name in the same directory.

    Raises:
        OSError: If the disk refuses.
    """
    previous = previous_of(target)
    if os.path.lexists(target) and (is_directory(partial) or is_directory(target)):
        remove(previous)
        os.rename(target, previous)
        try:
            os.rename(partial, target)
        except BaseException:
            os.rename(previous, target)
            raise
    else:
        os.replace(partial, target)
    flush(target.parent)
    remove(previous)


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A path beside a file, which takes its place when the block ends; nobody sees half a file, but none is flushed.

    Args:
        path: The file; its directory is there.

    Raises:
        OSError: If the disk refuses; the file is as it was then.
    """
    fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        yield fresh
        os.replace(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)


def previous_of(target: Path) -> Path:
    """Where what was at a path is after a crash interrupted `put_in_place`."""
    return target.with_name(f".{target.name}.previous")


def remove(path: Path) -> None:
    """Remove a file, a link or a directory with all that it holds, if it is there."""
    if is_directory(path):
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def flush(path: str | os.PathLike[str]) -> None:
    """Flush a file's contents, or a directory's names, to disk."""
    if os.name == "nt" and os.path.isdir(path):
        return  # Windows opens no directories; its renames are journalled
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_directory(path: Path) -> bool:
    """Whether a path is a directory itself, and no link to one."""
    return path.is_dir() and not path.is_symlink()

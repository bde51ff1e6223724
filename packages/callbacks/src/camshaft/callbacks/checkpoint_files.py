"""What is done to durable checkpoint files: naming one "last", and removing one. A checkpoint may be a folder."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def point_last_at(checkpoint: Path, last: Path) -> None:
    """Make `last` the same checkpoint as `checkpoint`, on the disk's word, without a moment at which it is half done.

    The data is shared by hard links, and copied where the file system has none. Removing either leaves the other
    whole. A folder is replaced in two renames, so a crash between them leaves no `last`, and `checkpoint` as it was.

    Raises:
        OSError: If `checkpoint` does not exist or the folder of `last` cannot be written.
    """
    last.parent.mkdir(parents=True, exist_ok=True)
    fresh = last.with_name(f".{last.name}.{os.getpid()}.new")
    remove_checkpoint(fresh)
    try:
        if checkpoint.is_dir():
            shutil.copytree(checkpoint, fresh, copy_function=_link_or_copy)
            for folder, _, _ in os.walk(fresh):
                _flush_folder(Path(folder))
        else:
            _link_or_copy(checkpoint, fresh)
        if last.is_dir() or (fresh.is_dir() and last.exists()):
            _replace_folder(fresh, last)
        else:
            os.replace(fresh, last)
    finally:
        # rename() between two links of one file does nothing, not even remove the first.
        remove_checkpoint(fresh)
    _flush_folder(last.parent)


def remove_checkpoint(path: Path) -> None:
    """Remove a file or a folder; nothing happens if there is none."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _replace_folder(fresh: Path, last: Path) -> None:
    # rename() does not replace a folder that holds something: it has to step aside first, under the name at which
    # strategies look for it if this process is killed in between.
    former = last.with_name(f".{last.name}.previous")
    remove_checkpoint(former)
    os.replace(last, former)
    try:
        os.replace(fresh, last)
    except OSError:
        os.replace(former, last)
        raise
    remove_checkpoint(former)


def _link_or_copy(source: str | Path, target: str | Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
        with open(target, "rb+") as copy:
            os.fsync(copy.fileno())


def _flush_folder(folder: Path) -> None:
    if os.name == "nt":  # Windows opens no folders; its renames are journalled.
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""Naming a durable checkpoint "last". A checkpoint may be a folder."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from camshaft.hooks_core.durable_paths import flush, put_in_place, remove
from camshaft.hooks_core.partial_paths import claimed, new_partial_name


def point_last_at(checkpoint: Path, last: Path, *, by_link: bool = False) -> None:
    """Make `last` the same checkpoint as `checkpoint`, on the disk's word, without a moment at which it is half done.

    The data is shared by hard links, and copied where the file system has none. Removing either leaves the other
    whole. A folder is replaced in two renames, so a crash between them leaves no `last`, and `checkpoint` as it was.

    Args:
        checkpoint: A file or folder that is durable.
        last: Its second name.
        by_link: Whether `last` is a symbolic link, which shows where it leads, and is nothing without `checkpoint`.
            Where the system makes none, it is as above.

    Raises:
        OSError: If `checkpoint` does not exist or the folder of `last` cannot be written.
    """
    last.parent.mkdir(parents=True, exist_ok=True)
    workplace = new_partial_name(last)
    workplace.mkdir()
    try:
        with claimed(workplace):
            fresh = workplace / last.name
            if not (by_link and _is_linked(checkpoint, fresh, os.path.relpath(checkpoint, last.parent))):
                _share(checkpoint, fresh)
            put_in_place(fresh, last)
    finally:
        # rename() between two links of one file does nothing, not even remove the first.
        remove(workplace)


def _is_linked(checkpoint: Path, fresh: Path, leads_to: str) -> bool:
    """Make a symbolic link that leads to a checkpoint from where it will be. Returns whether the system makes any."""
    os.stat(checkpoint)  # what is missing is an error for a link, too
    try:
        os.symlink(leads_to, fresh, target_is_directory=checkpoint.is_dir())
    except OSError:
        return False
    return True


def _share(checkpoint: Path, fresh: Path) -> None:
    if checkpoint.is_dir():
        shutil.copytree(checkpoint, fresh, copy_function=_link_or_copy)
        for folder, _, _ in os.walk(fresh):
            flush(folder)
    else:
        _link_or_copy(checkpoint, fresh)


def _link_or_copy(source: str | Path, target: str | Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
        flush(target)

"""Naming a durable checkpoint "last". A checkpoint may be a folder."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from camshaft.hooks_core.durable_paths import flush, put_in_place, remove


def point_last_at(checkpoint: Path, last: Path) -> None:
    """Make `last` the same checkpoint as `checkpoint`, on the disk's word, without a moment at which it is half done.

    The data is shared by hard links, and copied where the file system has none. Removing either leaves the other
    whole. A folder is replaced in two renames, so a crash between them leaves no `last`, and `checkpoint` as it was.

    Raises:
        OSError: If `checkpoint` does not exist or the folder of `last` cannot be written.
    """
    last.parent.mkdir(parents=True, exist_ok=True)
    fresh = last.with_name(f".{last.name}.{os.getpid()}.new")
    remove(fresh)
    try:
        if checkpoint.is_dir():
            shutil.copytree(checkpoint, fresh, copy_function=_link_or_copy)
            for folder, _, _ in os.walk(fresh):
                flush(folder)
        else:
            _link_or_copy(checkpoint, fresh)
        put_in_place(fresh, last)
    finally:
        # rename() between two links of one file does nothing, not even remove the first.
        remove(fresh)


def _link_or_copy(source: str | Path, target: str | Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
        flush(target)

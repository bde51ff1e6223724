"""Temporary copies of checkpoints that are no local files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

_ADDRESSES = ("http://", "https://")


def is_address(path: str | os.PathLike[str]) -> bool:
    """Return whether a checkpoint is on the web."""
    return isinstance(path, str) and path.startswith(_ADDRESSES)


@contextmanager
def local_copy(source: str | os.PathLike[str] | IO[bytes]) -> Iterator[Path]:
    """Copy a file object from its position on, or what an address gives, to a file that ends with the block.

    Yields:
        The path of the copy.

    Raises:
        OSError: If it cannot be read (`urllib.error.URLError` for an address).
    """
    import tempfile  # rarely needed

    with tempfile.TemporaryDirectory() as directory:
        name = os.path.basename(source) if isinstance(source, (str, os.PathLike)) else "file object"
        copy = Path(directory, name or "checkpoint")
        with copy.open("wb") as file:
            if isinstance(source, (str, os.PathLike)):
                from urllib.request import urlopen  # imports much

                with urlopen(os.fspath(source)) as stream:
                    shutil.copyfileobj(stream, file)
            else:
                shutil.copyfileobj(source, file)
        yield copy

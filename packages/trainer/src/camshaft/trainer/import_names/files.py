"""Reading and writing files, as functions of earlier releases."""

from __future__ import annotations

import os
from typing import Any

import torch

from camshaft.strategies import read_checkpoint, write_checkpoint


def load(
    path_or_url: str | os.PathLike[str],
    map_location: torch.device | str | None = None,
    weights_only: bool = True,
) -> dict[str, Any]:
    """Read a checkpoint; nothing that it names is imported, see `camshaft.strategies.read_checkpoint`.

    Args:
        path_or_url: The file.
        map_location: Where tensors go; None puts them where they were saved from.
        weights_only: True, whatever is given: other files are refused.

    Raises:
        FileNotFoundError, CheckpointError: If it is not there, or cannot be read so.
    """
    return read_checkpoint(path_or_url, map_location)


def atomic_save(checkpoint: dict[str, Any], filepath: str | os.PathLike[str]) -> None:
    """Write a checkpoint, whole or not at all; see `camshaft.strategies.write_checkpoint`."""
    write_checkpoint(checkpoint, filepath)

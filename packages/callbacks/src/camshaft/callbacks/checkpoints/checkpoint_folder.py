"""The folder where checkpoints are saved, and what others left in it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from camshaft.hooks_core.durable_paths import remove
from camshaft.hooks_core.partial_paths import SUFFIX, abandoned_in
from camshaft.hooks_core.user_warnings import warn_user

if TYPE_CHECKING:
    from camshaft.hooks_core.protocols import TrainerProtocol


def default_folder(trainer: TrainerProtocol) -> str:
    """Where checkpoints go that nobody gave a folder: "checkpoints" beside the logs, else below the default root."""
    root = trainer.log_dir or trainer.default_root_dir
    return os.path.abspath(os.path.join(os.path.expanduser(root), "checkpoints"))


def remove_abandoned(folder: Path, extension: str, depth: int = 0) -> None:
    """Remove what saves that were killed left beside the checkpoints of a folder; see `partial_paths.abandoned_in`.

    What cannot be removed stays, with a warning.

    Args:
        folder: The folder; it need not exist.
        extension: That of the checkpoints, with the dot; no other file is looked at.
        depth: How many folders down there are checkpoints as well.
    """
    for level in range(depth + 1):
        for path in abandoned_in(folder, "*/" * level + f".*{extension}*{SUFFIX}"):
            try:
                remove(path)
            except OSError as error:
                warn_user(f"An unfinished checkpoint of a killed process cannot be removed: {error}.")

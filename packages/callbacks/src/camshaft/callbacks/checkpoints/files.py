"""Checkpoint files on disk, and when they are due by time."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

from camshaft.callbacks.monitoring import from_rank_zero
from camshaft.hooks_core.durable_paths import flush, put_in_place, remove
from camshaft.hooks_core.partial_paths import SUFFIX, abandoned_in, claimed, new_partial_name
from camshaft.hooks_core.user_warnings import warn_user

if TYPE_CHECKING:
    from camshaft.hooks_core.protocols import Strategy, TrainerProtocol


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


def can_rescue(trainer: TrainerProtocol, exception: BaseException, where: str) -> bool:
    """Whether this process can save by itself what an exception interrupted; warns if it cannot.

    What several processes have trained is saved by all of them together. After an exception the others may be in the
    middle of anything, or gone, so that nobody is waited for and nothing is written.

    Args:
        trainer: Who trains.
        exception: What ended it.
        where: The callback's class, for the warning.
    """
    strategy = trainer.strategy
    if strategy.world_size == 1:
        return True
    warn_user(
        f"{where} saved nothing after the {type(exception).__name__} on rank {strategy.global_rank}: the "
        f"{strategy.world_size} processes can only save together, and the others may not have failed. Go on from the "
        "newest checkpoint of a ModelCheckpoint; for signals, PreemptionCheckpoint saves on all ranks."
    )
    return False


_LARGEST_GROWTH = 4


class TimeRhythm:
    """Tells after which batch an interval has passed by the clock of rank 0.

    Several processes ask rank 0 after one batch, and then after half of the batches that the rest of the interval seems
    to take, so that they ask seldom, and often only when it is nearly over.

    Args:
        seconds: The interval; 0 is over after each batch.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.start()

    def start(self) -> None:
        """Begin an interval. Every process does at the same batch."""
        self._since = self._looked_at = time.monotonic()
        self._num_batches = self._num_left = 1

    def is_over(self, strategy: Strategy) -> bool:
        """Count a batch. Returns whether the interval is over; the next one begins then. Collective now and then."""
        self._num_left -= 1
        if self._num_left > 0:
            return False
        is_over, num_batches = from_rank_zero(strategy, lambda: self._look(strategy.world_size))
        if is_over:
            self.start()
        else:
            self._num_batches = self._num_left = num_batches
        return is_over

    def _look(self, world_size: int) -> tuple[bool, int]:
        """Whether it is over, and else after how many batches to look again."""
        now = time.monotonic()
        num_seconds_left = self._seconds - (now - self._since)
        if num_seconds_left <= 0 or world_size == 1:
            return num_seconds_left <= 0, 1
        seconds_per_batch = (now - self._looked_at) / self._num_batches
        self._looked_at = now
        fitting = int(num_seconds_left / max(seconds_per_batch, 1e-9) / 2)
        return False, max(1, min(fitting, _LARGEST_GROWTH * self._num_batches))

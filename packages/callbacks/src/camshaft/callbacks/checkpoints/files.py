"""Files of checkpoints, and the interval of time between them."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

from camshaft.callbacks.monitoring import from_rank_zero
from camshaft.hooks_core.support.durable_files import (
    SUFFIX,
    abandoned_files,
    flush,
    lock,
    make_folder,
    new_partial_name,
    remove,
    rename_durably,
)
from camshaft.hooks_core.support.messages import warn_user
from camshaft.hooks_core.support.remote_files import absolute, copy, is_url, join

if TYPE_CHECKING:
    from camshaft.hooks_core.protocols import Strategy, TrainerProtocol


def point_last_at(checkpoint: str | os.PathLike[str], last: str | os.PathLike[str], *, by_link: bool = False) -> None:
    """Make `last` the same checkpoint as `checkpoint`, durably and atomically.

    The data is shared by hard links, and copied where the file system has none. Removing either leaves the other
    intact. A folder is replaced in two renames, so a crash between them leaves no `last`, and `checkpoint` as it was.
    A store has no links: it copies the data, without its passing through this machine where the store can.

    Args:
        checkpoint: A file or folder that is durable.
        last: Path of its second name.
        by_link: Whether `last` is a symbolic link, which dangles without `checkpoint`. Where the system has no symbolic
            links, the data is shared as above.

    Raises:
        OSError: If `checkpoint` does not exist or the folder of `last` cannot be written.
    """
    if isinstance(checkpoint, str) and isinstance(last, str) and is_url(last):
        copy(checkpoint, last)
    else:
        _point_on_disk(Path(checkpoint), Path(last), by_link)


def _point_on_disk(checkpoint: Path, last: Path, by_link: bool) -> None:
    make_folder(last.parent)
    workplace = new_partial_name(last)
    workplace.mkdir()
    try:
        with lock(workplace):
            fresh = workplace / last.name
            if not (by_link and _try_symlink(checkpoint, fresh, os.path.relpath(checkpoint, last.parent))):
                _share(checkpoint, fresh)
            rename_durably(fresh, last)
    finally:
        # rename() between two links of one file does nothing, not even remove the first.
        remove(workplace)


def _try_symlink(checkpoint: Path, fresh: Path, target: str) -> bool:
    """Make a symbolic link `fresh` to a checkpoint by a relative path. Return whether the system supports that."""
    os.stat(checkpoint)  # a missing checkpoint is an error, also for a link
    try:
        os.symlink(target, fresh, target_is_directory=checkpoint.is_dir())
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
    """Return the default folder of checkpoints: the trainer's `checkpoint_dir`, if it has one.

    Else it is "checkpoints" in `log_dir`, or in `default_root_dir` without one.
    """
    of_trainer: str | None = getattr(trainer, "checkpoint_dir", None)
    return absolute(of_trainer or join(trainer.log_dir or trainer.default_root_dir, "checkpoints"))


def remove_abandoned(folder: str, extension: str, depth: int = 0) -> None:
    """Remove the unfinished files that killed saves left in a folder; see `partial_paths.abandoned_files`.

    A file that cannot be removed stays, with a warning. In a store none is looked for: whether their writers are gone
    cannot be known there.

    Args:
        folder: The folder; it need not exist.
        extension: That of the checkpoints, with the dot; no other file is considered.
        depth: Number of levels of subfolders to search as well.
    """
    if is_url(folder):
        return
    for level in range(depth + 1):
        for path in abandoned_files(Path(folder), "*/" * level + f".*{extension}*{SUFFIX}"):
            try:
                remove(path)
            except OSError as error:
                warn_user(f"An unfinished checkpoint of a killed process cannot be removed: {error}. Remove it.")


def can_save_alone(trainer: TrainerProtocol, exception: BaseException, where: str) -> bool:
    """Return whether this process can save by itself after an exception; warn if it cannot.

    Several processes save together. After an exception the other ranks may never reach a save, so none is waited for
    and nothing is written.

    Args:
        exception: The exception that ended training.
        where: The callback's class, for the warning.
    """
    strategy = trainer.strategy
    if strategy.world_size == 1:
        return True
    warn_user(
        f"{where} saved nothing after the {type(exception).__name__}: the {strategy.world_size} processes "
        "can only save together, and the others may not have failed. Resume from the newest checkpoint of a "
        "ModelCheckpoint; for signals, PreemptionCheckpoint saves on all ranks.",
        of_rank=True,
    )
    return False


_MAX_GROWTH = 4  # of the number of batches from one look at the clock to the next


class TimeInterval:
    """An interval of time by the clock of rank 0, which ends after a batch.

    With several processes each look at the clock is a broadcast. They look after one batch, and then after half of the
    batches that fit into the rest of the interval, so that there are few looks until it is nearly over.

    Args:
        seconds: Length of the interval; 0 ends it after each batch.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.start()

    def start(self) -> None:
        """Begin an interval; to be called at the same batch on every rank."""
        self._since = self._looked_at = time.monotonic()
        self._num_batches = self._num_left = 1

    def is_over(self, strategy: Strategy) -> bool:
        """Count a batch. Return whether the interval is over; the next one then begins. Collective at some batches."""
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
        """Return whether the interval is over, and otherwise the number of batches until the next look."""
        now = time.monotonic()
        num_seconds_left = self._seconds - (now - self._since)
        if num_seconds_left <= 0 or world_size == 1:
            return num_seconds_left <= 0, 1
        seconds_per_batch = (now - self._looked_at) / self._num_batches
        self._looked_at = now
        fitting = int(num_seconds_left / max(seconds_per_batch, 1e-9) / 2)
        return False, max(1, min(fitting, _MAX_GROWTH * self._num_batches))

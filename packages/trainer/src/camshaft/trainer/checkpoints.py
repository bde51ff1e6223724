"""Finding the checkpoint that a verb starts from."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from camshaft.callbacks import ModelCheckpoint
from camshaft.hooks_core.messages import must_be
from camshaft.strategies import CheckpointError

EXTENSION = ".ckpt"


def read_requested(trainer: Any, ckpt_path: str | os.PathLike[str] | None, verb: str) -> dict[str, Any] | None:
    """Read the checkpoint that a verb was asked to start from.

    Args:
        trainer: The trainer.
        ckpt_path: A path; "best", the best that the trainer's checkpoint callback kept; "last", the newest readable
            one in the directories of its checkpoint callbacks; None for none.
        verb: The verb, for errors.

    Returns:
        The checkpoint; None if none was asked for, or "last" was and there is none yet.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If "best" is asked for and nothing was saved.
        CheckpointError: If the file is damaged; a note names the newest one beside it that can be read.
    """
    if ckpt_path is None:
        return None
    if ckpt_path == "last":
        return _read_last(trainer, verb)
    if ckpt_path == "best":
        ckpt_path = _best(trainer, verb)
    path = os.fspath(ckpt_path)
    try:
        return _read(trainer, path)
    except CheckpointError as error:
        for other in _newest_first(Path(path).parent.glob(f"*{EXTENSION}")):
            if not os.path.samefile(other, path) and _is_readable(trainer, other):
                error.add_note(f"The newest readable checkpoint beside it is {str(other)!r}.")
                break
        raise


def _best(trainer: Any, verb: str) -> str:
    callback = trainer.checkpoint_callback
    if callback is None or not callback.best_model_path:
        action = f"Fit with a ModelCheckpoint first, or give {verb} a path."
        raise ValueError(must_be("ckpt_path", "a path, as no checkpoint was saved yet", "best", verb, action))
    return str(callback.best_model_path)


def _read_last(trainer: Any, verb: str) -> dict[str, Any] | None:
    for path in _newest_first(_saved_by(trainer)):
        try:
            return _read(trainer, str(path))
        except CheckpointError as error:
            warnings.warn(f"{error} Trying the one before.", stacklevel=4)
    warnings.warn(f"There is no checkpoint to go on from yet: {verb} starts without.", stacklevel=4)
    return None


def _saved_by(trainer: Any) -> Iterator[Path]:
    """Every checkpoint in the directories where the trainer's callbacks save."""
    for callback in trainer.callbacks:
        if not isinstance(callback, ModelCheckpoint):
            continue
        if callback.dirpath is not None:
            yield from Path(callback.dirpath).glob(f"*{EXTENSION}")
        else:
            yield from Path(trainer.default_root_dir).glob(f"**/checkpoints/*{EXTENSION}")


def _newest_first(paths: Iterator[Path]) -> list[Path]:
    return sorted(paths, key=lambda path: path.stat().st_mtime_ns, reverse=True)


def _is_readable(trainer: Any, path: Path) -> bool:
    try:
        _read(trainer, str(path))
    except CheckpointError:
        return False
    return True


def _read(trainer: Any, path: str) -> dict[str, Any]:
    checkpoint: dict[str, Any] = trainer.strategy.load_checkpoint(path)
    return checkpoint

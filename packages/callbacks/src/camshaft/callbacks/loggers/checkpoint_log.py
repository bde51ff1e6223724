"""Choice of the checkpoints that a logger copies to its run, with their metadata."""

from __future__ import annotations

import os
from abc import abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from camshaft.callbacks.arguments import check_local, check_one_of
from camshaft.callbacks.loggers.logger import Logger

if TYPE_CHECKING:
    from camshaft.callbacks.checkpoints.model_checkpoint import ModelCheckpoint

LogModel = bool | Literal["all"]
"""Checkpoints to log: none, those that are kept when a verb ends, or "all" as they are saved."""

_ARGUMENTS = (
    "monitor",
    "mode",
    "save_last",
    "save_top_k",
    "save_weights_only",
    "every_n_train_steps",
    "every_n_epochs",
)


@dataclass(frozen=True)
class LoggedCheckpoint:
    """A checkpoint to log.

    Args:
        path: The file or folder.
        name: Path relative to the folder of the checkpoints, without extension, with "/".
        aliases: "latest"; "best", with a `monitor`, and "last" if they apply.
        metadata: Score, file name and the callback's arguments, as plain values.
    """

    path: Path
    name: str
    aliases: tuple[str, ...]
    metadata: dict[str, Any]


class CheckpointLogger(Logger):
    """Base class of loggers that log checkpoints of `ModelCheckpoint`s, each once.

    A file that was written anew is another checkpoint; two names of the same data, such as "last", are one.

    Args:
        log_model: Checkpoints to log.

    Raises:
        InvalidArgumentError: If `log_model` is no such choice.
    """

    def __init__(self, log_model: LogModel) -> None:
        super().__init__()
        check_one_of(self, (True, False, "all"), log_model=log_model)
        self._log_model = log_model
        self._callbacks: list[ModelCheckpoint] = []
        self._logged: set[tuple[int, ...]] = set()

    @abstractmethod
    def _log_checkpoint(self, checkpoint: LoggedCheckpoint) -> None:
        """Log a checkpoint."""

    def after_save_checkpoint(self, checkpoint_callback: ModelCheckpoint) -> None:
        """Log the checkpoint that has become durable if it is to be logged now, else at the end."""
        if not self._log_model:
            return
        check_local("dirpath", checkpoint_callback.saved_path, type(checkpoint_callback).__name__)
        if not any(checkpoint_callback is known for known in self._callbacks):
            self._callbacks.append(checkpoint_callback)
        if self._log_model == "all" or checkpoint_callback.save_top_k == -1:
            self._log_new(checkpoint_callback, [checkpoint_callback.saved_path])

    def _log_kept(self) -> None:
        """Log the kept checkpoints that are not logged yet, oldest first of each callback."""
        for callback in self._callbacks:
            self._log_new(callback, [*callback.kept_paths, callback.best_model_path, callback.last_model_path])

    def _log_new(self, callback: ModelCheckpoint, paths: list[str]) -> None:
        found: dict[str, tuple[int, ...]] = {}
        for path in paths:
            with suppress(FileNotFoundError):  # "" for none, or removed meanwhile
                status = os.stat(path)
                identity = (status.st_mtime_ns, status.st_dev, status.st_ino)
                if identity not in self._logged:
                    self._logged.add(identity)
                    found[path] = identity
        for path in sorted(found, key=lambda path: found[path][0]):
            self._log_checkpoint(_describe(callback, Path(path)))

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the callbacks, which belong to this process's trainer."""
        return {**vars(self), "_callbacks": []}


def _describe(callback: ModelCheckpoint, path: Path) -> LoggedCheckpoint:
    score = callback.best_k_models.get(str(path), callback.current_score)
    # Without a monitor the newest is called the best; it must not take that alias from a ranked one.
    best = "" if callback.monitor is None else callback.best_model_path
    places = {"best": best, "last": callback.last_model_path}
    aliases = ("latest", *(alias for alias, place in places.items() if _is_same_file(place, path)))
    metadata = {
        "score": None if score is None else float(score),
        "original_filename": path.name,
        type(callback).__name__: {name: getattr(callback, name) for name in _ARGUMENTS},
    }
    name = Path(os.path.relpath(path, callback.dirpath)).with_suffix("")
    return LoggedCheckpoint(path, name.as_posix(), aliases, metadata)


def _is_same_file(place: str, path: Path) -> bool:
    return os.path.exists(place) and os.path.samefile(place, path)

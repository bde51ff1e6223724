"""Callback that saves a checkpoint when an exception ends training."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, ClassVar

from camshaft.callbacks.arguments import check_file_name
from camshaft.callbacks.checkpoints.files import can_save_alone
from camshaft.callbacks.checkpoints.names import absolute_folder
from camshaft.hooks_core import Callback
from camshaft.hooks_core.support.remote_files import join

if TYPE_CHECKING:
    from camshaft.hooks_core.protocols import TrainerProtocol


class OnExceptionCheckpoint(Callback):
    """Saves a checkpoint when an exception, `KeyboardInterrupt` too, ends training.

    A run that is resumed from a checkpoint of the middle of a batch continues with the next batch, with a warning.
    Nothing is saved outside fit, before training has begun, in the sanity check or with `fast_dev_run`. With several
    processes nothing is saved, since they can only save together and the others may not have failed: each rank that
    raised warns, and waits for no other.

    Args:
        dirpath: Folder of the checkpoint, or its URL.
        filename: Its name without extension; a file of this name is replaced.

    Raises:
        InvalidArgumentError: If `filename` is empty or has a folder in it, or nothing can be written to `dirpath`.
    """

    only_observes = True
    FILE_EXTENSION: ClassVar[str] = ".ckpt"

    def __init__(self, dirpath: str | os.PathLike[str], filename: str = "on_exception") -> None:
        super().__init__()
        self.dirpath = absolute_folder(dirpath, self)
        check_file_name(self, filename)
        self.filename = filename
        self._is_training = False

    @property
    def ckpt_path(self) -> str:
        """Path of the checkpoint."""
        return join(self.dirpath, self.filename + self.FILE_EXTENSION)

    def on_train_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Save from here on."""
        self._is_training = not trainer.fast_dev_run

    def on_exception(self, trainer: TrainerProtocol, module: Any, exception: BaseException) -> None:
        """Save, if this is the only process."""
        if self._is_training and can_save_alone(trainer, exception, type(self).__name__):
            trainer.save_checkpoint(self.ckpt_path)

    def teardown(self, trainer: TrainerProtocol, module: Any, stage: str) -> None:
        """Save no more."""
        self._is_training = False

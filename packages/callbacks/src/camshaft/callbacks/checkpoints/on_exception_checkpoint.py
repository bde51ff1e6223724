"""A checkpoint of what an exception interrupted."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, ClassVar

from camshaft.callbacks.checkpoints.files import can_rescue
from camshaft.callbacks.checkpoints.names import checked_folder, checked_name
from camshaft.hooks_core import Callback

if TYPE_CHECKING:
    from camshaft.hooks_core.protocols import TrainerProtocol


class OnExceptionCheckpoint(Callback):
    """Saves a checkpoint when an exception, `KeyboardInterrupt` too, ends training.

    One from inside a batch goes on with the next one, with a warning. Nothing is saved outside fit, before training has
    begun, in the sanity check or with `fast_dev_run`. Several processes save nothing, since they can only save together
    and the others may not have failed: it warns on each rank that raised, and waits for nobody.

    Args:
        dirpath: Folder of the checkpoint.
        filename: Its name without extension; a file of this name is replaced.

    Raises:
        InvalidArgumentError: If `filename` is empty or has a folder in it, or `dirpath` is no local folder.
    """

    FILE_EXTENSION: ClassVar[str] = ".ckpt"

    def __init__(self, dirpath: str | os.PathLike[str], filename: str = "on_exception") -> None:
        where = type(self).__name__
        self.dirpath = checked_folder(dirpath, where)
        self.filename = checked_name(filename, where)
        self._is_training = False

    @property
    def ckpt_path(self) -> str:
        """Path of the checkpoint."""
        return os.path.join(self.dirpath, self.filename + self.FILE_EXTENSION)

    def on_train_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """From here on there is something to save."""
        self._is_training = not trainer.fast_dev_run

    def on_exception(self, trainer: TrainerProtocol, module: Any, exception: BaseException) -> None:
        """Save, if this process trains alone."""
        if self._is_training and can_rescue(trainer, exception, type(self).__name__):
            trainer.save_checkpoint(self.ckpt_path)

    def teardown(self, trainer: TrainerProtocol, module: Any, stage: str) -> None:
        """From here on there is nothing any more."""
        self._is_training = False

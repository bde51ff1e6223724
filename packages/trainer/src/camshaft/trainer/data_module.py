"""The base class of users' data modules: download, split, loaders."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, ClassVar, Self

from camshaft.hooks_core import CheckpointHooks, DataHooks
from camshaft.trainer.checkpoints import CheckpointFormat
from camshaft.trainer.hyperparameters import HyperparametersMixin

if TYPE_CHECKING:
    import torch

    from camshaft.trainer.trainer import Trainer


class DataModule(HyperparametersMixin, DataHooks, CheckpointHooks):
    """Loaders and their data, for any module.

    Override the methods that your verbs need: `prepare_data` (once, on one process: download), `setup` (on every
    process: split, transform), `train_dataloader`, `val_dataloader`, `test_dataloader`, `predict_dataloader`,
    `teardown`, the transfer hooks, and `state_dict` with `load_state_dict` if it has a state that a resumed run needs.

    Attributes:
        checkpoint_formats: Formats of others that `load_from_checkpoint` reads, beside ours.
    """

    __hook_base__: ClassVar[bool] = True

    checkpoint_formats: ClassVar[tuple[CheckpointFormat, ...]] = ()

    _trainer: Trainer | None = None

    @property
    def trainer(self) -> Any:
        """The trainer of the current or last verb, or one that was assigned; None before."""
        return self._trainer

    @trainer.setter
    def trainer(self, trainer: Any) -> None:
        self._trainer = trainer

    @trainer.deleter
    def trainer(self) -> None:
        self._trainer = None

    @classmethod
    def load_from_checkpoint(
        cls,
        checkpoint_path: str | os.PathLike[str],
        map_location: torch.device | str | None = None,
        hparams_file: str | os.PathLike[str] | None = None,
        weights_only: bool | None = None,
        **kwargs: Any,
    ) -> Self:
        """Build a data module from a checkpoint: with the hyperparameters and the state that are saved in it.

        Args:
            checkpoint_path: The checkpoint: a file, or the directory of one whose state was sharded.
            map_location: Device of the tensors; None means the CPU.
            hparams_file: A file in YAML or CSV whose values take the place of the hyperparameters.
            weights_only: False unpickles the objects in the file, which may run any code: pass it for files that you
                trust.
            kwargs: Arguments of `__init__`, before those that were saved. One that `__init__` does not take is left
                out, with a warning.

        Raises:
            FileNotFoundError: If there is no such checkpoint.
            CheckpointError: If it cannot be read.
            TypeError: If `__init__` takes other arguments; or takes some that the checkpoint keeps as objects, and that
                are not passed.
        """
        from camshaft.trainer.load_from_checkpoint import rebuild_data_module  # rarely needed

        return rebuild_data_module(cls, checkpoint_path, map_location, weights_only, hparams_file, kwargs)

    def on_exception(self, exception: BaseException) -> None:
        """Handle an error of a verb, before `teardown`."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state for checkpoints: tensors and plain values. Empty by default."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned; called only if a checkpoint holds it."""

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the trainer, for copies and pickles."""
        state = dict(self.__dict__)
        state.pop("_trainer", None)
        return state

"""Data in one place: downloading, splitting, loaders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from camshaft.hooks_core import CheckpointHooks, DataHooks
from camshaft.hooks_core.messages import must_be
from camshaft.trainer.earlier.hooks import EarlierDataHooks
from camshaft.trainer.hyperparameters import HyperparametersMixin

if TYPE_CHECKING:
    from camshaft.trainer.trainer import Trainer


class DataModule(HyperparametersMixin, EarlierDataHooks, DataHooks, CheckpointHooks):
    """Loaders, and what they need, for any module.

    Override what the verbs at hand need: `prepare_data` (once, on one process: download), `setup` (on every process:
    split, transform), `train_dataloader`, `val_dataloader`, `test_dataloader`, `predict_dataloader`, `teardown`, the
    transfer hooks, and `state_dict` with `load_state_dict` if it has a state that a resumed run needs.
    """

    __hook_base__: ClassVar[bool] = True

    _trainer: Trainer | None = None

    @property
    def trainer(self) -> Trainer:
        """The trainer of the current or last verb.

        Raises:
            RuntimeError: If no trainer has run with this data module.
        """
        if self._trainer is None:
            action = "Pass the data module to a verb of a trainer first."
            raise RuntimeError(must_be("trainer", "attached", None, type(self).__qualname__, action))
        return self._trainer

    def on_exception(self, exception: BaseException) -> None:
        """When anything raises during a verb, before `teardown`."""

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps of the data module: tensors and plain values. Nothing by default."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take back what `state_dict` returned; called only if a checkpoint holds it."""

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles leave the trainer behind."""
        state = dict(self.__dict__)
        state.pop("_trainer", None)
        return state


def attach_data_module(data: DataModule, trainer: Trainer) -> None:
    """Let a data module know the trainer that it works for."""
    data._trainer = trainer

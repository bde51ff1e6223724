"""Writing predictions: the base of whoever does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import torch

from camshaft.callbacks.errors import InvalidArgumentError
from camshaft.callbacks.predictions.prediction_indices import BatchIndices
from camshaft.hooks_core import Callback
from camshaft.hooks_core.transfer import move_to_device

if TYPE_CHECKING:
    from camshaft.hooks_core.protocols import TrainerProtocol

WriteInterval = Literal["batch", "epoch", "batch_and_epoch"]


class BasePredictionWriter(Callback):
    """Hands predictions to whoever writes them: a subclass overrides one or both of the `write_on` methods.

    Each process hands over the predictions of its own batches. With `return_predictions=False`, and batches alone, a
    prediction of any length takes the memory of one batch.

    Args:
        write_interval: When to write: after each "batch", after the "epoch" with all that was predicted in it, which is
            then kept in the host's memory, or at both times.

    Raises:
        InvalidArgumentError: If `write_interval` is none of these; in `setup`, if the method for it is not overridden.
    """

    _notes_drawn_orders: ClassVar[bool] = True

    def __init__(self, write_interval: WriteInterval = "batch") -> None:
        if write_interval not in get_args(WriteInterval):
            rule = "'batch', 'epoch' or 'batch_and_epoch'"
            where = type(self).__name__
            raise InvalidArgumentError("write_interval", rule, write_interval, where, "Say when to write.")
        self.write_interval = write_interval
        self._indices: list[BatchIndices] = []  # by loader
        self._predictions: list[list[Any]] = []
        self._batch_indices: list[list[list[int] | None]] = []

    def write_on_batch_end(
        self,
        trainer: TrainerProtocol,
        module: Any,
        prediction: Any,
        batch_indices: Sequence[int] | None,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int,
    ) -> None:
        """Write the prediction of one batch.

        Args:
            trainer: The trainer.
            module: The module.
            prediction: What `predict_step` returned, on its device.
            batch_indices: Indices in the dataset of the batch's samples; None where they cannot be known, as when the
                loader reads a stream. See `BatchIndices`.
            batch: The batch.
            batch_idx: Its index among this process's batches of the loader.
            dataloader_idx: Index of the loader.
        """
        raise NotImplementedError(f"{type(self).__qualname__} must define `write_on_batch_end`.")

    def write_on_epoch_end(
        self, trainer: TrainerProtocol, module: Any, predictions: Sequence[Any], batch_indices: Sequence[Any]
    ) -> None:
        """Write the predictions of all batches.

        Args:
            trainer: The trainer.
            module: The module.
            predictions: On the CPU: an item for each batch of this process; a list of such lists for several loaders.
            batch_indices: What `write_on_batch_end` gets for each batch: a list for each loader, also for a single one.
        """
        raise NotImplementedError(f"{type(self).__qualname__} must define `write_on_epoch_end`.")

    def setup(self, trainer: TrainerProtocol, module: Any, stage: str) -> None:
        """Check that there is a method for each time."""
        if stage != "predict":
            return
        for interval in ("batch", "epoch"):
            name = f"write_on_{interval}_end"
            if interval in self.write_interval and getattr(type(self), name) is getattr(BasePredictionWriter, name):
                rule = f"a time for which {type(self).__qualname__} defines a method"
                action = f"Define `{name}`, or pass another interval."
                where = type(self).__name__
                raise InvalidArgumentError("write_interval", rule, self.write_interval, where, action)

    def on_predict_epoch_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Forget what an earlier prediction left, and follow the loaders' samplers."""
        self._stop_following()
        loaders = _flat(getattr(trainer, "predict_dataloaders", None))
        self._indices = [BatchIndices(loader, notes_drawn_orders=self._notes_drawn_orders) for loader in loaders]
        self._predictions = [[] for _ in trainer.num_predict_batches]
        self._batch_indices = [[] for _ in trainer.num_predict_batches]

    def on_predict_batch_end(
        self, trainer: TrainerProtocol, module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Write a batch, or keep it."""
        known = self._indices
        indices = known[dataloader_idx].of(batch_idx) if dataloader_idx < len(known) else None
        if "batch" in self.write_interval:
            self.write_on_batch_end(trainer, module, outputs, indices, batch, batch_idx, dataloader_idx)
        if "epoch" in self.write_interval:
            self._predictions[dataloader_idx].append(move_to_device(outputs, torch.device("cpu")))
            self._batch_indices[dataloader_idx].append(indices)

    def on_predict_epoch_end(self, trainer: TrainerProtocol, module: Any) -> None:
        """Write all that was kept."""
        predictions, self._predictions = self._predictions, []
        batch_indices, self._batch_indices = self._batch_indices, []
        self._stop_following()
        if "epoch" in self.write_interval:
            self.write_on_epoch_end(
                trainer, module, predictions[0] if len(predictions) == 1 else predictions, batch_indices
            )

    def teardown(self, trainer: TrainerProtocol, module: Any, stage: str) -> None:
        """Give the loaders their samplers back, if prediction did not come to its end."""
        self._stop_following()

    def _stop_following(self) -> None:
        followed, self._indices = self._indices, []
        for indices in followed:
            indices.close()


def _flat(loaders: Any) -> list[Any]:
    """Return a loader, or those of a nested collection, in the order in which they are read."""
    if isinstance(loaders, Mapping):
        loaders = list(loaders.values())
    if isinstance(loaders, (list, tuple)):
        return [leaf for item in loaders for leaf in _flat(item)]
    return [loaders]

"""Base class of callbacks that write predictions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Any, ClassVar, Literal

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset, SequentialSampler

from camshaft.callbacks.arguments import InvalidArgumentError, check_one_of
from camshaft.hooks_core import Callback
from camshaft.hooks_core.protocols import TrainerProtocol
from camshaft.hooks_core.support.transfer import move_to_device

_ACTION = "Override it, and do not call the base class's."


class WriteInterval(StrEnum):
    """When a prediction writer writes: after each batch, after the epoch, or at both times."""

    BATCH = "batch"
    EPOCH = "epoch"
    BATCH_AND_EPOCH = "batch_and_epoch"

    @property
    def on_batch(self) -> bool:
        """True if it writes after each batch."""
        return self is not WriteInterval.EPOCH

    @property
    def on_epoch(self) -> bool:
        """True if it writes after the epoch."""
        return self is not WriteInterval.BATCH


class BasePredictionWriter(Callback):
    """Writes predictions by the `write_on` methods, of which a subclass overrides one or both.

    Each process writes the predictions of its own batches. With `return_predictions=False` and "batch", a prediction of
    any length needs the memory of one batch.

    Args:
        write_interval: When to write: after each "batch", after the "epoch" with all its predictions, which are kept in
            the host's memory, or at both times ("batch_and_epoch").

    Attributes:
        interval: The same, as a `WriteInterval`.

    Raises:
        InvalidArgumentError: If `write_interval` is none of these; in `setup`, if the method for it is not overridden.
    """

    only_observes = True
    _records_drawn_orders: ClassVar[bool] = True

    def __init__(self, write_interval: Literal["batch", "epoch", "batch_and_epoch"] = "batch") -> None:
        check_one_of(self, [one.value for one in WriteInterval], write_interval=write_interval)
        self.interval = WriteInterval(write_interval)
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
        """Write the module's prediction of one batch.

        Args:
            prediction: What `predict_step` returned, on its device.
            batch_indices: Dataset indices of the batch's samples; None if unknown, as when the loader reads a stream.
                See `BatchIndices`.
            batch_idx: Index of the batch in this process's pass over the loader.
            dataloader_idx: Index of the loader.
        """
        raise NotImplementedError(f"{type(self).__qualname__}.write_on_batch_end is not implemented. {_ACTION}")

    def write_on_epoch_end(
        self, trainer: TrainerProtocol, module: Any, predictions: Sequence[Any], batch_indices: Sequence[Any]
    ) -> None:
        """Write the module's predictions of all batches.

        Args:
            predictions: On the CPU: an item for each batch of this process; a list of such lists for several loaders.
            batch_indices: The `batch_indices` of each batch: a list for each loader, also for a single one.
        """
        raise NotImplementedError(f"{type(self).__qualname__}.write_on_epoch_end is not implemented. {_ACTION}")

    def setup(self, trainer: TrainerProtocol, module: Any, stage: str) -> None:
        """Check that the method for `write_interval` is overridden."""
        if stage != "predict":
            return
        for interval in ("batch", "epoch"):
            name = f"write_on_{interval}_end"
            is_defined = getattr(type(self), name) is not getattr(BasePredictionWriter, name)
            if getattr(self.interval, f"on_{interval}") and not is_defined:
                rule = f"an interval whose method {type(self).__qualname__} implements"
                action = f"Define `{name}`, or pass another interval."
                raise InvalidArgumentError("write_interval", rule, self.interval.value, self, action)

    def on_predict_epoch_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Reset, and follow the loaders' samplers."""
        self._stop_following()
        loaders = tree_leaves(getattr(trainer, "predict_dataloaders", None))
        self._indices = [BatchIndices(loader, records_drawn_orders=self._records_drawn_orders) for loader in loaders]
        self._predictions = [[] for _ in trainer.num_predict_batches]
        self._batch_indices = [[] for _ in trainer.num_predict_batches]
        loop = getattr(trainer, "predict_loop", None)
        if loop is not None and self.interval.on_epoch:
            loop.epoch_batch_indices = self._batch_indices  # for subclasses that read them there

    def on_predict_batch_end(
        self, trainer: TrainerProtocol, module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Write a batch, or keep it."""
        known = self._indices
        indices = known[dataloader_idx].of(batch_idx) if dataloader_idx < len(known) else None
        if self.interval.on_batch:
            self.write_on_batch_end(trainer, module, outputs, indices, batch, batch_idx, dataloader_idx)
        if self.interval.on_epoch:
            self._predictions[dataloader_idx].append(move_to_device(outputs, torch.device("cpu")))
            self._batch_indices[dataloader_idx].append(indices)

    def on_predict_epoch_end(self, trainer: TrainerProtocol, module: Any) -> None:
        """Write all predictions that were kept."""
        predictions, self._predictions = self._predictions, []
        batch_indices, self._batch_indices = self._batch_indices, []
        self._stop_following()
        if self.interval.on_epoch:
            given = predictions[0] if len(predictions) == 1 else predictions
            self.write_on_epoch_end(trainer, module, given, batch_indices)

    def teardown(self, trainer: TrainerProtocol, module: Any, stage: str) -> None:
        """Restore the loaders' samplers, if prediction was interrupted."""
        self._stop_following()

    def _stop_following(self) -> None:
        followed, self._indices = self._indices, []
        for indices in followed:
            indices.close()


class BatchIndices:
    """Dataset indices of the samples in a loader's batches, found through its sampler.

    A fixed order is read a second time beside the loader: that of sequential samplers, lists, tuples, ranges, batches
    of these, torch's `DistributedSampler`, and samplers with an attribute `draws` that is false, such as this process's
    share of a fixed order. Reading any other order would draw its random numbers twice, so the loader's own reading is
    recorded: until `close`, its sampler is wrapped. The indices are unknown for streams, loaders other than
    `DataLoader`, this process's share of an order that draws, and persistent workers of a previous pass.

    Args:
        loader: The loader of this process, before it is read.
        records_drawn_orders: Whether to wrap the sampler of an order that is not fixed; otherwise its indices are
            unknown.
    """

    def __init__(self, loader: Any, *, records_drawn_orders: bool = True) -> None:
        self._batches: Iterator[Any] | None = None
        self._recorded: _RecordedOrder | None = None
        self._next_batch_idx = 0
        self._loader = loader
        if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
            return
        self._attribute = "sampler" if loader.batch_sampler is None else "batch_sampler"
        order: Any = getattr(loader, self._attribute)
        if _is_fixed(order):
            self._batches = iter(order)
        elif records_drawn_orders and not hasattr(order, "draws"):
            self._recorded = _RecordedOrder(order)
            vars(loader)[self._attribute] = self._recorded  # `DataLoader.__setattr__` refuses that

    def of(self, batch_idx: int) -> list[int] | None:
        """Return the indices of a batch's samples, in order; None if unknown. To be called for batches in order."""
        indices: Any = None
        if self._recorded is not None:
            indices = self._recorded.batches.pop(batch_idx, None)
        elif self._batches is not None:
            while self._next_batch_idx <= batch_idx:
                indices = next(self._batches, None)
                self._next_batch_idx += 1
        if indices is None:
            return None
        try:
            return [int(index) for index in (indices if isinstance(indices, (list, tuple)) else [indices])]
        except (TypeError, ValueError):
            return None  # keys that are no ints

    def close(self) -> None:
        """Restore the loader's sampler."""
        recorded, self._recorded = self._recorded, None
        if recorded is None:
            return
        attributes = vars(self._loader)
        outer = attributes[self._attribute]
        if outer is recorded:
            attributes[self._attribute] = recorded.order
            return
        while isinstance(outer, _RecordedOrder):  # of another writer, around this one
            if outer.order is recorded:
                outer.order = recorded.order
            outer = outer.order


class _RecordedOrder:
    """An order of samples or batches that records what was read of it, by the index of the batch."""

    def __init__(self, order: Any) -> None:
        self.order = order
        self.batches: dict[int, Any] = {}

    def __iter__(self) -> Iterator[Any]:
        self.batches = {}
        for batch_idx, indices in enumerate(self.order):
            self.batches[batch_idx] = indices
            yield indices

    def __len__(self) -> int:
        return len(self.order)

    def __getattr__(self, name: str) -> Any:
        if name == "order":  # while a copy is made
            raise AttributeError(name)
        return getattr(self.order, name)


def _is_fixed(order: Any) -> bool:
    if type(order) is BatchSampler:
        return _is_fixed(order.sampler)
    fixed = (SequentialSampler, DistributedSampler, list, tuple, range)
    return type(order) in fixed or getattr(order, "draws", None) is False

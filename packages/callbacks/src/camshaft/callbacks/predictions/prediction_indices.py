"""Which samples of the dataset a batch of prediction holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset, SequentialSampler


class BatchIndices:
    """Follows a loader's batches through its sampler, where reading that changes nothing.

    That is so for samplers with a fixed order (sequential ones, lists, tuples, ranges, batches of these, and those that
    say so by an attribute `draws` that is false, as this process's share of such a sampler does), and for torch's
    `DistributedSampler`. What shuffles draws random numbers, and what reads a stream has no indices: there, and for
    loaders that are no `DataLoader`, the samples are not known.

    Args:
        loader: The loader of this process.
    """

    def __init__(self, loader: Any) -> None:
        self._batches = _indices_of(loader)
        self._next_batch_idx = 0

    def of(self, batch_idx: int) -> list[int] | None:
        """The indices of a batch's samples, in their order; None if they are not known. Ask for batches in order."""
        if self._batches is None:
            return None
        indices: Any = None
        while self._next_batch_idx <= batch_idx:
            indices = next(self._batches, None)
            self._next_batch_idx += 1
        if indices is None:
            return None
        try:
            return [int(index) for index in (indices if isinstance(indices, (list, tuple)) else [indices])]
        except (TypeError, ValueError):
            return None  # keys of another kind


def _indices_of(loader: Any) -> Iterator[Any] | None:
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return None
    order: Any = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    return iter(order) if _is_fixed(order) else None


def _is_fixed(order: Any) -> bool:
    if type(order) is BatchSampler:
        return _is_fixed(order.sampler)
    fixed = (SequentialSampler, DistributedSampler, list, tuple, range)
    return type(order) in fixed or getattr(order, "draws", None) is False

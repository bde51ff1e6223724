"""Which samples of the dataset a batch of prediction holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset, SequentialSampler


class BatchIndices:
    """Follows a loader's batches through its sampler.

    A fixed order is read beside the loader: that of sequential samplers, lists, tuples, ranges, batches of these,
    torch's `DistributedSampler`, and samplers that say so by an attribute `draws` that is false, as this process's
    share of such a sampler does. Reading any other order would draw its random numbers twice, so what the loader itself
    reads is noted: until `close`, its sampler is wrapped. The samples are not known of streams, of loaders that are no
    `DataLoader`, of this process's share of an order that draws, and where worker processes of an earlier pass go on.

    Args:
        loader: The loader of this process, before it is read.
        notes_drawn_orders: Whether to wrap the sampler of an order that is not fixed; otherwise its samples are not
            known.
    """

    def __init__(self, loader: Any, *, notes_drawn_orders: bool = True) -> None:
        self._batches: Iterator[Any] | None = None
        self._noted: _NotedOrder | None = None
        self._next_batch_idx = 0
        self._loader = loader
        if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
            return
        self._attribute = "sampler" if loader.batch_sampler is None else "batch_sampler"
        order: Any = getattr(loader, self._attribute)
        if _is_fixed(order):
            self._batches = iter(order)
        elif notes_drawn_orders and not hasattr(order, "draws"):
            self._noted = _NotedOrder(order)
            vars(loader)[self._attribute] = self._noted  # past `DataLoader.__setattr__`, which lets nobody replace it

    def of(self, batch_idx: int) -> list[int] | None:
        """Return the indices of a batch's samples, in their order; None if not known. Ask for batches in order."""
        indices: Any = None
        if self._noted is not None:
            indices = self._noted.batches.pop(batch_idx, None)
        elif self._batches is not None:
            while self._next_batch_idx <= batch_idx:
                indices = next(self._batches, None)
                self._next_batch_idx += 1
        if indices is None:
            return None
        try:
            return [int(index) for index in (indices if isinstance(indices, (list, tuple)) else [indices])]
        except (TypeError, ValueError):
            return None  # keys of another kind

    def close(self) -> None:
        """Give the loader its sampler back."""
        noted, self._noted = self._noted, None
        if noted is None:
            return
        attributes = vars(self._loader)
        outer = attributes[self._attribute]
        if outer is noted:
            attributes[self._attribute] = noted.order
            return
        while isinstance(outer, _NotedOrder):  # another writer's, around this one
            if outer.order is noted:
                outer.order = noted.order
            outer = outer.order


class _NotedOrder:
    """An order of samples or batches that remembers what was read of it, by the batch's index."""

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

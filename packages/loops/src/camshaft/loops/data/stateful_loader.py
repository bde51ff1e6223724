"""Plain data loaders as torchdata's stateful ones."""

from __future__ import annotations

import sys
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset

from camshaft.loops.data.combined_loader import (
    copy_loader,
    has_state,
    is_plain,
    is_stream,
    kind_to_copy,
    order_of,
    samplers_of,
)
from camshaft.loops.data.samplers import ReplayedSampler, has_fixed_order, stateful_samplers
from camshaft.loops.state.random_state import generators_of, random_state, restore_random_state


def is_converted(loader: object) -> bool:
    """Return whether a loader is read through a stateful one, rather than as it is."""
    return (is_plain(loader) and not is_stateless_stream(loader)) or _fast_forwards(loader)


def is_stateless_stream(loader: object) -> bool:
    """Return whether a loader reads an `IterableDataset` without state, as torch's or torchdata's loaders do.

    torchdata's would read and drop batches as well, but count them twice.
    """
    if not is_stream(loader) or has_state(loader.dataset):  # type: ignore[attr-defined]
        return False
    torchdata = sys.modules.get("torchdata.stateful_dataloader")
    own = getattr(type(loader), "state_dict", None)
    return own is None or (torchdata is not None and own is torchdata.StatefulDataLoader.state_dict)


def _fast_forwards(loader: object) -> bool:
    """Return whether a loader of torchdata would begin its sampler anew and skip what was used, from other numbers."""
    torchdata = sys.modules.get("torchdata.stateful_dataloader")
    if torchdata is None or kind_to_copy(loader) is not torchdata.StatefulDataLoader or is_stream(loader):
        return False
    order = order_of(loader)  # type: ignore[arg-type]
    if order is not None and has_fixed_order(order["sampler"]):
        return False
    kept = (torchdata.sampler.RandomSampler, ReplayedSampler)
    return not any(isinstance(one, kept) or has_state(one) for one in samplers_of(loader))


_NUM_STEPS_BETWEEN_SNAPSHOTS = 16  # of worker processes; a resumed run reads up to this number of batches again


def to_stateful(loader: DataLoader[Any]) -> Any:
    """Return torchdata's `StatefulDataLoader` with the same batches from the same random numbers as a plain loader."""
    from torchdata.stateful_dataloader import StatefulDataLoader  # costs an import that few programs need

    changes: dict[str, Any] = _order_of(loader)
    dataset: Any = loader.dataset
    if loader.num_workers > 0:
        changes["snapshot_every_n_steps"] = _NUM_STEPS_BETWEEN_SNAPSHOTS
    if not isinstance(dataset, IterableDataset):
        # torchdata would call methods of these names that take other arguments
        if loader.num_workers > 0 or (hasattr(dataset, "state_dict") and not has_state(dataset)):
            changes["dataset"] = _WorkerDataset(dataset)
    elif loader.num_workers > 0 and has_state(dataset):
        changes["dataset"] = _WorkerStream(dataset)
    return copy_loader(loader, StatefulDataLoader, **changes)


def carries_state(loader: DataLoader[Any]) -> bool:
    """Return whether a loader carries more than random numbers of the main process from one epoch to the next."""
    parts = [*samplers_of(loader), *([] if loader.num_workers else [loader.dataset])]
    return (loader.num_workers > 0 and loader.persistent_workers) or any(map(has_state, parts))


def _order_of(loader: DataLoader[Any]) -> dict[str, Any]:
    """Return the arguments by which a stateful loader reads in the order of a plain one."""
    if is_stream(loader):
        return {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    sampler, batch_sampler = loader.sampler, loader.batch_sampler
    generators = generators_of(loader)
    parts = stateful_samplers(loader)
    stateful = {id(part) for part in parts}
    if id(sampler) in stateful and type(batch_sampler) is BatchSampler:
        return {"batch_size": loader.batch_size, "drop_last": loader.drop_last, "sampler": sampler}
    own = sampler if batch_sampler is None else batch_sampler
    own = own if id(own) in stateful else ReplayedSampler(own, generators, parts)
    return {"batch_size": None, "sampler": own} if batch_sampler is None else {"batch_sampler": own}


class DatasetInPlace(Dataset[Any]):
    """A dataset in the place of another one, whose attributes it has.

    So code in a worker which looks for its dataset finds it.
    """

    def __init__(self, dataset: Any, **own: Any) -> None:
        vars(self).update(_dataset=dataset, **own)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_dataset":  # not there yet while unpickled
            raise AttributeError(name)
        return getattr(self._dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._dataset, name, value)


class _WorkerDataset(DatasetInPlace):
    """A dataset in a worker process, with the random numbers that it draws there as part of its state."""

    def __getitem__(self, index: Any) -> Any:
        return self._dataset[index]

    def __getattr__(self, name: str) -> Any:
        return self._dataset.__getitems__ if name == "__getitems__" else super().__getattr__(name)

    def __len__(self) -> int:
        return len(self._dataset)

    def state_dict(self) -> dict[str, Any]:
        return {"random": random_state(), "dataset": self._dataset.state_dict() if has_state(self._dataset) else None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if has_state(self._dataset):
            self._dataset.load_state_dict(state["dataset"])
        restore_random_state(state["random"])


class _WorkerStream(_WorkerDataset, IterableDataset[Any]):
    """A stream in a worker process, likewise."""

    def __iter__(self) -> Any:
        return iter(self._dataset)

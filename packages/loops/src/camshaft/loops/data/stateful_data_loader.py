"""torchdata's `StatefulDataLoader` in place of a plain `DataLoader`: the same batches from the same random numbers."""

from __future__ import annotations

from typing import Any

from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from camshaft.loops.data.combined_loader import copy_loader, has_state, is_stream, samplers_of
from camshaft.loops.data.samplers import ReplayedSampler
from camshaft.loops.state.random_state import generators_of, random_state, restore_random_state

_NUM_STEPS_BETWEEN_SNAPSHOTS = 16  # of worker processes; a resumed run reads up to this number of batches again


def to_stateful(loader: DataLoader[Any]) -> StatefulDataLoader[Any]:
    """Return a stateful loader that gives the batches of a plain one.

    Args:
        loader: A loader for which `is_plain` holds.
    """
    changes: dict[str, Any] = _order_of(loader)
    dataset: Any = loader.dataset
    if loader.num_workers > 0:
        changes["snapshot_every_n_steps"] = _NUM_STEPS_BETWEEN_SNAPSHOTS
        if not isinstance(dataset, IterableDataset):
            changes["dataset"] = _WorkerDataset(dataset)
        elif has_state(dataset):
            changes["dataset"] = _WorkerStream(dataset)
    return copy_loader(loader, StatefulDataLoader, **changes)


def carries_state(loader: DataLoader[Any]) -> bool:
    """Return whether a loader carries more than random numbers of the main process from one epoch to the next."""
    if loader.num_workers > 0 and loader.persistent_workers:
        return True
    parts = samplers_of(loader)
    if loader.num_workers == 0:
        parts.append(loader.dataset)
    return any(has_state(part) for part in parts)


def _order_of(loader: DataLoader[Any]) -> dict[str, Any]:
    """Return the arguments by which a stateful loader reads in the order of a plain one."""
    if is_stream(loader):
        return {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    sampler, batch_sampler = loader.sampler, loader.batch_sampler
    generators, parts = generators_of(loader), [part for part in samplers_of(loader) if has_state(part)]
    if batch_sampler is None:
        sampler = sampler if has_state(sampler) else ReplayedSampler(sampler, generators, parts)
        return {"batch_size": None, "sampler": sampler}
    if has_state(batch_sampler):
        return {"batch_sampler": batch_sampler}
    if has_state(sampler) and type(batch_sampler) is BatchSampler:
        return {"batch_size": loader.batch_size, "drop_last": loader.drop_last, "sampler": sampler}
    return {"batch_sampler": ReplayedSampler(batch_sampler, generators, parts)}


class _WorkerDataset(Dataset[Any]):
    """A dataset in a worker process, with the random numbers that it draws there as part of its state.

    Everything else is the dataset's own, so that code in a worker which looks for its dataset finds it.
    """

    def __init__(self, dataset: Any) -> None:
        object.__setattr__(self, "_dataset", dataset)

    def __getitem__(self, index: Any) -> Any:
        return self._dataset[index]

    def __len__(self) -> int:
        return len(self._dataset)

    def __getattr__(self, name: str) -> Any:
        if (name.startswith("__") and name != "__getitems__") or name == "_dataset":  # not there yet while unpickled
            raise AttributeError(name)
        return getattr(self._dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._dataset, name, value)

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

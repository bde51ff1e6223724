"""What kind of loader one is, and copies of data loaders with something changed."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

_Loader = TypeVar("_Loader", bound="DataLoader[Any]")

# What a loader is made of beside its dataset and the order in which it reads it.
_SETTINGS = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "persistent_workers",
    "in_order",
)


def is_loader(thing: object) -> bool:
    """Whether something can be a loader: an iterable of batches, neither a text nor a batch itself."""
    return isinstance(thing, Iterable) and not isinstance(thing, (str, bytes, Tensor))


def is_plain(loader: object) -> bool:
    """Whether a loader iterates as torch's `DataLoader` does, be it a subclass, so that a copy can stand in."""
    return isinstance(loader, DataLoader) and all(
        getattr(type(loader), name) is getattr(DataLoader, name) for name in ("__iter__", "_get_iterator")
    )


def is_stream(loader: object) -> bool:
    """Whether a loader reads an `IterableDataset`, whose length is an estimate at best."""
    return isinstance(loader, DataLoader) and isinstance(loader.dataset, IterableDataset)


def samplers_of(loader: object) -> list[Any]:
    """What a loader reads its dataset by, each once: its sampler, its batch sampler, and the samplers in these."""
    found: dict[int, Any] = {}

    def follow(owner: object) -> None:
        for name in ("sampler", "batch_sampler"):
            sampler = getattr(owner, name, None)
            if sampler is not None and id(sampler) not in found:
                found[id(sampler)] = sampler
                follow(sampler)

    follow(loader)
    return list(found.values())


def nodes_of(loader: object) -> list[Any]:
    """Return the nodes of a loader of torchdata's nodes, each once; none of any other loader."""
    nodes = sys.modules.get("torchdata.nodes")
    if nodes is None or not isinstance(loader, (nodes.Loader, nodes.BaseNode)):
        return []
    found: dict[int, Any] = {}

    def follow(part: object) -> None:
        if isinstance(part, Mapping):
            part = list(part.values())
        if isinstance(part, (list, tuple)):
            for item in part:
                follow(item)
        elif isinstance(part, nodes.BaseNode) and id(part) not in found:
            found[id(part)] = part
            follow(vars(part))

    follow(loader.root if isinstance(loader, nodes.Loader) else loader)
    return list(found.values())


def order_of(loader: DataLoader[Any]) -> dict[str, Any] | None:
    """By which sampler a loader reads, and how it makes batches of that; None if a batch sampler decides both."""
    batches = loader.batch_sampler
    if batches is None or loader.batch_size is not None:
        return {"sampler": loader.sampler, "batch_size": loader.batch_size, "drop_last": loader.drop_last}
    if type(batches) is BatchSampler:
        return {"sampler": batches.sampler, "batch_size": batches.batch_size, "drop_last": batches.drop_last}
    return None


def has_state(thing: object) -> bool:
    """Whether something has `state_dict` and `load_state_dict`."""
    return all(callable(getattr(thing, name, None)) for name in ("state_dict", "load_state_dict"))


def copy_loader(loader: DataLoader[Any], kind: type[_Loader], **changes: Any) -> _Loader:
    """A data loader of the given kind with the settings of another one.

    Args:
        loader: The loader to copy.
        kind: `DataLoader` or a class that takes the same arguments.
        changes: Arguments of the new one; they say in which order it reads its dataset, which is not copied.
    """
    settings = {name: getattr(loader, name) for name in _SETTINGS if hasattr(loader, name)}
    if loader.num_workers > 0:
        settings["prefetch_factor"] = loader.prefetch_factor
    if loader.pin_memory_device:
        settings["pin_memory_device"] = loader.pin_memory_device
    with warnings.catch_warnings():
        # what a user can do nothing about: the number of workers was theirs, the deprecated call is the library's
        warnings.simplefilter("ignore")
        return kind(**{"dataset": loader.dataset, **settings, **changes})

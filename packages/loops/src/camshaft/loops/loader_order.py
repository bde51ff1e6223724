"""Loaders without their shuffling, so that every epoch has the same batches."""

from __future__ import annotations

from typing import Any

from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
)

from camshaft.hooks_core.messages import must_be
from camshaft.hooks_core.user_warnings import warn_user
from camshaft.loops.combined_loader import CombinedLoader
from camshaft.loops.loader_copy import copy_loader, is_plain, is_stream, order_of


def in_order(loader: Any, stage: str) -> Any:
    """A loader that reads its dataset in order, in place of one whose sampler does not.

    A `SubsetRandomSampler` gives way to its indices in their order and a `DistributedSampler` to its share in order;
    any other sampler to the whole dataset in order. Everything else that a data loader is made of stays. A loader over
    an `IterableDataset`, or one that is no `DataLoader`, is taken as it is: it has no sampler to tell its order by.

    Args:
        loader: A loader, or a combination of several.
        stage: Whose loader it is, for messages.

    Raises:
        ValueError: If the order is decided by a batch sampler of the user's own, or it is to be changed in a loader
            that does not iterate as a `DataLoader` does.
    """
    if isinstance(loader, CombinedLoader):
        return loader.with_loaders(lambda leaf: in_order(leaf, stage))
    if not isinstance(loader, DataLoader) or is_stream(loader):
        return loader
    order = order_of(loader)
    ordered = None if order is None else _ordered(order["sampler"], loader.dataset)
    if order is not None and ordered is order["sampler"]:
        return loader
    if order is None or not is_plain(loader):
        rule = "one whose batches come in the dataset's order, or whose sampler can be replaced by that"
        action = (
            "Pass a DataLoader with shuffle=False, or limit_train_batches in place of overfit_batches if its batches "
            "are the same in every epoch."
        )
        raise ValueError(must_be(f"{stage} loader", rule, loader, "FitLoop(overfit_batches=...)", action))
    name = type(order["sampler"]).__name__
    warn_user(f"`overfit_batches` takes the same batches in every epoch: the {stage} loader's {name} is left out.")
    # not the loader's own class, whose arguments nobody knows
    return copy_loader(loader, DataLoader, **order | {"sampler": ordered})


def _ordered(sampler: Any, dataset: Any) -> Any:
    """The sampler itself if its order is always the same, else what to read by in its place."""
    if type(sampler) in (SequentialSampler, list, tuple, range):
        return sampler
    if type(sampler) is SubsetRandomSampler:
        return list(sampler.indices)
    if type(sampler) is not DistributedSampler:
        return SequentialSampler(dataset)
    if not sampler.shuffle:
        return sampler
    ordered: Sampler[int] = DistributedSampler(
        sampler.dataset,
        num_replicas=sampler.num_replicas,
        rank=sampler.rank,
        shuffle=False,
        seed=sampler.seed,
        drop_last=sampler.drop_last,
    )
    return ordered

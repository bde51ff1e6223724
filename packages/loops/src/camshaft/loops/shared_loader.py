"""One process's share of the data that a loader reads."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler

from camshaft.hooks_core.messages import must_be
from camshaft.hooks_core.protocols import Strategy
from camshaft.hooks_core.user_warnings import warn_user
from camshaft.loops.batches import count_batches, leaves_of
from camshaft.loops.combined_loader import CombinedLoader
from camshaft.loops.loader_copy import copy_loader, has_state, is_plain, is_stream, order_of, samplers_of
from camshaft.loops.random_state import generators_of
from camshaft.loops.replayed_sampler import ReplayedSampler
from camshaft.loops.shared_sampler import SharedSampler, numbers_of_first

_PLACES = (("num_replicas", "rank"), ("num_processes", "process_index"))
"""Attributes by which samplers tell that they give one process's share: torch's names, and Accelerate's."""

_ACTION = "Give every process its share yourself, as by a DistributedSampler, and pass use_distributed_sampler=False."


def share_out(loader: Any, strategy: Strategy, *, stage: str) -> Any:
    """A loader that reads this process's share of what a loader reads.

    Training is shared out by sample: process r of N takes each N-th sample of the order that the loader's sampler
    gives, beginning with the r-th. So the batches that the processes read at the same time are together what one
    process reads with N times the batch size. All processes have equally many batches: where the samples do not
    suffice, the first ones of the order are given again, or with `drop_last` the rest is left out, as it is on one
    process. The batches of a user's own batch sampler are shared out whole, and the first ones given again.

    Validation, test and prediction are shared out by batch: process r takes each N-th batch. Each sample counts once,
    in the batch in which it is on one process, and some processes have one batch more than others.

    What shuffles shuffles as on one process; see `SharedSampler`. A sampler that knows of several processes itself, as
    `DistributedSampler` does, is taken as it is. So are loaders over an `IterableDataset` and those that are no
    `DataLoader`: what they give to each process is up to the user.

    Args:
        loader: A loader, or a combination of several, each of which is shared out.
        strategy: Knows this process's place among those that share the data.
        stage: "train", "validate", "test" or "predict".

    Returns:
        The loader itself where there is nothing to share out; else a copy that reads another part of the same dataset.

    Raises:
        TypeError: If a sampler does not tell its length.
        ValueError: If a `DataLoader` iterates in a way of its own, so that nobody knows whether a sampler counts.
    """
    if strategy.num_data_ranks == 1:
        return loader
    if isinstance(loader, CombinedLoader):
        return loader.with_loaders(lambda leaf: share_out(leaf, strategy, stage=stage))
    if not isinstance(loader, DataLoader) or is_stream(loader):
        return loader
    if _knows_its_place(loader):
        _warn_of_padding(loader, stage)
        return loader
    kind = _kind_to_copy(loader)
    if kind is None:
        rule = f"one that iterates as a DataLoader does, to be shared out among {strategy.num_data_ranks} processes"
        raise ValueError(must_be(f"{stage} loader", rule, loader, "share_out", _ACTION))
    order = order_of(loader)
    by_sample = loader.batch_sampler is None or (stage == "train" and order is not None)
    if not by_sample:
        shared = _shared(loader, loader.batch_sampler, strategy, stage, drops=False)
        return _copy(loader, kind, batch_sampler=shared)
    assert order is not None
    sampler: Any = _shared(loader, order["sampler"], strategy, stage, drops=order["drop_last"])
    if stage == "train" and kind is not DataLoader:  # an own state: it is not turned into one that has
        sampler = ReplayedSampler(sampler, sampler.generators, _stateful_parts(loader))
    return _copy(loader, kind, **order | {"sampler": sampler})


def count_share(loader: Any, shared: Any, limit: int | float, argument: str, strategy: Strategy) -> int | float:
    """How many batches of its share of a loader a process evaluates.

    A share of the batches is taken before they are shared out: all processes together take the batches that one takes.

    Args:
        loader: The loader as it was given.
        shared: What `share_out` made of it.
        limit: An int is a number of batches of each process, a float a share of all.
        argument: Name of the argument that the limit was given by, for errors.
        strategy: Knows this process's place.

    Raises:
        ValueError: As `count_batches`.
    """
    pairs = zip(leaves_of(loader), leaves_of(shared), strict=True)
    if isinstance(limit, float) and all(leaf is not its_share for leaf, its_share in pairs):
        num_batches = count_batches(loader, limit, argument)
        return len(range(strategy.data_rank, int(num_batches), strategy.num_data_ranks))
    return count_batches(shared, limit, argument)


def prepare_orders(loader: Any, strategy: Strategy) -> None:
    """Draw the order of the next pass over what was shared out by batch. Collective, if there is anything to draw.

    Processes with fewer batches need not iterate then. The numbers are those that iterating itself will draw: each
    loader's seed of its workers, which comes first, and then its order.

    Args:
        loader: A loader, or a combination of several, shared out for validation, test or prediction.
        strategy: Connects the processes.
    """
    leaves = leaves_of(loader)
    drawing = {id(leaf): [one for one in shared_samplers(leaf) if one.draws] for leaf in leaves}
    samplers = [sampler for of_leaf in drawing.values() for sampler in of_leaf]
    if not samplers:
        return
    generators = list(dict.fromkeys(generator for leaf in leaves for generator in generators_of(leaf)))
    with numbers_of_first(strategy, generators):
        for leaf in leaves:
            is_under_way = isinstance(leaf, DataLoader) and leaf.persistent_workers and leaf._iterator is not None
            if isinstance(leaf, DataLoader) and not is_under_way:
                torch.empty((), dtype=torch.int64).random_(generator=leaf.generator)
            if getattr(leaf, "num_workers", 0) > 0:  # they are told what to read at once
                _prepare(drawing.pop(id(leaf), []))
        for of_leaf in drawing.values():
            _prepare(of_leaf)
    for sampler in samplers:
        sampler.check_prepared()


def shared_samplers(loader: Any) -> list[SharedSampler]:
    """By what a loader was shared out; empty if it was not."""
    return [sampler for sampler in samplers_of(loader) if isinstance(sampler, SharedSampler)]


def whole_length(loader: Any) -> int | None:
    """How many samples, or batches, all processes share out; None for a loader that was not shared out."""
    lengths = [len(sampler.sampler) for sampler in shared_samplers(loader)]
    return lengths[0] if lengths else None


def check_same_data(lengths: list[int | None], name: str) -> None:
    """Raise `ValueError` if the processes share out data of different lengths, as when each has data of its own.

    Args:
        lengths: The `whole_length` of each process.
        name: Name of the loader, for the error.
    """
    if len(set(lengths)) > 1:
        rule = "over the same data in every process, to be shared out"
        action = "Pass use_distributed_sampler=False if each process has data of its own."
        raise ValueError(must_be(name, rule, f"lengths {lengths} of all processes", "share_out", action))


def _prepare(samplers: list[SharedSampler]) -> None:
    for sampler in samplers:
        sampler.prepare()


def _shared(loader: DataLoader[Any], sampler: Any, strategy: Strategy, stage: str, *, drops: bool) -> SharedSampler:
    try:
        len(sampler)
    except (TypeError, NotImplementedError) as error:
        rule = f"one whose sampler tells its length, to be shared out among {strategy.num_data_ranks} processes"
        raise TypeError(must_be(f"{stage} loader", rule, sampler, "share_out", _ACTION)) from error
    return SharedSampler(
        sampler,
        strategy,
        uneven="keep" if stage != "train" else "cut" if drops else "fill",
        generators=generators_of(loader),
        parts=_stateful_parts(loader),
    )


def _stateful_parts(loader: DataLoader[Any]) -> list[Any]:
    return [sampler for sampler in samplers_of(loader) if has_state(sampler)]


def _copy(loader: DataLoader[Any], kind: Any, **changes: Any) -> Any:
    if hasattr(loader, "snapshot_every_n_steps"):
        changes["snapshot_every_n_steps"] = loader.snapshot_every_n_steps
    return copy_loader(loader, kind, **changes)


def _kind_to_copy(loader: DataLoader[Any]) -> type[Any] | None:
    """As what a loader is copied: a `DataLoader` or torchdata's stateful one, by how it iterates."""
    if is_plain(loader):
        return DataLoader
    torchdata = sys.modules.get("torchdata.stateful_dataloader")
    if torchdata is not None and isinstance(loader, torchdata.StatefulDataLoader):
        kind: type[Any] = torchdata.StatefulDataLoader
        names = ("__iter__", "_get_iterator", "state_dict", "load_state_dict")
        if all(getattr(type(loader), name) is getattr(kind, name) for name in names):
            return kind
    return None


def _knows_its_place(loader: DataLoader[Any]) -> bool:
    return any(all(hasattr(sampler, name) for name in names) for sampler in samplers_of(loader) for names in _PLACES)


def _warn_of_padding(loader: DataLoader[Any], stage: str) -> None:
    for sampler in samplers_of(loader):
        if stage != "train" and isinstance(sampler, DistributedSampler):
            num_samples = len(sampler.dataset)  # type: ignore[arg-type]
            if sampler.total_size != num_samples:
                warn_user(
                    f"The {stage} loader's {type(sampler).__name__} makes {sampler.total_size} samples of "
                    f"{num_samples}, so some do not count exactly once. Pass the loader without it, to have it shared "
                    "out exactly."
                )

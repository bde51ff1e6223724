"""One process's share of the data that a loader reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler

from camshaft.hooks_core.protocols import Strategy
from camshaft.hooks_core.support.messages import must_be, warn_user
from camshaft.loops.data.combined_loader import (
    UNKNOWN,
    CombinedLoader,
    copy_loader,
    draws_of,
    is_stream,
    kind_to_copy,
    length_of,
    order_of,
    samplers_of,
)
from camshaft.loops.data.loaders import count_batches, is_open_ended, leaves_of
from camshaft.loops.data.resumable_loader import ResumableLoader, StatelessLoaders
from camshaft.loops.data.samplers import (
    ReplayedSampler,
    SharedSampler,
    Uneven,
    randomness_of_first_rank,
    stateful_samplers,
)
from camshaft.loops.data.stateful_streams import checksum
from camshaft.loops.state.random_state import generators_of

_PLACES = (("num_replicas", "rank"), ("num_processes", "process_index"))
"""Attributes by which samplers tell that they give one process's share: torch's names, and Accelerate's."""

_ACTION = "Give every process its share yourself, as by a DistributedSampler, and pass use_distributed_sampler=False."


def share_out(loader: Any, strategy: Strategy, *, stage: str) -> Any:
    """Return a loader that reads this process's share of the data of a loader.

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
        ValueError: If a `DataLoader` overrides iteration, so that it may ignore a sampler.
    """
    if strategy.num_data_ranks == 1:
        return loader
    if isinstance(loader, CombinedLoader):
        return loader.with_loaders(lambda leaf: share_out(leaf, strategy, stage=stage))
    if not isinstance(loader, DataLoader) or is_stream(loader):
        return loader
    if shares_by_itself(loader):
        _warn_of_padding(loader, stage)
        return loader
    kind = kind_to_copy(loader)
    if kind is None:
        rule = f"one that iterates as a DataLoader does, to be shared out among {strategy.num_data_ranks} processes"
        raise ValueError(must_be(f"{stage} loader", rule, loader, "share_out", _ACTION))
    order, key = order_of(loader), "sampler"
    sampler: Any = None
    if order is None or (loader.batch_sampler is not None and stage != "train"):
        order, key = {}, "batch_sampler"
        sampler = _shared(loader, loader.batch_sampler, strategy, stage, drops=False)
    else:
        sampler = _shared(loader, order["sampler"], strategy, stage, drops=order["drop_last"])
    if stage == "train" and kind is not DataLoader:  # an own state: it is not turned into one that has
        sampler = ReplayedSampler(sampler, sampler.generators, stateful_samplers(loader))
    changes = order | {key: sampler}
    if hasattr(loader, "snapshot_every_n_steps"):
        changes["snapshot_every_n_steps"] = loader.snapshot_every_n_steps
    return copy_loader(loader, kind, **changes)


def shares_by_itself(loader: object) -> bool:
    """Return whether a sampler of a loader gives one process's share."""
    return any(all(hasattr(one, name) for name in names) for one in samplers_of(loader) for names in _PLACES)


def with_changed_loaders(loader: Any, strategy: Strategy) -> Any:
    """Return a loader, or each of a combination, as the strategy's `change_loader`, if any, returns it."""
    change = getattr(strategy, "change_loader", None)
    if change is None:
        return loader
    return loader.with_loaders(change) if isinstance(loader, CombinedLoader) else change(loader)


def count_share(loader: Any, shared: Any, limit: int | float, argument: str, strategy: Strategy) -> int | float:
    """Return the number of batches that a process evaluates of its share of a loader.

    A share of the batches is taken before they are shared out: all processes together take the batches that one takes.

    Args:
        loader: The loader as it was given.
        shared: The result of `share_out` for it.
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
    """
    leaves = leaves_of(loader)
    drawing = {id(leaf): [one for one in shared_samplers(leaf) if one.draws] for leaf in leaves}
    samplers = [sampler for of_leaf in drawing.values() for sampler in of_leaf]
    if not samplers:
        return
    generators = list(dict.fromkeys(generator for leaf in leaves for generator in generators_of(leaf)))
    with randomness_of_first_rank(strategy, generators):
        for leaf in leaves:
            is_under_way = isinstance(leaf, DataLoader) and leaf.persistent_workers and leaf._iterator is not None
            if isinstance(leaf, DataLoader) and not is_under_way:
                torch.empty((), dtype=torch.int64).random_(generator=leaf.generator)
            if getattr(leaf, "num_workers", 0) > 0:  # they get what to read at once
                for sampler in drawing.pop(id(leaf), []):
                    sampler.prepare()
        for sampler in chain.from_iterable(drawing.values()):
            sampler.prepare()
    for sampler in samplers:
        sampler.check_prepared()


def shared_samplers(loader: Any) -> list[SharedSampler]:
    """Return the samplers by which a loader was shared out; empty if it was not."""
    return [sampler for sampler in samplers_of(loader) if isinstance(sampler, SharedSampler)]


def _shared_data(loader: Any) -> Any:
    """Return the `whole_length` of a loader; of a dataset of `datasets` also checksums of its first and last row.

    They tell apart what `datasets.distributed.split_dataset_by_node` has shared out already.
    """
    length = whole_length(loader)
    dataset: Any = getattr(loader, "dataset", None)
    if not length or not hasattr(dataset, "_fingerprint") or not hasattr(dataset, "with_format"):
        return length
    rows = dataset.with_format(None)  # without transforms, which may draw random numbers
    return [length, checksum(rows[0]), checksum(rows[len(rows) - 1])]


def whole_length(loader: Any) -> int | None:
    """Return the number of samples, or batches, of all processes together; None for a loader that is not shared."""
    lengths = [len(sampler.sampler) for sampler in shared_samplers(loader)]
    return lengths[0] if lengths else None


def check_same_data(lengths: list[Any], name: str) -> None:
    """Raise `ValueError` if the `whole_length` of a loader differs by process, as when each has data of its own.

    Args:
        lengths: The length for each process, or a list of it and what else tells the data apart.
        name: Name of the loader.
    """
    if any(length != lengths[0] for length in lengths):
        rule = "over the same data in every process, to be shared out"
        action = "Pass use_distributed_sampler=False if each process has data of its own."
        raise ValueError(must_be(name, rule, f"lengths {lengths} of all processes", "share_out", action))


def _shared(loader: DataLoader[Any], sampler: Any, strategy: Strategy, stage: str, *, drops: bool) -> SharedSampler:
    try:
        len(sampler)
    except (TypeError, NotImplementedError) as error:
        rule = f"one whose sampler tells its length, to be shared out among {strategy.num_data_ranks} processes"
        raise TypeError(must_be(f"{stage} loader", rule, sampler, "share_out", _ACTION)) from error
    uneven: Uneven = "keep" if stage != "train" else "cut" if drops else "fill"
    generators, parts = generators_of(loader), stateful_samplers(loader)
    return SharedSampler(sampler, strategy, uneven=uneven, generators=generators, parts=parts)


def _warn_of_padding(loader: DataLoader[Any], stage: str) -> None:
    for sampler in samplers_of(loader) if stage != "train" else ():
        if isinstance(sampler, DistributedSampler) and sampler.total_size != len(sampler.dataset):  # type: ignore[arg-type]
            warn_user(
                f"The {stage} loader's {type(sampler).__name__} makes {sampler.total_size} samples of "
                f"{len(sampler.dataset)}, so some do not count exactly once. Pass the loader without it."  # type: ignore[arg-type]
            )


_MISSING = object()


class EvenLoader(ResumableLoader):
    """A resumable loader of one process that gives no more batches than that of any other process.

    Which way is found by `agree_on_lengths`: loaders of equal known lengths are read as they are, at no cost; of
    different known lengths, as many batches as the shortest has; of streams and unknown lengths, the processes tell
    each other before each batch whether they have one. Iterating is collective in the last case.

    Args:
        stateless: As in `ResumableLoader`.

    Attributes:
        length: Batches in an epoch, as agreed upon; infinite if some process does not know, None for the loader's own.
        is_asked: Whether the processes ask each other before each batch.
    """

    def __init__(self, loader: Iterable[Any], strategy: Strategy, stateless: StatelessLoaders = "refuse") -> None:
        super().__init__(loader, stateless)
        self.length: int | float | None = None
        self.is_asked = False
        self._is_compared = False
        self._strategy = strategy
        self.data_rank, self.num_data_ranks = strategy.data_rank, strategy.num_data_ranks

    def __len__(self) -> int:
        if self.length is None:
            return super().__len__()
        if self.length == UNKNOWN:
            raise TypeError("The loader of some process does not tell its length. Give it `__len__`, or iterate.")
        return int(self.length)

    def __iter__(self) -> Iterator[Any]:
        batches = super().__iter__()
        return self._together(batches) if self.is_open_ended else batches

    @property
    def is_open_ended(self) -> bool:
        """True if the loader may give another number of batches than it promises; the same in all processes."""
        return self.is_asked or self._is_rest_of_stream

    @property
    def _num_promised(self) -> int | float:
        return super()._num_promised if self.is_asked or self.length is None else self.length

    def _together(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Give batches while all processes have one. Collective."""
        while True:
            batch = next(batches, _MISSING)
            num_with_one = int(self._strategy.reduce(torch.tensor(int(batch is not _MISSING)), "sum"))
            if num_with_one < self._strategy.world_size:
                break
            if not self._is_compared:
                self._is_compared = True
                self._warn_of_same(batch)
            yield batch
        if num_with_one:
            warn_user(
                f"The training loaders of {num_with_one} of {self._strategy.world_size} processes have more batches, "
                "which are left out: the epoch ends for all with the shortest. Give every process as many batches."
            )

    def _warn_of_same(self, first: Any) -> None:
        """Warn if all processes read the same stream, by their first batches. Collective."""
        dataset, data_rank = getattr(self.loader, "dataset", self.loader), self._strategy.data_rank
        checksums = dict(self._strategy.all_gather((data_rank, checksum(first))))
        knows_place = any(hasattr(dataset, name) for names in _PLACES for name in names)
        shares = knows_place or getattr(dataset, "_distributed", None)
        if not shares and len(set(checksums.values())) == 1:
            warn_user(
                f"All processes train on the same batches: the stream ({type(dataset).__name__}) begins alike in each. "
                "Give each process a share: `datasets.distributed.split_dataset_by_node`, or let `__iter__` take every "
                "`world_size`-th sample from `rank` on, with `torch.utils.data.get_worker_info()` for the workers."
            )


def agree_on_draws(loader: Any, strategy: Strategy) -> None:
    """Check that all processes draw loaders alike, where they are drawn by weights. Collective there.

    Raises:
        ValueError: If seeds, constant weights or stop criteria differ by process.
    """
    own = draws_of(loader)
    if not own:
        return
    of_ranks = strategy.all_gather([draws.identity for draws in own])
    if any(of_rank != of_ranks[0] for of_rank in of_ranks):
        rule = "the same in every process, which draw the same loader for each batch"
        action = "Pass the same `seed`, `weights` and `stop_criteria` in each; the loaders may give each its own data."
        raise ValueError(must_be("weights", rule, of_ranks, "CombinedLoader", action))


def agree_on_lengths(loaders: Sequence[EvenLoader], strategy: Strategy) -> None:
    """Let loaders end in all processes at once. Collective.

    Args:
        loaders: The loaders of this process, as many as every other has.

    Raises:
        ValueError: If the processes have different numbers of loaders, or share out different data.
    """
    own = [(length_of(one.loader), is_open_ended(one.loader), _shared_data(one.loader)) for one in loaders]
    of_ranks = strategy.all_gather((strategy.data_rank, own))
    _check_as_many([len(of_rank) for _, of_rank in of_ranks], "train", "fit")
    for loader_idx, loader in enumerate(loaders):
        its_own = [(data_rank, *of_rank[loader_idx]) for data_rank, of_rank in of_ranks]
        check_same_data([whole for _, _, _, whole in its_own], "train loader")
        lengths = {data_rank: length for data_rank, length, _, _ in its_own}
        loader.is_asked = any(is_open for _, _, is_open, _ in its_own)
        shortest = UNKNOWN if UNKNOWN in lengths.values() else min(lengths.values())
        is_even = set(lengths.values()) == {shortest}
        loader.length = None if is_even and shortest != UNKNOWN else shortest
        if not is_even and not loader.is_asked:
            longer = sorted((rank, length) for rank, length in lengths.items() if length > shortest)
            left_out = ", ".join(f"{length - shortest} of rank {rank}" for rank, length in longer)
            warn_user(
                f"The training loaders of the processes have different lengths: each takes the {shortest} batches of "
                f"the shortest one, so in every epoch batches are left out: {left_out}. Give every process as many."
            )


def _check_as_many(counts: list[int], stage: str, where: str) -> None:
    if len(set(counts)) > 1:
        rule, action = "as many in every process", "Give every process the same loaders."
        raise ValueError(must_be(f"{stage} loaders", rule, counts, where, action))


def agree_on_rounds(
    loaders: Sequence[Iterable[Any]], num_batches: Sequence[int | float], strategy: Strategy, stage: str
) -> list[int | float]:
    """Return the maximum batch count over ranks, per loader. Collective.

    Args:
        loaders: The loaders of this process.
        num_batches: Number of batches to take of each.
        stage: Stage of the loaders, for errors.

    Returns:
        The numbers, per loader; infinity if some process does not know before it has read them.

    Raises:
        ValueError: If the processes have different numbers of loaders, or share out different data.
    """
    pairs = zip(loaders, num_batches, strict=True)
    own = [UNKNOWN if is_open_ended(loader) else number for loader, number in pairs]
    wholes = [_shared_data(leaf) for loader in loaders for leaf in leaves_of(loader)]
    of_ranks = strategy.all_gather((own, wholes))
    _check_as_many([len(numbers) for numbers, _ in of_ranks], stage, "EvaluationLoop")
    for lengths in zip(*[wholes for _, wholes in of_ranks], strict=True):
        check_same_data(list(lengths), f"{stage} loader")
    return [max(of_loader) for of_loader in zip(*[numbers for numbers, _ in of_ranks], strict=True)]


def in_rounds(
    batches: Iterator[tuple[int, Any, bool]], num_rounds: int | float, strategy: Strategy
) -> Iterator[tuple[int, Any, bool]]:
    """Give a process's batches, and take part in the steps of others once it has no more. Collective.

    Args:
        batches: The batches, numbered.
        num_rounds: Maximum number over ranks; if infinite, all ranks exchange before each batch
            whether they have one.
    """
    if num_rounds != UNKNOWN:
        num_given = 0
        for numbered in batches:
            num_given += 1
            yield numbered
        for _ in range(num_given, int(num_rounds)):
            strategy.idle_step()
        return
    while True:
        mine = next(batches, None)
        if not strategy.reduce(torch.tensor(int(mine is not None)), "max").item():
            return
        if mine is None:
            strategy.idle_step()
        else:
            yield mine

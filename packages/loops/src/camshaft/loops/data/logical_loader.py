"""Loaders whose order the logical ranks of a run share: a step's batches of a process at a time."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Any

from torch.utils.data import DataLoader

from camshaft.hooks_core.support.messages import must_be
from camshaft.loops.data.combined_loader import (
    CombinedLoader,
    copy_loader,
    has_state,
    is_plain,
    is_stream,
    length_of,
    order_of,
    samplers_of,
)
from camshaft.loops.data.loaders import count_batches, is_open_ended
from camshaft.loops.data.samplers import (
    Uneven,
    as_integers,
    check_ends,
    check_same_order,
    drawn_order,
    in_batches,
    shared_places,
    stateful_samplers,
)
from camshaft.loops.data.shared_loader import shares_by_itself
from camshaft.loops.data.stateful_loader import DatasetInPlace
from camshaft.loops.data.training_batches import Numbered, TrainingBatches
from camshaft.loops.state.logical_ranks import (
    FirstRankBuffers,
    LogicalRanks,
    take_common_numbers,
)
from camshaft.loops.state.of_ranks import OfRanks
from camshaft.loops.state.progress import Counters
from camshaft.loops.state.random_state import (
    generators_of,
    isolated_randomness,
    restore_random_state,
    seed_global_numbers,
)
from camshaft.loops.state.run import Run

_Fetch = tuple[int, Any]
"""The seed under which a batch is made, and the index or indices of its samples."""


class LogicalLoader:
    """A loader that gives the batches of one step, for each logical rank that this process plays, as `OfRanks`.

    The order of a pass is drawn as a whole, in all processes alike. Training is shared out by sample: rank j of K takes
    each K-th sample from the j-th on, and makes its batches of them; a user's own batches, and those of evaluation, are
    shared out whole. Every batch is made under random numbers of its own, in whatever process. So its position is a
    number of steps, whatever the number of processes.

    Args:
        loader: A `DataLoader` whose sampler tells its length.
        run: The run.
        stage: "train", "validate", "test" or "predict".
        idx: Index of the loader among those of the stage.
        num_batches: In evaluation, the number of batches of all ranks to take at most.

    Attributes:
        loader: The loader as it was given.
        num_batches: As above.

    Raises:
        ValueError: If the order of the loader is not known, or it gives each process a share by itself.
    """

    def __init__(self, loader: Any, run: Run, stage: str, idx: int, num_batches: int | float = float("inf")) -> None:
        assert run.logical is not None
        self.loader: DataLoader[Any] = loader
        self._ranks: LogicalRanks = run.logical
        self._run, self._stage, self._strategy = run, stage, run.strategy
        self._idx, self.num_batches = idx, num_batches
        check_known_order(loader, stage)
        order = order_of(loader) or {"sampler": loader.batch_sampler, "batch_size": None, "drop_last": False}
        self._sampler: Any = order["sampler"]
        self._batch_size, self._drops_last = order["batch_size"], order["drop_last"]
        self._uneven: Uneven = "cut" if self._drops_last else "fill"
        self._parts, self._generators = stateful_samplers(loader), generators_of(loader)
        self._fetches: list[_Fetch] = []
        is_batched = loader.batch_sampler is not None
        self._source: DataLoader[Any] = copy_loader(
            loader,
            DataLoader,
            dataset=_SeededBatches(loader.dataset, _collate=loader.collate_fn, _is_batched=is_batched),
            batch_size=None,
            sampler=_Listed(self),
            collate_fn=_as_it_is,
        )
        self._iterator: Any = None
        self._order: list[Any] | None = None  # that a resumed pass goes on with
        self._start: dict[str, Any] | None = None
        self._num_read = self._num_passes = 0
        self._ends: list[Any] = []
        self._samples: list[list[int] | None] | None = None
        self._is_under_way = self._follows = False

    def __len__(self) -> int:
        """Return the number of steps of a pass."""
        return self._num_steps(len(self._sampler))

    def __iter__(self) -> Iterator[OfRanks]:
        """Begin a pass, or go on with one whose state was loaded. Collective where it begins."""
        order, self._order = self._order, None
        if order is None:
            take_common_numbers(self._ranks, self._strategy, self._generators)
            self._start, self._num_read = self._beginning(), 0
            self._num_passes += self._stage == "train"
            order = self._drawn()
            if self._strategy.world_size > 1:
                action = "Draw from global numbers or an attribute `generator`."
                check_same_order(order, self._sampler, self._strategy, action)
        self._ends = _ends_of(order)
        steps = self._steps(order)
        self._fetches[:] = chain.from_iterable(steps[self._num_read :])
        with isolated_randomness(self._generators):  # a resumed pass draws no seed of workers, nor do kept workers
            self._iterator = iter(self._source)
        return self._iterate(steps, self._iterator)

    def _iterate(self, steps: Sequence[Sequence[_Fetch]], batches: Iterator[Any]) -> Iterator[OfRanks]:
        self._is_under_way = True
        draws_here = self._source.num_workers == 0
        for step in range(self._num_read, len(steps)):
            given = OfRanks(islice(batches, len(steps[step])))
            if draws_here:  # under numbers of their own
                seed_global_numbers(self._seed(step, self._ranks.count), self._ranks.device)
            self._num_read = step + 1
            if self._follows:
                self._samples = [as_integers(indices) for _, indices in steps[step]]
            yield given
        self._is_under_way = False

    def _steps(self, order: list[Any]) -> list[list[_Fetch]]:
        """Return the fetches of each step, those of this process's ranks."""
        own, batches_of = self._ranks.own, self._shares(order)
        steps = range(self._num_steps(len(order)))
        return [
            [(self._seed(step, rank), batches_of[rank][step]) for rank in own if step < len(batches_of[rank])]
            for step in steps
        ]

    def _shares(self, order: list[Any]) -> dict[int, list[Any]]:
        """Return the batches of each rank of this process, as indices."""
        count, size, drops = self._ranks.count, self._batch_size, self._drops_last
        if self._stage != "train":
            batches = in_batches(order, size, drops_last=drops)
            num_batches = int(min(len(batches), self.num_batches))
            return {rank: batches[rank:num_batches:count] for rank in self._ranks.own}
        length = len(order)
        places = {rank: shared_places(0, length, rank, count, self._uneven) for rank in self._ranks.own}
        shares = {rank: [order[place % length] for place in of_rank] for rank, of_rank in places.items()}
        return {rank: in_batches(share, size, drops_last=drops) for rank, share in shares.items()}

    def _num_steps(self, num_items: int) -> int:
        is_training, count, size = self._stage == "train", self._ranks.count, self._batch_size or 1
        num_items = len(shared_places(0, num_items, 0, count, self._uneven)) if is_training else num_items
        num_batches = num_items // size if self._drops_last else -(-num_items // size)
        return num_batches if is_training else -(-int(min(num_batches, self.num_batches)) // count)

    def _seed(self, step: int, rank: int) -> int:
        return self._ranks.seed_of_fetch(self._stage, self._run.epoch, self._idx, self._num_passes, step, rank)

    def _beginning(self) -> dict[str, Any]:
        numbers = self._ranks.common_numbers(self._generators)
        return {"numbers": numbers, "samplers": self._states()}

    def _states(self) -> list[Any]:
        return [copy.deepcopy(part.state_dict()) for part in self._parts]

    def _drawn(self) -> list[Any]:
        """Draw the order of a pass from the common numbers."""
        order, rest = drawn_order(self._sampler, self._parts)
        next(rest, None)  # at its end a sampler may draw once more, as `RandomSampler` does
        return order

    def state_dict(self) -> dict[str, Any]:
        """Return the position: steps that were given, and the numbers and samplers' states that the pass began with."""
        state: dict[str, Any] = {"is_under_way": self._is_under_way, "length": len(self._sampler)}
        state["num_passes"] = self._num_passes
        if self._is_under_way:
            return state | {"num_steps": self._num_read, "start": self._start, "ends": self._ends}
        return state | {"samplers": self._states()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next pass go on from a state; no random numbers are drawn.

        Raises:
            ValueError: If it is not that of as many samples, shared out among logical ranks.
        """
        if state.get("length") != len(self._sampler) or ("start" if state["is_under_way"] else "samplers") not in state:
            rule = f"that of {len(self._sampler)} samples, or batches, shared out among logical ranks"
            action = "Resume with the same data and `logical_ranks`."
            raise ValueError(must_be("state of the train loader", rule, state.get("length"), "fit", action))
        self._is_under_way, self._num_passes = state["is_under_way"], state["num_passes"]
        if not self._is_under_way:
            self._load(state["samplers"])
            return
        self._start, self._num_read = state["start"], state["num_steps"]
        with isolated_randomness(self._generators):
            restore_random_state(self._start["numbers"], self._generators)
            self._load(self._start["samplers"])
            self._order = self._drawn()
        check_ends(_ends_of(self._order), state.get("ends"), self._sampler)

    def _load(self, states: Sequence[Any]) -> None:
        for part, state in zip(self._parts, states, strict=True):
            part.load_state_dict(copy.deepcopy(state))

    num_workers = 0  # their number does not matter

    @property
    def num_left(self) -> int:
        """Number of steps that are left of the pass, or of the next one if none runs."""
        return len(self) - (self._num_read if self._is_under_way else 0)

    @property
    def batch_size(self) -> int | None:
        """Samples in a batch of a rank; None if the loader does not tell."""
        return getattr(self.loader, "batch_size", None)

    def is_read_otherwise(self, batch_size: int | None, num_workers: int) -> bool:
        """Return False: the position is counted in steps, whoever reads.

        Raises:
            ValueError: If the steps of then had batches of another size.
        """
        if batch_size != self.batch_size and batch_size is not None:
            rule, action = f"that of the checkpoint ({batch_size})", "Give it, or resume from the end of an epoch."
            raise ValueError(must_be("batch_size", rule, self.batch_size, "fit", action))
        return False

    def follow_samples(self) -> bool:
        """Record the samples of each batch; see `ResumableLoader.follow_samples`."""
        self._follows = True
        return True

    def take_samples(self) -> list[int] | None:
        """Return the dataset indices of the current rank's newest batch; None if they are unknown."""
        current = self._ranks.current
        return None if self._samples is None or current is None else self._samples[self._ranks.own.index(current)]

    def end_iteration(self) -> None:
        """Let an iteration that was left count as over: the next one begins anew."""
        self._order = None
        self._is_under_way, self._num_passes = False, 0

    def stop_workers(self) -> None:
        """End the worker processes of a failed iteration."""
        iterator, self._iterator = self._iterator, None
        if hasattr(iterator, "_shutdown_workers"):
            iterator._shutdown_workers()


class LogicalBatches(TrainingBatches):
    """The batches of each training epoch, those of a step at a time.

    Args:
        loader: A loader, or a combination of several.
        run: The run.
    """

    def __init__(self, loader: Any, run: Run) -> None:
        self._run = run
        super().__init__(loader, 0)

    def __iter__(self) -> Iterator[Numbered]:
        numbered = super().__iter__()
        if not isinstance(self._loader, CombinedLoader):
            return numbered
        assert self._run.logical is not None
        num_ranks = len(self._run.logical.own)
        return (
            (batch_idx, OfRanks(_of_place(batch, place) for place in range(num_ranks)), is_last)
            for batch_idx, batch, is_last in numbered
        )

    @property
    def _division(self) -> list[Any]:
        assert self._run.logical is not None
        return [self._run.logical.count, *(getattr(leaf.loader, "batch_size", None) for leaf in self._leaves)]

    def _resumable(self, loader: Any, stateless: Any) -> Any:
        if isinstance(loader, CombinedLoader):
            combined = loader.with_loaders(lambda leaf: self._resumable(leaf, stateless))
            if is_open_ended(combined):
                rule, action = "no part of another combination with logical ranks", "Combine its loaders directly."
                raise ValueError(must_be("train loader drawn by weights", rule, loader, "fit", action))
            return combined
        leaf = LogicalLoader(loader, self._run, "train", len(self._leaves))
        self._leaves.append(leaf)
        return leaf


def evaluation_shares(
    loaders: Sequence[Any], limits: Sequence[tuple[int | float, str]], run: Run, stage: str
) -> list[LogicalLoader]:
    """Return what gives each step's batches of evaluation loaders.

    Args:
        loaders: The loaders.
        limits: What to take of each at most, an int for each logical rank, and the arguments that said so.
        run: The run.
        stage: The stage.
    """
    assert run.logical is not None
    shares: list[LogicalLoader] = []
    for loader in loaders:
        shares.append(LogicalLoader(loader, run, stage, len(shares)))
        for limit, argument in limits:
            number = limit * run.logical.count if isinstance(limit, int) else limit
            shares[-1].num_batches = min(shares[-1].num_batches, count_batches(loader, number, argument))
    return shares


def batches_in_ranks(
    share: LogicalLoader, num_steps: int | float, run: Run, dataloader_idx: int, progress: Counters
) -> Iterator[Numbered]:
    """Iterate over the evaluation batches of each rank of this process, under its random numbers, step by step.

    Args:
        share: The loader.
        num_steps: Number of steps to take.
        run: The run.
        dataloader_idx: Index of the loader.
        progress: Counts the batches that are given, as those of one rank.
    """
    ranks, stage = run.logical, run.stage
    assert ranks is not None and stage is not None
    limit, share.num_batches = share.num_batches, min(share.num_batches, num_steps * ranks.count)
    steps, share.num_batches = iter(share), limit
    buffers = FirstRankBuffers(run.module, len(ranks.own))
    for step, batches in enumerate(steps):
        ranks.begin_step(stage, run.epoch, (dataloader_idx << 32) + step)
        for place, _ in ranks.each():
            buffers.follow(place)
            if place < len(batches):
                yield step, batches[place], step + 1 == num_steps
                if place:
                    progress.add(Counters(-1, -1, -1, -1))
            else:
                run.strategy.idle_step()
        buffers.restore()


def _ends_of(order: Sequence[Any]) -> list[list[int] | None]:
    """Return the first and the last item of an order, see `check_ends`; nothing of an empty one."""
    return [as_integers(order[place]) for place in (0, -1)] if order else []


def _of_place(batch: Any, place: int) -> Any:
    """Return the batch of one rank in a combination of the batches of several."""
    if type(batch) is OfRanks:
        return batch[place]
    if isinstance(batch, dict):
        return {key: _of_place(part, place) for key, part in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*[_of_place(part, place) for part in batch])
    return None if batch is None else type(batch)([_of_place(part, place) for part in batch])


def check_shared(use_distributed_sampler: bool, where: str) -> None:
    """Raise `ValueError` if each process is to take its loaders as they are."""
    if not use_distributed_sampler:
        rule, action = "True with logical ranks, which share loaders out", "Leave it out."
        raise ValueError(must_be("use_distributed_sampler", rule, False, where, action))


def check_known_order(loader: Any, stage: str) -> None:
    """Raise `ValueError` for a loader whose order logical ranks cannot share."""
    name, where = f"{stage} loader", "fit" if stage == "train" else stage
    rule, action = "a DataLoader over a dataset with indices, whose order logical ranks share", "Pass a DataLoader"
    if isinstance(loader, CombinedLoader):
        raise ValueError(must_be(name, rule, loader, where, f"{action}, or a list of them."))
    if not isinstance(loader, DataLoader) or is_stream(loader):
        raise ValueError(must_be(name, rule, loader, where, f"{action}, or train without `logical_ranks`."))
    if not is_plain(loader) and not type(loader).__module__.startswith("torchdata."):
        rule = "one that iterates as a DataLoader does, for logical ranks to share its order"
        raise ValueError(must_be(name, rule, loader, where, f"{action} itself."))
    if shares_by_itself(loader):
        rule, action = "one without a sampler that gives each process a share", "Leave the sampler out"
        got = [type(one).__name__ for one in samplers_of(loader)]
        raise ValueError(must_be(name, rule, got, where, f"{action}: logical ranks share the data out by themselves."))
    if has_state(loader.dataset):
        rule = "one whose dataset has no state, which would depend on the number of processes"
        action = "Let samples depend on their index alone, and on random numbers."
        raise ValueError(must_be(name, rule, loader.dataset, where, action))
    order = order_of(loader)
    sampler = loader.batch_sampler if order is None else order["sampler"]
    if length_of(sampler) == float("inf"):  # type: ignore[arg-type]
        rule, action = "one whose sampler tells its length, for logical ranks to share its order", "Give it `__len__`."
        raise ValueError(must_be(name, rule, sampler, where, action))


def _as_it_is(batch: Any) -> Any:
    return batch


class _Listed:
    """The sampler of the fetches that a loader lists for its next pass."""

    def __init__(self, owner: LogicalLoader) -> None:
        self._fetches = owner._fetches

    def __iter__(self) -> Iterator[_Fetch]:
        return iter(list(self._fetches))

    def __len__(self) -> int:
        return len(self._fetches)


class _SeededBatches(DatasetInPlace):
    """A dataset of batches, each made under the random numbers that come with its indices."""

    def __getitem__(self, fetch: _Fetch) -> Any:
        seed, indices = fetch
        dataset = self._dataset
        seed_global_numbers(seed)
        if not self._is_batched:
            return self._collate(dataset[indices])
        get_items = getattr(dataset, "__getitems__", None)
        return self._collate([dataset[index] for index in indices] if get_items is None else get_items(indices))

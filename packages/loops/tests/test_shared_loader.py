"""Each process's share of a loader: together they are what one process reads, in its order."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from bare_parts import Sized, Unsized, make_batches, make_loader
from bare_ranks import on_ranks
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ranks_in_turn import Tape, TapedStrategy, in_turn, seed_all
from resumable_data import Walk
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torchdata.stateful_dataloader import StatefulDataLoader

from camshaft.loops import CombinedLoader
from camshaft.loops.data.loaders import in_order, leaves_of, numbered, set_epoch
from camshaft.loops.data.shared_loader import count_share, prepare_orders, share_out, shared_samplers
from camshaft.loops.data.training_batches import TrainingBatches


class Indices(Dataset[int]):
    """Each sample is its index."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return int(index)


class Drawn(Sampler[int]):
    """Draws its order, index by index, from one of the global generators."""

    def __init__(self, length: int, source: str) -> None:
        self.length, self.source = length, source

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        for _ in range(self.length):
            yield random.randrange(self.length) if self.source == "python" else int(np.random.randint(self.length))


class Seeded(Sampler[int]):
    """Shuffles by the epoch that it is told."""

    def __init__(self, length: int) -> None:
        self.length, self.epoch = length, 0

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(self.length, generator=torch.Generator().manual_seed(self.epoch)).tolist())

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class Buckets(Sampler[list[int]]):
    """A batch sampler of the user's own: batches of different lengths, shuffled."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __len__(self) -> int:
        return (len(self.sampler) + 2) // 3

    def __iter__(self) -> Iterator[list[int]]:
        indices = list(self.sampler)
        for number in torch.randperm(len(self)).tolist():
            yield indices[3 * number : 3 * number + 3]


def make(kind: str, length: int, batch_size: int, drop_last: bool, loader_class: Any = DataLoader) -> DataLoader[Any]:
    """A loader over the numbers from 0."""
    data, generator = Indices(length), torch.Generator().manual_seed(7)
    arguments: dict[str, Any] = {"batch_size": batch_size, "drop_last": drop_last}
    match kind:
        case "sequential":
            pass
        case "shuffled":
            arguments["shuffle"] = True
        case "own generator":
            arguments |= {"shuffle": True, "generator": generator}
        case "weighted":
            arguments["sampler"] = WeightedRandomSampler(list(range(1, length + 1)), length + 3)
        case "subset":
            arguments["sampler"] = SubsetRandomSampler(list(range(0, length, 2)), generator)
        case "replacement":
            arguments["sampler"] = RandomSampler(data, replacement=True, num_samples=2 * length + 1)
        case "repeated":
            arguments["sampler"] = RandomSampler(data, num_samples=2 * length + 1, generator=generator)
        case "python" | "numpy":
            arguments["sampler"] = Drawn(length, kind)
        case "seeded by epoch":
            arguments["sampler"] = Seeded(length)
        case "list":
            arguments["sampler"] = list(range(length - 1, -1, -1))
        case "stateful":
            arguments["sampler"] = Walk(length)
        case "batch sampler":
            arguments = {"batch_sampler": BatchSampler(RandomSampler(data), batch_size, drop_last)}
    return loader_class(data, **arguments)


KINDS = (
    *("sequential", "shuffled", "own generator", "weighted", "subset", "replacement", "repeated", "python", "numpy"),
    *("seeded by epoch", "list", "stateful", "batch sampler"),
)
NUM_EPOCHS = 3

loaders = st.tuples(st.sampled_from(KINDS), st.integers(1, 17), st.integers(1, 4), st.booleans())
sizes = st.integers(2, 4)


def as_lists(loader: Any) -> list[list[int]]:
    return [batch.tolist() for batch in loader]


def read(loader: Any) -> tuple[list[list[list[int]]], float]:
    """The batches of some epochs, and a number that is drawn after them."""
    epochs = []
    for epoch in range(NUM_EPOCHS):
        set_epoch(loader, epoch)
        epochs.append(as_lists(loader))
    return epochs, float(torch.rand(())) + random.random() + float(np.random.rand())


def woven(of_ranks: list[list[Any]]) -> list[Any]:
    """One of each rank in turn."""
    longest = max(map(len, of_ranks))
    return [of_rank[idx] for idx in range(longest) for of_rank in of_ranks if idx < len(of_rank)]


def flat(batches: list[list[int]]) -> list[int]:
    return [index for batch in batches for index in batch]


@settings(max_examples=150, deadline=None)
@given(loaders, sizes, st.booleans())
def test_training_batches_of_all_ranks_are_together_those_of_one_with_larger_batches(
    loader: Any, size: int, are_seeded_alike: bool
) -> None:
    kind, length, batch_size, drop_last = loader
    seed_all(0)
    whole, number = read(make(kind, length, batch_size * size, drop_last))
    results = in_turn(
        size,
        lambda strategy: read(share_out(make(kind, length, batch_size, drop_last), strategy, stage="train")),
        seeds=[0] * size if are_seeded_alike else None,
    )
    for epoch in range(NUM_EPOCHS):
        of_ranks = [epochs[epoch] for epochs, _ in results]
        assert len({len(of_rank) for of_rank in of_ranks}) == 1, "the same number of batches on every rank"
        together = [woven(list(at_once)) for at_once in zip(*of_ranks, strict=True)]
        if drop_last:
            assert together == whole[epoch]
            continue
        assert together[:-1] == whole[epoch][:-1]
        order = flat(whole[epoch])
        filled = flat(together)
        assert filled[: len(order)] == order
        assert len(filled) - len(order) < size
        assert filled[len(order) :] == [order[idx % len(order)] for idx in range(len(filled) - len(order))]
    assert results[0][1] == number, "the first rank's random numbers are those of one process"
    assert all((own == number) is are_seeded_alike for _, own in results[1:])


@settings(max_examples=100, deadline=None)
@given(loaders, sizes)
def test_batches_of_evaluation_are_those_of_one_process_each_on_one_rank(loader: Any, size: int) -> None:
    def read_prepared(strategy: Any = None) -> Any:
        mine = make(*loader)
        if strategy is not None:
            mine = share_out(mine, strategy, stage="validate")
        epochs = []
        for epoch in range(NUM_EPOCHS):
            set_epoch(mine, epoch)
            if strategy is not None:
                prepare_orders(mine, strategy)
            epochs.append(as_lists(mine))
        return epochs, float(torch.rand(())) + random.random() + float(np.random.rand())

    seed_all(0)
    whole, number = read_prepared()
    results = in_turn(size, read_prepared)
    for epoch in range(NUM_EPOCHS):
        assert woven([epochs[epoch] for epochs, _ in results]) == whole[epoch]
    assert results[0][1] == number, "the first rank's random numbers are those of one process"


@pytest.mark.parametrize("loader_class", [DataLoader, StatefulDataLoader])
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=8, deadline=None)
@example(length=17, batch_size=1, drop_last=False, size=2, stop=5, limit=2)
@given(
    length=st.integers(3, 17),
    batch_size=st.integers(1, 4),
    drop_last=st.booleans(),
    size=sizes,
    stop=st.integers(0, 60),
    limit=st.sampled_from([1.0, 2]),
)
def test_each_rank_goes_on_inside_an_epoch_where_it_was(
    kind: str, loader_class: Any, length: int, batch_size: int, drop_last: bool, size: int, stop: int, limit: Any
) -> None:
    def batches(strategy: Any) -> Any:
        made = make(kind, length, batch_size, drop_last, loader_class)
        made = share_out(made, strategy, stage="train")
        training = TrainingBatches(made, 0, "refuse", strategy)
        training.count(limit, "limit")
        return made, training

    def run(strategy: Any) -> None:
        made, training = batches(strategy)
        num_batches = int(training.num_batches)
        if num_batches == 0:
            return
        stop_epoch, stop_idx = divmod(stop % (NUM_EPOCHS * num_batches), num_batches)
        seen, state = [], None
        for epoch in range(NUM_EPOCHS):
            set_epoch(made, epoch)
            for batch_idx, batch, _ in training:
                seen.append(batch.tolist())
                if (epoch, batch_idx) == (stop_epoch, stop_idx):
                    state = (training.state_dict(), torch.get_rng_state(), random.getstate(), np.random.get_state())
                    generators = [part.get_state() for one in shared_samplers(made) for part in one.generators]
            training.end_epoch()
        assert state is not None
        made, training = batches(strategy)
        seed_all(99)  # a process that was started anew
        set_epoch(made, stop_epoch)
        training.load_state_dict(state[0], stop_idx + 1)
        torch.set_rng_state(state[1])
        random.setstate(state[2])
        np.random.set_state(state[3])
        for generator, its_state in zip(
            [part for one in shared_samplers(made) for part in one.generators], generators, strict=True
        ):
            generator.set_state(its_state)
        rest = []
        for epoch in range(stop_epoch, NUM_EPOCHS):
            if epoch > stop_epoch:
                set_epoch(made, epoch)
            rest += [batch.tolist() for _, batch, _ in training]
            training.end_epoch()
        assert rest == seen[stop_epoch * num_batches + stop_idx + 1 :]

    in_turn(size, run)


def test_ranks_of_one_replica_read_the_same() -> None:
    def run(strategy: Any) -> Any:
        train, val = (share_out(make("shuffled", 9, 2, False), strategy, stage=stage) for stage in ("train", "test"))
        prepare_orders(val, strategy)
        return as_lists(train), as_lists(val)

    first, second, third, fourth = in_turn(4, run, replica_size=2)
    assert first == second and third == fourth and first != third
    assert sorted(flat(first[1]) + flat(third[1])) == list(range(9))


def test_workers_read_the_same_as_the_process_itself() -> None:
    def run(num_workers: int, stage: str) -> Any:
        def on_rank(strategy: Any) -> Any:
            arguments: dict[str, Any] = {"persistent_workers": True} if num_workers else {}
            loader = DataLoader(Indices(7), batch_size=2, shuffle=True, num_workers=num_workers, **arguments)
            mine = share_out(loader, strategy, stage=stage)
            epochs = []
            for _ in range(2):
                if stage != "train":
                    prepare_orders(mine, strategy)
                epochs.append(as_lists(mine))
            return epochs

        return in_turn(2, on_rank)

    for stage in ("train", "predict"):
        without, parallel = run(0, stage), run(1, stage)
        assert [epochs[0] for epochs in parallel] == [epochs[0] for epochs in without]
        for epoch in range(2):
            assert sorted(set(flat([*parallel[0][epoch], *parallel[1][epoch]]))) == list(range(7))


# A user's own batch sampler


@settings(max_examples=30, deadline=None)
@given(length=st.integers(1, 17), size=sizes, stage=st.sampled_from(["train", "test"]))
def test_batches_of_an_own_batch_sampler_are_shared_out_whole(length: int, size: int, stage: str) -> None:
    def run(strategy: Any) -> Any:
        loader = share_out(loader_of(length), strategy, stage=stage)
        prepare_orders(loader, strategy) if stage == "test" else None
        return as_lists(loader)

    def loader_of(length: int) -> DataLoader[int]:
        return DataLoader(Indices(length), batch_sampler=Buckets(RandomSampler(Indices(length))))

    seed_all(0)
    whole = as_lists(loader_of(length))
    of_ranks = in_turn(size, run)
    together = woven(of_ranks)
    assert together[: len(whole)] == whole
    if stage == "test":
        assert together == whole
    else:
        assert len({len(of_rank) for of_rank in of_ranks}) == 1
        assert together[len(whole) :] == [whole[idx % len(whole)] for idx in range(len(together) - len(whole))]


def test_single_samples_are_shared_out() -> None:
    def run(stage: str) -> Any:
        return in_turn(
            2, lambda strategy: list(share_out(DataLoader(Indices(5), batch_size=None), strategy, stage=stage))
        )

    assert run("train") == [[0, 2, 4], [1, 3, 0]]
    assert run("validate") == [[0, 2, 4], [1, 3]]


# What is taken as it is


class Knowing(Sampler[int]):
    def __init__(self, names: tuple[str, str]) -> None:
        setattr(self, names[0], 2)
        setattr(self, names[1], 0)

    def __iter__(self) -> Iterator[int]:
        return iter(range(2))

    def __len__(self) -> int:
        return 2


def strategy_of(rank: int = 0, size: int = 2) -> TapedStrategy:
    return TapedStrategy(rank, size, Tape())


@pytest.mark.parametrize(
    "loader",
    [
        make_loader("stream", make_batches(2)),
        make_loader("sized stream", make_batches(2)),
        Sized([1]),
        Unsized([1]),
        DataLoader(Indices(4), sampler=DistributedSampler(Indices(4), 2, 0)),
        DataLoader(Indices(4), sampler=Knowing(("num_replicas", "rank"))),
        DataLoader(Indices(4), batch_sampler=Knowing(("num_processes", "process_index"))),
        DataLoader(Indices(4), batch_sampler=Buckets(DistributedSampler(Indices(4), 2, 0))),
        DataLoader(Indices(4), batch_sampler=BatchSampler(DistributedSampler(Indices(4), 2, 0), 2, False)),
    ],
)
@pytest.mark.parametrize("stage", ["train", "validate"])
def test_a_loader_that_is_shared_out_already_or_cannot_be_is_taken_as_it_is(loader: Any, stage: str) -> None:
    assert share_out(loader, strategy_of(), stage=stage) is loader


@pytest.mark.parametrize("kind", KINDS)
def test_one_process_reads_the_loader_itself(kind: str) -> None:
    loader = make(kind, 4, 2, False)
    assert share_out(loader, strategy_of(size=1), stage="train") is loader
    combined = CombinedLoader([loader])
    assert share_out(combined, strategy_of(size=1), stage="test") is combined


def test_a_sampler_that_pads_evaluation_is_warned_of() -> None:
    loader = DataLoader(Indices(5), sampler=DistributedSampler(Indices(5), 2, 0))
    with pytest.warns(UserWarning, match="validate loader's DistributedSampler makes 6 samples of 5, so some do not"):
        share_out(loader, strategy_of(), stage="validate")


# What stays, and what is refused


def test_everything_else_of_the_loader_stays_and_the_users_own_is_as_it_was() -> None:
    generator = torch.Generator().manual_seed(5)
    loader = DataLoader(
        Indices(8), batch_size=3, shuffle=True, num_workers=2, generator=generator, timeout=30, prefetch_factor=3,
        persistent_workers=True, drop_last=True,
    )  # fmt: skip
    shared = share_out(loader, strategy_of(), stage="train")
    assert shared is not loader and isinstance(loader.sampler, RandomSampler)
    names = ("dataset", "num_workers", "collate_fn", "timeout", "generator", "prefetch_factor", "persistent_workers")
    for name in (*names, "batch_size", "drop_last"):
        assert getattr(shared, name) == getattr(loader, name), name


@pytest.mark.parametrize("stage", ["train", "test"])
def test_a_stateful_loader_keeps_its_class(stage: str) -> None:
    loader = StatefulDataLoader(Indices(8), shuffle=True, snapshot_every_n_steps=5)
    shared = share_out(loader, strategy_of(), stage=stage)
    assert type(shared) is StatefulDataLoader and shared.snapshot_every_n_steps == 5


def test_each_loader_of_a_combination_is_shared_out() -> None:
    loader = CombinedLoader({"a": make("sequential", 6, 1, False), "b": [CombinedLoader([Sized([1, 2])])]}, "min_size")
    shared = share_out(loader, strategy_of(1), stage="train")
    assert shared.mode == "min_size" and leaves_of(shared)[1] is leaves_of(loader)[1]
    assert [batch["a"].tolist() for batch in shared] == [[1], [3]]


def test_loaders_are_put_in_order_before_they_are_shared_out() -> None:
    with pytest.warns(UserWarning, match="the train loader's RandomSampler is left out"):
        ordered = in_order(make("shuffled", 8, 2, False), "train")
    assert as_lists(share_out(ordered, strategy_of(1), stage="train")) == [[1, 3], [5, 7]]


class Iterating(DataLoader[Any]):
    def __iter__(self) -> Any:
        return iter([1])


class IteratingStateful(StatefulDataLoader[Any]):
    def __iter__(self) -> Any:
        return iter([1])


@pytest.mark.parametrize("kind", [Iterating, IteratingStateful])
def test_a_loader_that_iterates_in_a_way_of_its_own_is_refused(kind: Any) -> None:
    message = (
        r"`train loader` must be one that iterates as a DataLoader does, to be shared out among 2 processes, .* "
        r"in share_out\. Give every process its share yourself, .* and pass use_distributed_sampler=False\."
    )
    with pytest.raises(ValueError, match=message):
        share_out(kind(Indices(2)), strategy_of(), stage="train")


class Endless(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        while True:
            yield 0


def test_a_sampler_without_a_length_is_refused() -> None:
    message = "`test loader` must be one whose sampler tells its length, to be shared out among 3 processes, but got"
    with pytest.raises(TypeError, match=message):
        share_out(DataLoader(Indices(2), sampler=Endless()), strategy_of(size=3), stage="test")


def test_a_sampler_that_gives_less_than_it_promises_is_an_error() -> None:
    class Short(Walk):
        def __iter__(self) -> Iterator[int]:
            return iter([0])

    loader = DataLoader(Indices(4), sampler=Short(4))
    with pytest.raises(RuntimeError, match="`sampler` must be a sampler of the 4 indices that it promises, but got 1 "):
        in_turn(2, lambda strategy: list(share_out(loader, strategy, stage="train")))


@pytest.mark.parametrize("stage", ["train", "validate"])
def test_a_sampler_that_draws_another_order_on_each_rank_is_an_error_on_all(stage: str) -> None:
    class Own(Sampler[int]):
        """Draws from a generator that nobody else sees, seeded differently on each rank."""

        def __init__(self, seed: int) -> None:
            self.rng = np.random.default_rng(seed)

        def __len__(self) -> int:
            return 50

        def __iter__(self) -> Iterator[int]:
            return iter(self.rng.permutation(50).tolist())

    message = "`sampler` must be one that draws the same order in every process .* use_distributed_sampler=False"

    def run(strategy: Any, seed: int) -> list[list[int]]:
        loader = share_out(DataLoader(Indices(50), sampler=Own(seed)), strategy, stage=stage)
        if stage != "train":
            prepare_orders(loader, strategy)
        return as_lists(loader)

    def run_differently(strategy: Any) -> None:
        with pytest.raises(ValueError, match=message):
            run(strategy, strategy.global_rank)

    on_ranks(2, run_differently)
    first, second = on_ranks(2, lambda strategy: run(strategy, 3))
    assert sorted(flat(first + second)) == list(range(50)), "seeded alike"


def test_ranks_with_data_of_their_own_are_told_so() -> None:
    def run(strategy: Any) -> None:
        loader = share_out(make("sequential", 5 + strategy.global_rank, 1, False), strategy, stage="train")
        training = TrainingBatches(loader, 0, "refuse", strategy)
        message = (
            r"`train loader` must be over the same data in every process.*lengths \[5, 6\].*_sampler=False if each"
        )
        with pytest.raises(ValueError, match=message):
            training.count(1.0, "limit")

    on_ranks(2, run)


# Epochs, limits


def test_samplers_within_samplers_are_told_the_epoch() -> None:
    inner, within = Seeded(4), Seeded(4)
    loader = DataLoader(Indices(4), batch_sampler=Buckets(within))
    set_epoch(loader, 3)
    assert within.epoch == 3
    for stage in ("train", "validate"):
        set_epoch(share_out(DataLoader(Indices(4), sampler=inner), strategy_of(), stage=stage), 4)
        set_epoch(share_out(loader, strategy_of(), stage=stage), 5)
        assert (inner.epoch, within.epoch) == (4, 5)
        inner.epoch = within.epoch = 0
    set_epoch(CombinedLoader([CombinedLoader([loader])]), 6)
    assert within.epoch == 6


@settings(deadline=None)
@given(length=st.integers(1, 30), size=sizes, share=st.floats(0.0, 1.0))
def test_a_share_of_the_batches_is_taken_before_they_are_shared_out(length: int, size: int, share: float) -> None:
    loader = make("sequential", length, 1, False)
    try:
        number = count_share(loader, loader, share, "limit", strategy_of(size=1))
    except ValueError:
        for rank in range(size):
            strategy = strategy_of(rank, size)
            shared = share_out(loader, strategy, stage="test")
            with pytest.raises(ValueError, match=f"at least one of the loader's {length} batches"):
                count_share(loader, shared, share, "limit", strategy)
        return
    taken = []
    for rank in range(size):
        strategy = strategy_of(rank, size)
        shared = share_out(loader, strategy, stage="test")
        mine = count_share(loader, shared, share, "limit", strategy)
        taken += [int(batch) for _, batch, _ in numbered(shared, mine)]
    assert sorted(taken) == list(range(int(number)))


def test_a_number_of_batches_is_that_of_each_process() -> None:
    loader = make("sequential", 7, 1, False)
    counts = []
    for rank in range(3):
        strategy = strategy_of(rank, 3)
        shared = share_out(loader, strategy, stage="test")
        counts.append([count_share(loader, shared, limit, "limit", strategy) for limit in (0, 2, 3, 9)])
    assert counts == [[0, 2, 3, 3], [0, 2, 2, 2], [0, 2, 2, 2]]


def test_an_order_that_is_always_the_same_needs_no_word_between_the_ranks() -> None:
    class Silent(TapedStrategy):
        def broadcast(self, value: Any, src: int = 0) -> Any:
            raise AssertionError("nothing to say")

        all_gather = broadcast

    for stage in ("train", "test"):
        shared = share_out(
            DataLoader(Indices(5), batch_sampler=BatchSampler(SequentialSampler(Indices(5)), 2, False)),
            Silent(0, 2, Tape()),
            stage=stage,
        )
        prepare_orders(shared, Silent(0, 2, Tape()))
        assert as_lists(shared) == ([[0, 2], [4]] if stage == "train" else [[0, 1], [4]])


def test_the_shorter_of_two_loaders_begins_anew_in_evaluation_without_the_ranks_that_have_ended() -> None:
    def run(strategy: Any) -> Any:
        loader = share_out(
            CombinedLoader([make("sequential", 5, 1, False), make("shuffled", 2, 1, False)]), strategy, stage="test"
        )
        prepare_orders(loader, strategy)
        before = len(strategy._tape.known[strategy.global_rank])
        batches = [[part.tolist() for part in batch] for batch in loader]
        assert len(strategy._tape.known[strategy.global_rank]) == before
        return batches

    first, second = in_turn(2, run)
    assert sorted(flat([batch[0] for batch in first + second])) == list(range(5))
    assert (len(first), len(second)) == (3, 2)

"""An epoch goes on with any number of processes, and each of its samples is seen once, in the epoch's order."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, get_args

import pytest
import torch
import torchdata.nodes as nodes
from bare_parts import make_batches, make_loader
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from simulated_worlds import Leg, in_their_order, read_chain
from test_shared_loader import Buckets, Indices, make
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, Sampler, SequentialSampler
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

from camshaft.loops import CombinedLoader
from camshaft.loops.data.combined_loader import CombinationMode
from camshaft.loops.data.samplers import ReplayedSampler
from camshaft.loops.state.random_state import random_state, restore_random_state

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

NUM_EPOCHS = 2
KINDS = (
    *("sequential", "shuffled", "own generator", "weighted", "subset", "replacement", "repeated"),
    *("seeded by epoch", "list", "stateful", "batch sampler", "buckets", "distributed", "stateful distributed"),
    *("distributed by length", "distributed batches"),
)

legs = st.lists(st.builds(Leg, st.integers(1, 8), st.integers(0, 12), st.integers(0, 2)), min_size=1, max_size=5)


class ByLength(Sampler[int]):
    """Takes lengths in place of a dataset, as that of transformers, and shares the order out."""

    def __init__(self, lengths: list[int], num_replicas: int, rank: int) -> None:
        self.lengths, self.num_replicas, self.rank, self.epoch = lengths, num_replicas, rank, 0
        self.num_samples = -(-len(lengths) // num_replicas)
        self.total_size = self.num_samples * num_replicas

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.num_samples

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.epoch)
        order = torch.randperm(len(self.lengths), generator=generator).tolist()
        order = (order * self.total_size)[: self.total_size]
        return iter(order[self.rank :: self.num_replicas])


class DistributedBatches(ByLength):
    """Shares batches out, and drops a last batch of fewer."""

    drop_last = True

    def __len__(self) -> int:
        return -(-(len(self.lengths) // 3) // self.num_replicas)

    def __iter__(self) -> Iterator[Any]:
        order = list(ByLength(self.lengths, 1, 0))
        batches = [order[first : first + 3] for first in range(0, len(order) - 2, 3)]
        yield from (batches * self.num_replicas)[self.rank : len(self) * self.num_replicas : self.num_replicas]


def loader_of(kind: str, length: int, batch_size: int, drop_last: bool, loader_class: Any, strategy: Any) -> Any:
    if kind == "buckets":
        return loader_class(Indices(length), batch_sampler=Buckets(RandomSampler(Indices(length))))
    if kind == "distributed by length":
        by_length = ByLength([1] * length, strategy.world_size, strategy.global_rank)
        return loader_class(Indices(length), batch_size, sampler=by_length, drop_last=drop_last)
    if kind == "distributed batches":
        batches = DistributedBatches([1] * length, strategy.world_size, strategy.global_rank)
        return loader_class(Indices(length), batch_sampler=batches)
    if kind in ("distributed", "stateful distributed"):
        sampler_class = DistributedSampler if kind == "distributed" else StatefulDistributedSampler
        sampler = sampler_class(Indices(length), strategy.world_size, strategy.global_rank, seed=3)
        return loader_class(Indices(length), batch_size, sampler=sampler, drop_last=drop_last)
    return make(kind, length, batch_size, drop_last, loader_class)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    kind=st.sampled_from(KINDS),
    loader_class=st.sampled_from([DataLoader, StatefulDataLoader]),
    length=st.integers(1, 40),
    batch_size=st.integers(1, 4),
    drop_last=st.booleans(),
    chain=legs,
)
@example("stateful", DataLoader, 26, 2, True, [Leg(1, 9), Leg(6, 0, 1)])
@example("shuffled", DataLoader, 40, 1, False, [Leg(1, 3), Leg(3, 2), Leg(2, 4, 1), Leg(8, 99)])
def test_each_sample_of_an_epoch_is_read_once_whatever_worlds_it_has(
    kind: str, loader_class: Any, length: int, batch_size: int, drop_last: bool, chain: list[Leg]
) -> None:
    def make_one(strategy: Any, drops: bool = drop_last) -> Any:
        return loader_of(kind, length, batch_size, drops, loader_class, strategy)

    whole = read_chain(lambda strategy: make_one(strategy, False), [Leg(1, -1)], NUM_EPOCHS)
    epochs = read_chain(make_one, [*chain, Leg(chain[-1].num_ranks, -1)], NUM_EPOCHS)
    for steps, expected in zip(epochs, whole, strict=True):
        found, order = in_their_order(steps), in_their_order(expected)
        if kind in ("buckets", "distributed batches"):
            found, order = ([batch for step in of_run for batch in step] for of_run in (steps, expected))
        num_padding = len(found) - len(order)
        if (kind, loader_class) == ("own generator", StatefulDataLoader):  # one process draws it at another moment
            assert sorted(set(found)) == sorted(order[: len(found)] if num_padding >= 0 else set(found))
            assert num_padding >= 0 or len(set(found)) == len(found)
            continue
        assert found[: len(order)] == order[: len(found)]
        assert all(sample in order for sample in found), "only padding comes twice"
        assert num_padding < 8
        assert num_padding >= 0 or (drop_last and -num_padding < 8 * batch_size)


def sequential(length: int, batch_size: int, **arguments: Any) -> DataLoader[int]:
    return DataLoader(Indices(length), batch_size, **arguments)


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    mode=st.sampled_from([mode for mode in get_args(CombinationMode) if mode != "weighted"]),
    sizes=st.tuples(st.tuples(st.integers(1, 30), st.integers(1, 3)), st.tuples(st.integers(1, 30), st.integers(1, 3))),
    chain=legs,
)
def test_each_of_several_loaders_goes_on_where_it_was(mode: Any, sizes: Any, chain: list[Leg]) -> None:
    def make_one(strategy: Any) -> Any:
        return CombinedLoader([sequential(*size) for size in sizes], mode)

    for steps in read_chain(make_one, [*chain, Leg(chain[-1].num_ranks, -1)], NUM_EPOCHS):
        of_steps = [[batch for batch in step if batch is not None] for step in steps]
        if mode == "sequential":
            found = in_their_order(of_steps)
            second = found.index(0, 1) if 0 in found[1:] else len(found)
            while len(found) - second > sizes[1][0] + 7:  # padding of the first may be a 0
                second = found.index(0, second + 1)
            assert set(found[:second]) == set(range(sizes[0][0])) or sizes[0][0] == 1
            assert set(found) == set(range(max(size for size, _ in sizes)))
            continue
        of_loaders = []
        for place, (length, _) in enumerate(sizes):
            batches = [[batch[place] for batch in step if batch[place] is not None] for step in of_steps]
            found = in_their_order([step for step in batches if step])
            assert found[:length] == list(range(min(length, len(found))))
            of_loaders.append(len(found) >= length)
        assert any(of_loaders) if mode == "min_size" else all(of_loaders)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    length=st.integers(8, 60),
    batch_size=st.integers(1, 3),
    limit=st.integers(1, 6),
    first=st.integers(1, 4),
    chain=legs,
)
def test_a_limit_leaves_out_the_same_samples_of_an_epoch_that_other_processes_end(
    length: int, batch_size: int, limit: int, first: int, chain: list[Leg]
) -> None:
    """Of a limited epoch the samples are those of the world in which it began."""
    chain = [Leg(first, min(limit - 1, 2)), *chain]
    steps = read_chain(lambda _: sequential(length, batch_size), [*chain, Leg(1, -1)], 1, limit)[0]
    found, num_expected = in_their_order(steps), min(length, limit * batch_size * first)
    if limit > 1:
        assert found[:num_expected] == list(range(num_expected))
        assert set(found) == set(range(num_expected))


@pytest.mark.parametrize("chain", [[Leg(1, 3), Leg(3, 1, 1), Leg(2, 1), Leg(2, -1)], [Leg(3, 3), Leg(2, -1)]])
def test_workers_read_what_the_process_itself_would_read(chain: list[Leg]) -> None:
    """Also in the next epoch, although they have read the sampler to its end when the checkpoint was saved."""

    def run(num_workers: int) -> Any:
        def make_one(_: Any) -> Any:
            generator = torch.Generator().manual_seed(1)
            return sequential(23, 2, num_workers=num_workers, shuffle=True, generator=generator)

        return read_chain(make_one, chain, 2)

    assert run(2) == run(0)


@pytest.mark.parametrize("chain", [[Leg(2, 3), Leg(1, -1)], [Leg(1, 12), Leg(2, -1)]])
def test_workers_that_persist_draw_their_seed_once(chain: list[Leg]) -> None:
    def make_one(_: Any) -> Any:
        return sequential(23, 2, num_workers=1, persistent_workers=True, shuffle=True)

    whole, found = read_chain(make_one, [Leg(1, -1)], 2), read_chain(make_one, chain, 2)
    for expected, steps in zip(whole, found, strict=True):
        assert in_their_order(steps)[:23] == in_their_order(expected)


@pytest.mark.parametrize("chain", [[Leg(2, 3), Leg(3, -1)], [Leg(1, 12), Leg(2, -1)]])
def test_nodes_of_a_sampler_begin_the_next_epoch_in_other_processes(chain: list[Leg]) -> None:
    def make_one(strategy: Any) -> Any:
        sampler = DistributedSampler(Indices(12), strategy.world_size, strategy.global_rank)
        return nodes.Loader(nodes.Batcher(nodes.SamplerWrapper(sampler), 2))

    whole = read_chain(make_one, [Leg(1, -1)], 3, in_threads=True)
    found = read_chain(make_one, chain, 3, in_threads=True)
    assert [in_their_order(steps) for steps in found] == [in_their_order(steps) for steps in whole]


class Lazy(Sampler[int]):
    """Draws as it goes from the numbers that everything else draws from."""

    def __len__(self) -> int:
        return 12

    def __iter__(self) -> Iterator[int]:
        left = list(range(12))
        while left:
            yield left.pop(random.randrange(len(left)))


class OfEach(DistributedSampler[int]):
    """Gives each process a part of its own drawing."""

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(12)[self.rank :: self.num_replicas].tolist())


class InBlocks(DistributedSampler[int]):
    """Gives each process a block."""

    def __iter__(self) -> Iterator[int]:
        each = 12 // self.num_replicas
        return iter(range(self.rank * each, (self.rank + 1) * each))


class CountedOnce(ByLength):
    """Asserts what it counted when it was made."""

    def __init__(self, lengths: list[int], num_replicas: int, rank: int) -> None:
        super().__init__(lengths, num_replicas, rank)
        self.num_each = self.num_samples

    def __iter__(self) -> Iterator[int]:
        order = list(super().__iter__())
        assert len(order) == self.num_each
        return iter(order)


@pytest.mark.parametrize(
    ("make_sampler", "then", "now"),
    [
        (lambda _: Lazy(), 1, 2),
        (lambda of: OfEach(Indices(12), of.world_size, of.global_rank), 2, 3),
        (lambda of: InBlocks(Indices(12), of.world_size, of.global_rank), 2, 3),
        (lambda of: InBlocks(Indices(12), of.world_size, of.global_rank), 3, 1),
        (lambda of: CountedOnce([1] * 12, of.world_size, of.global_rank), 1, 3),
        (lambda of: RandomSampler(Indices(12)) if of.world_size == 1 else SequentialSampler(Indices(12)), 1, 2),
        (lambda of: range(12 if of.world_size == 1 else 14), 1, 2),
    ],
)
def test_an_order_that_cannot_be_known_or_is_another_one_is_refused(make_sampler: Any, then: int, now: int) -> None:
    def make_one(strategy: Any) -> Any:
        return DataLoader(Indices(20), 1, sampler=make_sampler(strategy))

    with pytest.raises(ValueError, match=r"`sampler` must be .* in fit\. Use as many processes as then, or resume"):
        read_chain(make_one, [Leg(then, 2), Leg(now, -1)], 1)


class Counting(Sampler[Any]):
    """Counts its passes by itself."""

    def __init__(self, batch_size: int) -> None:
        self.batch_size, self.num_passes = batch_size, 0

    def __len__(self) -> int:
        return 48 // self.batch_size

    def __iter__(self) -> Iterator[Any]:
        self.num_passes += 1
        order = torch.randperm(48, generator=torch.Generator().manual_seed(self.num_passes))
        return iter(order.tolist() if self.batch_size == 1 else order.reshape(-1, self.batch_size).tolist())


@pytest.mark.parametrize("chain", [[Leg(1, 15), Leg(1, -1)], [Leg(1, 15), Leg(2, -1)], [Leg(2, 8), Leg(2, -1)]])
@pytest.mark.parametrize("by", ["sampler", "batch_sampler"])
def test_another_order_than_that_of_the_checkpoint_is_refused(by: str, chain: list[Leg]) -> None:
    def make_one(_: Any) -> Any:
        if by == "sampler":
            return DataLoader(Indices(48), 4, sampler=Counting(1))
        return DataLoader(Indices(48), batch_sampler=Counting(4))

    with pytest.raises(
        ValueError, match=r"`sampler` must be one that gives the order .*Counting.* Give it `state_dict`"
    ):
        read_chain(make_one, chain, 2)


class Each(Lazy):
    """Draws each item from the same ones."""

    def __iter__(self) -> Iterator[int]:
        return (random.randrange(1000) for _ in range(12))


def test_a_sampler_that_draws_as_it_goes_goes_on_if_it_keeps_nothing() -> None:
    def goes_on(make_sampler: type[Lazy]) -> bool:
        random.seed(0)
        whole, resumed = (iter(ReplayedSampler(make_sampler(), ())) for _ in range(2))
        next(whole), random.random(), next(whole), random.random(), next(whole)
        state, numbers = whole.state_dict(), random_state()
        expected = list(whole)
        resumed.load_state_dict(state)
        restore_random_state(numbers)
        return list(resumed) == expected

    assert goes_on(Each)
    with pytest.raises(ValueError, match=r"`sampler` must be one that gives the order .*Lazy"):
        goes_on(Lazy)


def test_data_of_each_process_is_not_shared_out_anew() -> None:
    def make_one(strategy: Any) -> Any:
        return CombinedLoader([sequential(12, 2), make_loader("sized", make_batches(6))])

    with pytest.raises(ValueError, match=r"`number of processes` must be that of the checkpoint \(1\).*\(Sized\)"):
        read_chain(make_one, [Leg(1, 2), Leg(2, -1)], 1, stateless="fast_forward")


def test_a_dataset_with_a_state_of_its_own_is_not_shared_out_anew() -> None:
    class Counting(Indices):
        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state: dict[str, Any]) -> None: ...

    with pytest.raises(ValueError, match=r"`number of processes` must be that of the checkpoint"):
        read_chain(lambda _: DataLoader(Counting(12), 2), [Leg(1, 2), Leg(2, -1)], 1)


def test_a_stateful_loader_whose_sampler_has_no_state_goes_on_with_its_order() -> None:
    def make_one(_: Any) -> Any:
        return StatefulDataLoader(Indices(20), 2, sampler=RandomSampler(Indices(20)))

    assert read_chain(make_one, [Leg(1, 4), Leg(1, -1)], 1) == read_chain(make_one, [Leg(1, -1)], 1)

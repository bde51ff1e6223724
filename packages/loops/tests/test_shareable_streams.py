"""A stream that can share its state anew goes on inside an epoch with any number of processes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
import torchdata.nodes as nodes
from simulated_worlds import Leg, in_their_order, read_chain
from torch.utils.data import DataLoader, IterableDataset

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

LENGTH = 24


class Sharing(IterableDataset[int]):
    """Gives each process every so-many-th sample from a place on that all have alike, and as many to each."""

    def __init__(self, strategy: Any) -> None:
        self.rank, self.num_ranks, self.first, self.loaded = strategy.global_rank, strategy.world_size, 0, 0

    def __iter__(self) -> Iterator[int]:
        self.first, self.loaded = self.loaded, 0
        return iter(self.places())

    def places(self) -> list[int]:
        end = self.first - (self.first - LENGTH) // self.num_ranks * self.num_ranks
        return [place % LENGTH for place in range(self.first + self.rank, end, self.num_ranks)]

    def shared_state(self, num_items: int) -> Any:
        return {"place": self.first + num_items}

    def load_shared_state(self, state: Any) -> None:
        self.loaded = state["place"]


class Staying(Sharing):
    """One whose state stays: each iteration begins where it says."""

    def __iter__(self) -> Iterator[int]:
        return iter(self.places())

    def load_shared_state(self, state: Any) -> None:
        self.first = state["place"]


class Measured(Sharing):
    """One that promises the length of a whole epoch, as MosaicML's datasets do."""

    def __len__(self) -> int:
        return -(-LENGTH // self.num_ranks)


class WithState(Sharing):
    """One with a state of each process as well, which as many processes go on from."""

    num_given = num_skipped = 0

    def __iter__(self) -> Iterator[int]:
        if not self.num_skipped:
            self.first, self.loaded = self.loaded, 0
        self.num_given, self.num_skipped = self.num_skipped, 0
        for place in self.places()[self.num_given :]:
            self.num_given += 1
            yield place

    def state_dict(self) -> dict[str, int]:
        return {"first": self.first, "num_given": self.num_given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.first, self.num_skipped = state["first"], state["num_given"]


class OfStreaming(IterableDataset[int]):
    """The same with the methods of MosaicML's datasets."""

    def __init__(self, strategy: Any) -> None:
        self.inner = Sharing(strategy)

    def __iter__(self) -> Iterator[int]:
        return iter(self.inner)

    def state_dict(self, num_samples: int, from_beginning: bool) -> dict[str, Any]:
        assert not from_beginning
        return {"sample_in_epoch": self.inner.first + num_samples}

    def load_state_dict(self, obj: dict[str, Any]) -> None:
        self.inner.loaded = obj["sample_in_epoch"]


class StreamingLoader(DataLoader[int]):
    """A loader with a state of its own, as MosaicML's has it."""

    def __iter__(self) -> Any:
        return super().__iter__()

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise AssertionError


class SharingNode(nodes.BaseNode[list[int]]):
    """A node of torchdata's that gives batches of such a stream."""

    def __init__(self, strategy: Any) -> None:
        super().__init__()
        self.inner = Sharing(strategy)
        self.load_shared_state = self.inner.load_shared_state

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        super().reset(initial_state)
        self.samples = iter(self.inner)
        self.num_given = 0 if initial_state is None else initial_state["num_given"]
        if initial_state is not None:
            self.inner.first = initial_state["first"]
            self.samples = iter(self.inner.places()[2 * self.num_given :])

    def next(self) -> list[int]:
        self.num_given += 1
        return [next(self.samples), *islice(self.samples, 1)]

    def get_state(self) -> dict[str, Any]:
        return {"first": self.inner.first, "num_given": self.num_given}

    def shared_state(self, num_items: int) -> Any:
        return self.inner.shared_state(2 * num_items)


CHAINS = [
    [Leg(1, 5), Leg(3, -1)],
    [Leg(3, 2, 1), Leg(2, 1), Leg(1, -1)],
    [Leg(2, 3), Leg(4, -1)],
    [Leg(1, 5), Leg(2, 1), Leg(2, 1), Leg(3, -1)],
    [Leg(1, 5), Leg(2, 6), Leg(2, -1)],
]


@pytest.mark.parametrize("kind", [Sharing, Staying, Measured, WithState, OfStreaming, SharingNode])
@pytest.mark.parametrize("chain", CHAINS)
def test_each_sample_of_a_shareable_stream_is_read_once_in_its_order(kind: Any, chain: list[Leg]) -> None:
    def make(strategy: Any) -> Any:
        if kind is SharingNode:
            return nodes.Loader(SharingNode(strategy))
        return (StreamingLoader if kind is OfStreaming else DataLoader)(kind(strategy), 2)

    epochs = read_chain(make, chain, 2, in_threads=True)
    for steps in epochs:
        found = in_their_order(steps)
        assert found[:LENGTH] == list(range(LENGTH)) and len(found) < LENGTH + 4


def test_any_other_stream_is_refused_with_what_to_do() -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(LENGTH))

    def make(_: Any) -> Any:
        return DataLoader(Stream(), 2)

    with pytest.raises(ValueError, match=r"`number of processes` must be .*\(1\).*`shared_state`"):
        read_chain(make, [Leg(1, 3), Leg(2, -1)], 1, stateless="fast_forward", in_threads=True)


def test_as_many_processes_go_on_with_a_shareable_stream_that_has_no_other_state() -> None:
    chain = [Leg(2, 3), Leg(2, 1), Leg(2, -1)]
    [steps] = read_chain(lambda strategy: DataLoader(Sharing(strategy), 2), chain, 1, in_threads=True)
    assert in_their_order(steps) == list(range(LENGTH))

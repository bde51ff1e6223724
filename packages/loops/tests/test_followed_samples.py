from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from camshaft.loops.data.combined_loader import CombinedLoader
from camshaft.loops.data.training_batches import TrainingBatches


class Places(Dataset[int]):
    """Gives the index that it is asked for, so that batches are their own indices."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return index


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(4))


def loader_of(length: int, batch_size: int | None, shuffle: bool, num_workers: int) -> DataLoader[int]:
    return DataLoader(Places(length), batch_size, shuffle=shuffle, num_workers=num_workers)


def in_batch(batch: Any) -> Any:
    """What `take_samples` has to tell of a batch."""
    if isinstance(batch, list):
        return [in_batch(part) for part in batch]
    return None if batch is None else torch.as_tensor(batch).reshape(-1).tolist()


def check_epochs(make: Any, num_epochs: int, stop: int) -> None:
    """Follow the samples of some epochs, the first one of which is stopped and gone on with elsewhere."""
    loader = make()
    batches = TrainingBatches(loader, len(loader))
    batches.follow_samples()
    iterator = iter(batches)
    for _ in range(stop):
        _, batch, _ = next(iterator)
        assert batches.take_samples() == in_batch(batch)
    state = batches.state_dict()
    del iterator
    resumed = TrainingBatches(make(), len(loader))
    resumed.follow_samples()
    resumed.load_state_dict(state, stop)
    num_batches = 0
    for _ in range(num_epochs):
        for _, batch, _ in resumed:
            assert resumed.take_samples() == in_batch(batch)
            assert resumed.take_samples() in (None, [None] * len(in_batch(batch)))
            num_batches += 1
        resumed.end_epoch()
    assert num_batches


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    batch_size=st.sampled_from([None, 1, 3]),
    shuffle=st.booleans(),
    mode=st.sampled_from(["min_size", "max_size", "max_size_cycle"]),
    stop=st.integers(0, 2),
)
def test_samples_of_each_batch_are_known_also_after_a_resume(
    lengths: list[int], batch_size: int | None, shuffle: bool, mode: Any, stop: int
) -> None:
    def make() -> Any:
        torch.manual_seed(1)
        loaders = [loader_of(length, batch_size, shuffle, 0) for length in lengths]
        return loaders[0] if len(loaders) == 1 else CombinedLoader(loaders, mode)

    num_batches = min(-(-length // (batch_size or 1)) for length in lengths)
    check_epochs(make, 2, min(stop, num_batches - 1))


@pytest.mark.parametrize("stop", [0, 5, 19])
def test_samples_are_known_of_what_workers_read_ahead(stop: int) -> None:
    check_epochs(lambda: loader_of(43, 2, True, 2), 2, stop)  # the state of workers is taken every 16 batches


class Backwards(BatchSampler):
    """Gives one list of its own, again and again."""

    def __iter__(self) -> Any:
        batch: list[int] = []
        for indices in super().__iter__():
            batch[:] = indices
            yield batch


def test_samples_of_a_batch_sampler_that_reuses_its_list() -> None:
    dataset = Places(7)
    check_epochs(lambda: DataLoader(dataset, batch_sampler=Backwards(RandomSampler(dataset), 3, False)), 1, 1)


@pytest.mark.parametrize(
    "loader",
    [
        *(DataLoader(Stream(), 2), StatefulDataLoader(Places(4), 2), [torch.ones(2)] * 3),
        DataLoader({"a": 1.0, "b": 2.0}, 1, sampler=["a", "b"]),
        CombinedLoader([DataLoader(Places(4), 2), DataLoader(Stream(), 2)]),
    ],
    ids=["stream", "own state", "no DataLoader", "keys", "with a stream"],
)
def test_samples_are_unknown_where_indices_are(loader: Any) -> None:
    batches = TrainingBatches(loader, 2)
    batches.follow_samples()
    for _ in batches:
        assert batches.take_samples() is None

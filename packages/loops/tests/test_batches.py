"""Loaders, their limits, and the last batch."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from bare_parts import (
    LOADER_KINDS,
    NUM_FEATURES,
    BareTrainer,
    Net,
    Sized,
    Stream,
    Unsized,
    hooked,
    make_batches,
    make_loader,
)
from hypothesis import given
from hypothesis import strategies as st
from overriding_parts import Data
from torch.utils.data import DataLoader, IterableDataset

from camshaft.loops import CombinedLoader, PredictLoop, TestLoop, ValidationLoop
from camshaft.loops.data.combined_loader import UNKNOWN
from camshaft.loops.data.loaders import count_batches, numbered, set_epoch

INFINITE = float("inf")


@pytest.mark.parametrize(
    ("length", "limit", "expected"),
    [(10, 1.0, 10), (10, 1, 1), (10, 0, 0), (10, 0.0, 0), (10, 25, 10), (10, 0.5, 5), (10, 0.29, 2), (0, 1.0, 0),
     (0, 0.5, 0), (0, 3, 0)],
)  # fmt: skip
def test_a_limit_is_a_number_or_a_share(length: int, limit: float, expected: int) -> None:
    assert count_batches(Sized(range(length)), limit, "limit") == expected


@pytest.mark.parametrize(("limit", "expected"), [(1.0, INFINITE), (3, 3), (0, 0), (0.0, 0)])
def test_a_limit_of_a_loader_of_unknown_length(limit: float, expected: float) -> None:
    assert count_batches(Unsized([]), limit, "limit") == expected
    assert count_batches(DataLoader(Stream([])), limit, "limit") == expected


def test_a_share_that_makes_less_than_one_batch_is_refused() -> None:
    message = "`limit_x` must be 0 or a share of at least one of the loader's 4 batches, but got 0.2 .* at least 0.25"
    with pytest.raises(ValueError, match=message):
        count_batches(Sized(range(4)), 0.2, "limit_x")


def test_a_share_of_an_unknown_length_is_refused() -> None:
    message = r"`limit_x` must be 1\.0 or an int for a loader of unknown length, but got 0\.5 \(float\)"
    with pytest.raises(ValueError, match=message):
        count_batches(Unsized(range(4)), 0.5, "limit_x")


@given(
    kind=st.sampled_from([kind for kind in LOADER_KINDS if kind != "dataloader"]),
    length=st.integers(0, 5),
    limit=st.just(1.0) | st.integers(0, 7),
)
def test_batches_come_in_order_and_the_last_is_known(kind: str, length: int, limit: float) -> None:
    loader = make_loader(kind, make_batches(length))
    taken = length if isinstance(limit, float) else min(length, limit)
    triples = list(numbered(loader, count_batches(loader, limit, "limit")))
    assert [batch_idx for batch_idx, _, _ in triples] == list(range(taken))
    assert [is_last for _, _, is_last in triples] == [batch_idx + 1 == taken for batch_idx in range(taken)]
    expected = make_batches(length)[:taken]
    assert all(torch.equal(batch[0], x) for (_, batch, _), (x, _) in zip(triples, expected, strict=True))


class Watched:
    """Counts what is read of it, and whether it was run to its end."""

    def __init__(self, length: int, given: int | None = None) -> None:
        self.length, self.given = length, length if given is None else given
        self.num_read = 0
        self.num_ended = 0

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        for number in range(self.given):
            self.num_read += 1
            yield number
        self.num_ended += 1


def test_a_loader_of_known_length_is_read_one_at_a_time() -> None:
    loader = Watched(3)
    assert [loader.num_read for _ in numbered(loader, 3)] == [1, 2, 3]


@pytest.mark.parametrize("limit", [2, 3])
def test_a_loader_of_known_length_is_not_read_beyond_its_batches(limit: int) -> None:
    loader = Watched(3)
    list(numbered(loader, limit))
    assert (loader.num_read, loader.num_ended) == (limit, 0)


class Strict:
    """A loader that is its own iterator, counts how often it is begun, and fails if it is read beyond its length."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.num_begun = self.position = 0

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Strict:
        self.num_begun, self.position = self.num_begun + 1, 0
        return self

    def __next__(self) -> Any:
        assert self.position < self.length, "read beyond its length"
        self.position += 1
        return make_batches(self.length)[self.position - 1]


class StrictUnsized(Strict):
    """The same without a length: it is its own iterator, and ends."""

    __len__ = None  # type: ignore[assignment]

    def __next__(self) -> Any:
        if self.position == self.length:
            raise StopIteration
        return super().__next__()


@pytest.mark.parametrize("mode", ["min_size", "max_size", "max_size_cycle", "sequential"])
def test_loaders_of_a_combination_are_not_read_beyond_their_lengths(mode: Any) -> None:
    combined = CombinedLoader([Strict(2), [Strict(5), Strict(3)]], mode)
    batches = [batch for _, batch, _ in numbered(combined, len(combined))]
    assert len(batches) == len(list(combined)) == {"min_size": 2, "sequential": 10}.get(mode, 5)


@pytest.mark.parametrize("kind", [Strict, StrictUnsized])
@pytest.mark.parametrize("limit", [1.0, 3, 2])
def test_a_loader_is_begun_once_an_epoch_though_it_is_its_own_iterator(kind: Any, limit: int | float) -> None:
    train, val = kind(3), kind(3)
    limits: dict[str, Any] = {"limit_train_batches": limit, "limit_val_batches": limit}
    trainer = BareTrainer(Net(), max_epochs=2, num_sanity_val_steps=1, **limits).fit(train, val)
    assert (train.num_begun, val.num_begun) == (2, 3)
    assert trainer.progress.total_batches == (4 if limit == 2 else 6)
    for verb, loop in (("validate", ValidationLoop()), ("test", TestLoop()), ("predict", PredictLoop())):
        loader = kind(3)
        trainer.verb(verb, loop, loader)
        assert loader.num_begun == 1


def test_a_sized_stream_is_not_read_beyond_its_length() -> None:
    class Short(IterableDataset[Any]):
        def __len__(self) -> int:
            return 3

        def __iter__(self) -> Iterator[Any]:
            yield from make_batches(3)
            raise AssertionError("read beyond its length")

    loader = DataLoader(Short(), batch_size=None)
    assert len(list(numbered(loader, 3))) == 3
    assert BareTrainer(Net(), max_epochs=2).fit(loader, loader).progress.total_batches == 6
    assert len(list(numbered(CombinedLoader([loader, Strict(4)]), 4))) == 4


class Endless(torch.utils.data.Sampler[int]):
    """A sampler that gives more than it promises, and tells when it comes to an end."""

    def __init__(self, given: int) -> None:
        self.given = given
        self.num_ended = 0

    def __len__(self) -> int:
        return 4

    def __iter__(self) -> Iterator[int]:
        yield from range(self.given)
        self.num_ended += 1


class Asked(torch.utils.data.Dataset[Any]):
    """A dataset that remembers what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> Any:
        self.asked.append(index)
        return torch.ones(NUM_FEATURES), torch.ones(1)


@pytest.mark.parametrize(("given", "num_ended"), [(4, 2), (9, 0)])
def test_a_sampler_comes_to_its_end_and_no_data_is_read_beyond_its_length(given: int, num_ended: int) -> None:
    dataset, sampler = Asked(), Endless(given)
    BareTrainer(Net(), max_epochs=2).fit(DataLoader(dataset, sampler=sampler, batch_size=2))
    assert (dataset.asked, sampler.num_ended) == ([0, 1, 2, 3] * 2, num_ended)


def test_a_loader_that_waits_at_its_end_begins_anew() -> None:
    class Waiting(Watched):
        position = 0

        def __iter__(self) -> Iterator[Any]:
            while self.position < self.length:
                self.position += 1
                yield make_batches(1)[0]
            self.position = 0

    assert BareTrainer(Net(), max_epochs=3).fit(Waiting(2)).progress.total_batches == 6


def test_a_stream_is_read_one_ahead_but_never_past_its_limit() -> None:
    read: list[int] = []

    class Reading(Stream):
        def __iter__(self) -> Iterator[int]:
            for number in range(9):
                read.append(number)
                yield number

    loader = DataLoader(Reading([]), batch_size=None)
    assert [len(read) for _ in numbered(loader, 3)] == [2, 3, 3]


def test_a_loader_that_gives_less_than_it_promised_is_an_error() -> None:
    batches = numbered(Watched(3, given=1), 3)
    assert next(batches) == (0, 0, False)
    message = "`Watched` must give the 3 batches that it promises, but got 1 .int. in this epoch: it ended early"
    with pytest.raises(RuntimeError, match=message):
        next(batches)


def test_what_a_loader_gives_beyond_its_promise_is_left_out() -> None:
    assert list(numbered(Watched(2, given=5), 2)) == [(0, 0, False), (1, 1, True)]


def test_a_sized_stream_may_give_less_than_it_promised() -> None:
    batches = make_batches(2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        triples = list(numbered(DataLoader(Stream(batches, 5), batch_size=None), 5))
    assert [is_last for _, _, is_last in triples] == [False, True]


def test_a_limit_may_be_more_than_a_loader_of_unknown_length_gives() -> None:
    trainer = BareTrainer(Net(), max_epochs=1, limit_train_batches=10, accumulate_grad_batches=2)
    trainer.fit(Unsized(make_batches(3)), Sized([]))
    assert (trainer.progress.total_batches, trainer.global_step) == (3, 2)


def test_samplers_are_told_the_epoch() -> None:
    class Sampler:
        def __init__(self) -> None:
            self.epochs: list[int] = []

        def set_epoch(self, epoch: int) -> None:
            self.epochs.append(epoch)

    loader = Sized(make_batches(1))
    loader.sampler = Sampler()  # type: ignore[attr-defined]
    loader.batch_sampler = Sampler()  # type: ignore[attr-defined]
    BareTrainer(Net(), max_epochs=3).fit(loader, Sized([]))
    assert loader.sampler.epochs == loader.batch_sampler.epochs == [0, 1, 2]  # type: ignore[attr-defined]
    set_epoch(Sized([]), 1)  # nobody to tell


def test_what_is_no_loader_is_refused() -> None:
    for stage, loaders in (
        ("train", (3, None)),
        ("validate", (Sized([]), 3)),
        ("validate", (Sized([]), [Sized([]), 3])),
    ):
        message = rf"`{stage} loaders` must be a loader .*, but got 3 \(int\)"
        with pytest.raises(TypeError, match=message):
            BareTrainer(Net(), max_epochs=1).fit(*loaders)
    with pytest.raises(TypeError, match="but got 3"):
        BareTrainer(Net(), max_epochs=1).fit([Sized([]), 3])


def test_loaders_that_were_passed_win_over_the_data_module_and_that_over_the_module() -> None:
    class Providing(Net):
        def train_dataloader(self) -> Any:
            return Sized(make_batches(1))

        def val_dataloader(self) -> Any:
            return Sized(make_batches(1))

    class Partial:
        def train_dataloader(self) -> Any:
            return Sized(make_batches(2))

    def num_batches(data: Any, given: Any) -> tuple[Any, Any]:
        loop = BareTrainer(Providing(), data=data, max_epochs=0).fit(given).fit_loop
        return loop.num_batches, loop.validation.num_batches

    assert num_batches(None, None) == (1, [1])
    assert num_batches(Partial(), None) == (2, [1])
    assert num_batches(Data(train=make_batches(3), val=make_batches(2)), None) == (3, [2])
    assert num_batches(Partial(), Sized(make_batches(4))) == (4, [1])


def test_transfer_hooks_see_each_batch_in_their_order_and_may_replace_it() -> None:
    seen: list[Any] = []

    class Moving(Net):
        def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
            return [*batch, "before", dataloader_idx]

        def transfer_batch_to_device(self, batch: Any, device: Any, dataloader_idx: int) -> Any:
            return [*batch, str(device)]

        def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
            seen.append(batch[2:])
            return batch[:2]

    BareTrainer(Moving(), max_epochs=1).fit(Sized(make_batches(1)), [Sized([]), Sized(make_batches(1))])
    assert seen == [["before", 0, "cpu"], ["before", 1, "cpu"]]


def test_a_strategy_on_another_device_moves_each_batch() -> None:
    moved: list[Any] = []
    trainer = BareTrainer(Net(), callbacks=[hooked()], max_epochs=1)
    trainer.strategy.device = torch.device("meta")
    trainer.strategy.batch_to_device = lambda batch: (moved.append(batch), batch)[1]
    trainer.fit(Sized(make_batches(2)), Sized(make_batches(1)))
    assert len(moved) == 3


def test_unknown_is_infinite() -> None:
    assert UNKNOWN == INFINITE


@pytest.mark.parametrize("accumulate", [1, 2])
def test_batches_of_none_are_counted_and_left_out(accumulate: int) -> None:
    class Counting(Net):
        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            seen.append(batch_idx)

        def on_validation_start(self) -> None:
            validated.append(trainer.fit_loop.progress.batches.ready - 1)

    seen: list[int] = []
    validated: list[int] = []
    batches = make_batches(6)
    given: list[Any] = [batches[0], None, *batches[1:3], batches[3], None]
    trainer = BareTrainer(
        Counting(), max_epochs=2, accumulate_grad_batches=accumulate, val_check_interval=2, num_sanity_val_steps=0
    )
    with pytest.warns(UserWarning, match="gave None in place of a batch") as told:
        trainer.fit(Sized(given), Sized(batches))
    assert seen == [0, 2, 3, 4] * 2
    assert validated == [1, 3, 5] * 2
    assert (trainer.global_step, trainer.progress.total_batches) == (8 // accumulate, 12)
    assert len([one for one in told if "None in place" in str(one.message)]) == 1

"""Ranks whose training data differ in length: an epoch ends at the same batch on all of them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from bare_parts import BareTrainer, Net, Sized, Unsized, hooked, make_batches, make_loader, same_bits, weights
from bare_ranks import ThreadedStrategy, on_ranks
from hypothesis import given, settings
from hypothesis import strategies as st
from resumable_data import Own

from camshaft.loops import CombinedLoader
from camshaft.loops.data.fit_data import FitData, LoaderSettings
from camshaft.loops.data.training_batches import TrainingBatches

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

KINDS = ("sized", "unsized", "stream", "sized stream", "known and unknown", "sure and unsure")


def loader_of(kind: str, length: int, rank: int) -> Any:
    """A loader that is not shared out; of two kinds the first rank knows more of its length."""
    if kind == "known and unknown":
        kind = "sized stream" if rank == 0 else "unsized"
    if kind == "sure and unsure":
        kind = "sized" if rank == 0 else "sized stream"
    return make_loader(kind, make_batches(length))


def fit(strategy: ThreadedStrategy, loader: Any, module: Net | None = None, **arguments: Any) -> BareTrainer:
    trainer = BareTrainer(Net() if module is None else module, strategy=strategy, **{"max_epochs": 2} | arguments)
    return trainer.fit(loader, Sized([]))


@settings(max_examples=30, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    lengths=st.lists(st.integers(1, 5), min_size=2, max_size=3),
    limit=st.sampled_from([1.0, 1, 2, 4]),
)
def test_all_ranks_train_on_as_many_batches_as_the_shortest_loader_has(
    kind: str, lengths: list[int], limit: Any
) -> None:
    def run(strategy: ThreadedStrategy) -> list[tuple[int, bool]]:
        seen: list[tuple[int, bool]] = []

        def note(trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            seen.append((batch_idx, trainer.fit_loop.is_last_batch))

        loader = loader_of(kind, lengths[strategy.global_rank], strategy.global_rank)
        fit(strategy, loader, callbacks=[hooked(on_train_batch_end=note)], limit_train_batches=limit)
        return seen

    number = min(lengths) if isinstance(limit, float) else min(*lengths, limit)
    epoch = [(batch_idx, batch_idx + 1 == number) for batch_idx in range(number)]
    assert on_ranks(len(lengths), run) == [epoch * 2] * len(lengths)


def lengths_of(training: TrainingBatches) -> list[int]:
    return [len(list(training)) for _ in range(2)]


def count(loader: Any, strategy: Any) -> TrainingBatches:
    training = TrainingBatches(loader, 0, "fast_forward", strategy)
    training.count(1.0, "limit")
    return training


@pytest.mark.parametrize("mode", ["min_size", "max_size", "max_size_cycle", "sequential"])
@pytest.mark.parametrize("kind", KINDS)
def test_each_loader_of_a_combination_ends_on_all_ranks_at_once(mode: Any, kind: str) -> None:
    lengths = ((2, 7), (5, 3))
    expected = {"min_size": 2, "max_size": 3, "max_size_cycle": 3, "sequential": 5}[mode]

    def run(strategy: ThreadedStrategy) -> list[int]:
        rank = strategy.global_rank
        leaves = [loader_of(kind, length, rank) for length in lengths[rank]]
        return lengths_of(count(CombinedLoader(leaves, mode), strategy))

    assert on_ranks(2, run) == [[expected] * 2] * 2


def test_a_stream_beside_data_that_is_shared_out_leaves_the_ranks_in_step() -> None:
    x = torch.arange(4.0).reshape(4, 1)

    def run(strategy: ThreadedStrategy) -> int:
        shared = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), batch_size=1)
        stream = make_loader("stream", make_batches(3 + 4 * strategy.global_rank))
        data = CombinedLoader([stream, shared])

        class Step(Net):
            def training_step(self, batch: Any, batch_idx: int) -> Any:
                return self.loss(batch[0]) + batch[1][0].sum() * 0

        return fit(strategy, data, Step()).global_step

    assert on_ranks(2, run) == [6, 6], "3 batches of each stream; the shared data has 2, and begins anew"


def test_loaders_of_equal_known_lengths_cost_nothing_per_batch() -> None:
    def run(strategy: ThreadedStrategy) -> int:
        training = count(Sized(make_batches(20)), strategy)
        strategy.barrier()
        before = strategy.exchange.num_rounds
        assert lengths_of(training) == [20, 20]
        return strategy.exchange.num_rounds - before

    assert on_ranks(2, run) == [0, 0]


def test_other_lengths_than_before_are_agreed_upon_anew() -> None:
    class Growing(Sized):
        def __iter__(self) -> Iterator[Any]:
            batches = list(self.batches)
            self.batches += make_batches(1 + strategies[id(self)])
            return iter(batches)

    strategies: dict[int, int] = {}

    def run(strategy: ThreadedStrategy) -> list[int]:
        loader = Growing(make_batches(2))
        strategies[id(loader)] = strategy.global_rank
        numbers: list[int] = []
        callback = hooked(on_train_epoch_start=lambda trainer, *_: numbers.append(trainer.fit_loop.num_batches))
        fit(strategy, loader, callbacks=[callback], reload_dataloaders_every_n_epochs=1, max_epochs=3)
        return numbers

    assert on_ranks(2, run) == [[2, 3, 4]] * 2


class Quiet(Own):
    """Without random numbers, which threads share."""

    def __init__(self, num_batches: int, start: float = 0.0) -> None:
        super().__init__(num_batches)
        self.start = start

    def __iter__(self) -> Iterator[Any]:
        while self.position < self.num_batches:
            self.position += 1
            x = torch.full((1, 3), self.start + self.position)
            yield x, x.sum(1, keepdim=True) / 10
        self.position = 0


class QuietSized(Quiet):
    def __len__(self) -> int:
        return self.num_batches


@settings(max_examples=20, deadline=None)
@given(
    kind=st.sampled_from([Quiet, QuietSized]), lengths=st.tuples(st.integers(2, 5), st.integers(2, 5)), data=st.data()
)
def test_going_on_inside_an_epoch_is_exact_on_each_rank(kind: Any, lengths: tuple[int, int], data: Any) -> None:
    stop = data.draw(st.integers(0, min(lengths) - 1))
    module = Net()

    def run(strategy: ThreadedStrategy) -> bool:
        def save(trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx == stop:
                trainer.save_checkpoint("x.ckpt")

        length = lengths[strategy.global_rank]
        callback = hooked(on_train_batch_end=save)
        straight, resumed = copy.deepcopy(module), copy.deepcopy(module)
        first = fit(strategy, kind(length), straight, callbacks=[callback], max_epochs=1)
        second = BareTrainer(resumed, strategy=strategy, max_epochs=1)
        second.fit(kind(length), Sized([]), first.load("x.ckpt"))
        return same_bits(weights(straight), weights(resumed)) and second.global_step == min(lengths)

    assert on_ranks(2, run) == [True, True]


@pytest.mark.parametrize("stop", range(5))
def test_going_on_in_one_loader_after_the_other_is_exact(stop: int) -> None:
    lengths = ((2, 7), (5, 3))  # so 2 and 3 batches on both ranks

    def count_anew(strategy: Any) -> TrainingBatches:
        leaves = [QuietSized(length, 10.0 * idx) for idx, length in enumerate(lengths[strategy.global_rank])]
        return count(CombinedLoader(leaves, "sequential"), strategy)

    def run(strategy: ThreadedStrategy) -> tuple[list[float], list[float]]:
        seen, training = [], count_anew(strategy)
        for batch_idx, (x, _), _ in training:
            seen.append(float(x[0, 0]))
            if batch_idx == stop:
                state = training.state_dict()
        training = count_anew(strategy)
        training.load_state_dict(state, stop + 1)
        return seen, [float(x[0, 0]) for _, (x, _), _ in training]

    expected = [1.0, 2.0, 11.0, 12.0, 13.0]
    assert on_ranks(2, run) == [(expected, expected[stop + 1 :])] * 2


def test_ranks_with_different_numbers_of_loaders_are_told_so() -> None:
    def run(strategy: ThreadedStrategy) -> None:
        loaders = [Sized(make_batches(2)) for _ in range(1 + strategy.global_rank)]
        with pytest.raises(ValueError, match=r"`train loaders` must be as many in every process, but got \[1, 2\]"):
            count(CombinedLoader(loaders), strategy)

    on_ranks(2, run)


def test_an_unknown_length_on_one_rank_is_unknown_on_all() -> None:
    def run(strategy: ThreadedStrategy) -> float:
        loader = (Sized if strategy.global_rank == 0 else Unsized)(make_batches(2))
        training = count(loader, strategy)
        assert lengths_of(training) == [2, 2]
        return training.num_batches

    assert on_ranks(2, run) == [float("inf")] * 2


@pytest.mark.parametrize("shares", [True, False])
def test_sharing_can_be_switched_off(shares: bool) -> None:
    from camshaft.loops import FitLimits, Run, ValidationLoop
    from camshaft.loops.state.progress import FitProgress

    def run(strategy: ThreadedStrategy) -> float:
        class Data:
            def train_dataloader(self) -> Any:
                return make_loader("dataloader", make_batches(4))

        run = Run(verb="fit", module=Net(), strategy=strategy, trainer=None, data=Data())
        run.resolve_hooks(())
        settings = LoaderSettings(use_distributed_sampler=shares)
        data = FitData(run, FitLimits(), ValidationLoop(limit_batches=0), FitProgress(), settings)
        data.load()
        return data.num_batches

    assert on_ranks(2, run) == [2, 2] if shares else [4, 4]

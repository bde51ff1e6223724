"""Evaluation on several ranks: every sample counts once, and nobody waits for a rank that has no more."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from bare_parts import BareTrainer, Net, Sized, Unsized, hooked, make_batches, make_loader
from bare_ranks import ThreadedStrategy, on_ranks
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from camshaft.hooks_core.check import check
from camshaft.hooks_core.trace import Trace
from camshaft.loops import PredictLoop, TestLoop, ValidationLoop

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

LOOPS = {"validate": ValidationLoop, "test": TestLoop, "predict": PredictLoop}
VERBS = sorted(LOOPS)
OWN_KINDS = ("sized", "unsized", "stream", "sized stream")


def numbers(length: int, batch_size: int = 2, **arguments: Any) -> DataLoader[Any]:
    """Samples that are their index."""
    x = torch.arange(float(length)).repeat(3, 1).T
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=batch_size, **arguments)


class Seeing(Net):
    """Remembers what it evaluated: the loader, the batch's index and its samples."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[int, int, list[float]]] = []

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
        self.seen.append((dataloader_idx, batch_idx, batch[0][:, 0].tolist()))
        return batch[0][:, 0]

    test_step = predict_step = validation_step


def evaluate(strategy: Any, verb: Any, loaders: Any, module: Seeing | None = None, **arguments: Any) -> Any:
    module = Seeing() if module is None else module
    result = BareTrainer(module, strategy=strategy).verb(verb, LOOPS[verb](**arguments), loaders)
    return module.seen, result


def whole(lengths: list[int]) -> list[tuple[int, list[float]]]:
    """The batches of one process, each with its loader."""
    return [
        (loader_idx, batch[0][:, 0].tolist()) for loader_idx, length in enumerate(lengths) for batch in numbers(length)
    ]


@settings(max_examples=60, deadline=None)
@given(
    verb=st.sampled_from(VERBS),
    lengths=st.lists(st.integers(0, 11), min_size=1, max_size=3).filter(any),
    size=st.integers(2, 4),
)
def test_every_sample_counts_once_in_the_batch_in_which_it_is_on_one_process(
    verb: str, lengths: list[int], size: int
) -> None:
    def run(strategy: ThreadedStrategy) -> Any:
        seen, _ = evaluate(strategy, verb, [numbers(length) for length in lengths])
        return seen, strategy.num_idle_steps

    results = on_ranks(size, run)
    batches = [(loader_idx, samples) for seen, _ in results for loader_idx, _, samples in seen]
    assert sorted(batches) == sorted(whole(lengths))
    num_batches = [-(-length // 2) for length in lengths]
    for rank, (seen, num_idle_steps) in enumerate(results):
        mine = [
            (idx, batch_idx)
            for idx, number in enumerate(num_batches)
            for batch_idx in range(len(range(rank, number, size)))
        ]
        assert [(loader_idx, batch_idx) for loader_idx, batch_idx, _ in seen] == mine
        assert len(mine) + num_idle_steps == sum(-(-number // size) for number in num_batches), "in step with all"


@settings(max_examples=40, deadline=None)
@given(kind=st.sampled_from(OWN_KINDS), lengths=st.lists(st.integers(0, 4), min_size=2, max_size=3).filter(any))
def test_loaders_that_are_not_shared_out_are_run_to_their_end_on_each_rank(kind: str, lengths: list[int]) -> None:
    def run(strategy: ThreadedStrategy) -> tuple[int, int]:
        loaders = [make_loader(kind, make_batches(lengths[strategy.global_rank])), make_loader(kind, make_batches(1))]
        return len(evaluate(strategy, "test", loaders)[0]), strategy.num_idle_steps

    assert on_ranks(len(lengths), run) == [(length + 1, max(lengths) - length) for length in lengths]


def test_a_length_that_one_rank_does_not_know_is_asked_for_batch_by_batch() -> None:
    def run(strategy: ThreadedStrategy) -> tuple[int, int]:
        loader = (Sized if strategy.global_rank == 0 else Unsized)(make_batches(1 + 2 * strategy.global_rank))
        return len(evaluate(strategy, "validate", loader)[0]), strategy.num_idle_steps

    assert on_ranks(2, run) == [(1, 2), (3, 0)]


@pytest.mark.parametrize("kind", ["unsized", "stream"])
def test_a_limit_may_be_more_than_there_is(kind: str) -> None:
    def run(strategy: ThreadedStrategy) -> tuple[int, int]:
        loader = make_loader(kind, make_batches(1 + 2 * strategy.global_rank))
        return len(evaluate(strategy, "test", loader, limit_batches=9)[0]), strategy.num_idle_steps

    assert on_ranks(2, run) == [(1, 2), (3, 0)]


@pytest.mark.parametrize("limit", [1.0, 0.75, 0.25, 2, 9])
@pytest.mark.parametrize("verb", VERBS)
def test_a_rank_without_batches_has_the_hooks_of_the_epoch_all_the_same(verb: Any, limit: Any) -> None:
    def run(strategy: ThreadedStrategy) -> tuple[int, bool]:
        module, callback, trace = Seeing(), hooked(), Trace()
        trace.record(callback, "callback")
        trace.record(module, "module")
        trainer = BareTrainer(module, callbacks=[callback], strategy=strategy)
        trainer.verb(verb, LOOPS[verb](limit_batches=limit), numbers(4, batch_size=1))
        check(trace, verb)
        word = "validation" if verb == "validate" else verb
        return len(module.seen), any(event.hook == f"on_{word}_epoch_end" for event in trace)

    number = {1.0: 4, 0.75: 3, 0.25: 1}.get(limit, 4)
    assert on_ranks(5, run) == [(int(rank < number), True) for rank in range(5)]


def test_without_any_batch_on_any_rank_nothing_runs() -> None:
    def run(strategy: ThreadedStrategy) -> Any:
        assert evaluate(strategy, "validate", numbers(0)) == ([], [])
        return evaluate(strategy, "predict", [numbers(0)], gather=True)

    assert on_ranks(2, run) == [([], [])] * 2


def test_the_numbers_of_batches_are_agreed_upon_once() -> None:
    def run(strategy: ThreadedStrategy) -> int:
        evaluate(strategy, "test", [numbers(40), numbers(30)])
        strategy.barrier()
        return strategy.exchange.num_rounds

    assert on_ranks(2, run) == [3, 3], "whether there are any, how many of each, and the barrier above"


def test_ranks_with_data_or_loaders_of_their_own_are_told_so() -> None:
    def of_other_lengths(strategy: ThreadedStrategy) -> None:
        message = r"`validate loader` must be over the same data in every process.*lengths \[2, 3\] of all processes"
        with pytest.raises(ValueError, match=message):
            evaluate(strategy, "validate", numbers(4 + 2 * strategy.global_rank))

    def of_other_numbers(strategy: ThreadedStrategy) -> None:
        message = r"`validate loaders` must be as many in every process, but got \[1, 2\]"
        with pytest.raises(ValueError, match=message):
            evaluate(strategy, "validate", [numbers(4)] * (1 + strategy.global_rank))

    on_ranks(2, of_other_lengths)
    on_ranks(2, of_other_numbers)


def test_sharing_can_be_switched_off() -> None:
    def run(strategy: ThreadedStrategy) -> int:
        return len(evaluate(strategy, "test", numbers(6), use_distributed_sampler=False)[0])

    assert on_ranks(2, run) == [3, 3]


def test_samplers_are_told_the_epoch_of_validation_within_fit() -> None:
    class Sampler:
        def __init__(self) -> None:
            self.epochs: list[int] = []

        def set_epoch(self, epoch: int) -> None:
            self.epochs.append(epoch)

    loader = Sized(make_batches(1))
    loader.sampler = Sampler()  # type: ignore[attr-defined]
    BareTrainer(Net(), max_epochs=3).fit(Sized(make_batches(1)), loader)
    assert loader.sampler.epochs == [0, 1, 2]  # type: ignore[attr-defined]


# Within fit


@pytest.mark.parametrize("num_steps", [0, 1, -1])
def test_validation_and_the_sanity_check_within_fit_are_in_step(num_steps: int) -> None:
    def run(strategy: ThreadedStrategy) -> tuple[list[float], int]:
        module = Seeing()
        trainer = BareTrainer(module, strategy=strategy, max_epochs=2, num_sanity_val_steps=num_steps)
        trainer.fit(numbers(6), numbers(5))
        return [sample for _, _, samples in module.seen for sample in samples], strategy.num_idle_steps

    first, second = on_ranks(2, run)
    sanity = {0: ([], []), 1: ([0, 1], [2, 3]), -1: ([0, 1, 4], [2, 3])}[num_steps]
    assert first[0] == [*sanity[0], *[0, 1, 4] * 2]
    assert second[0] == [*sanity[1], *[2, 3] * 2]
    assert (first[1], second[1]) == (0, 2 + (num_steps == -1))


def test_a_rank_without_validation_data_of_its_own_validates_with_the_others() -> None:
    def run(strategy: ThreadedStrategy) -> tuple[int, int]:
        module = Seeing()
        trainer = BareTrainer(module, strategy=strategy, max_epochs=1)
        trainer.fit(numbers(4), numbers(2))
        return len(module.seen), strategy.num_idle_steps

    assert on_ranks(2, run) == [(1, 0), (0, 1)]


@pytest.mark.parametrize(("overfit", "expected"), [(2, [[0, 1, 4, 5], [2, 3, 6, 7]]), (0.5, [[0, 1], [2, 3]])])
def test_batches_that_are_overfitted_are_put_in_order_and_shared_out(overfit: Any, expected: Any) -> None:
    def run(strategy: ThreadedStrategy) -> list[float]:
        module = Seeing()
        trainer = BareTrainer(module, strategy=strategy, max_epochs=1, overfit_batches=overfit)
        trainer.fit(numbers(16), numbers(8, shuffle=True))
        return [sample for _, _, samples in module.seen for sample in samples]

    assert on_ranks(2, run) == expected


# Predictions


@settings(max_examples=40, deadline=None)
@given(lengths=st.lists(st.integers(0, 11), min_size=1, max_size=3), size=st.integers(2, 4))
def test_gathered_predictions_are_those_of_one_process_in_its_order(lengths: list[int], size: int) -> None:
    def run(strategy: ThreadedStrategy) -> Any:
        return evaluate(strategy, "predict", [numbers(length) for length in lengths], gather=True)[1]

    alone = on_ranks(1, run)[0]
    for predictions in on_ranks(size, run):
        assert as_lists(predictions) == as_lists(alone)


def as_lists(predictions: Any) -> Any:
    if isinstance(predictions, torch.Tensor):
        return predictions.tolist()
    return [as_lists(one) for one in predictions]


def test_without_gathering_each_rank_has_its_own_predictions() -> None:
    def run(strategy: ThreadedStrategy) -> Any:
        return as_lists(evaluate(strategy, "predict", numbers(5))[1])

    assert on_ranks(2, run) == [[[0.0, 1.0], [4.0]], [[2.0, 3.0]]]


def test_gathering_keeps_ranks_without_predictions_and_loaders_of_unknown_length_in_turn() -> None:
    def run(strategy: ThreadedStrategy) -> Any:
        batches = [(torch.full((1, 3), 10.0 * strategy.global_rank + number), None) for number in range(2)]
        loaders = [Unsized(batches[: 2 * (strategy.global_rank != 1)]), numbers(1)]
        return as_lists(evaluate(strategy, "predict", loaders, gather=True)[1])

    assert on_ranks(3, run) == [[[[0.0], [20.0], [1.0], [21.0]], [[0.0]]]] * 3


def test_predictions_that_nobody_wants_are_not_gathered() -> None:
    def run(strategy: ThreadedStrategy) -> Any:
        loop = PredictLoop(gather=True)
        loop.return_predictions = False
        return BareTrainer(Seeing(), strategy=strategy).verb("predict", loop, numbers(5))

    assert on_ranks(2, run) == [None, None]

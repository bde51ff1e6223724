"""Several processes stop, and save, at the same batch, whichever of them wants it."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from bare_parts import BareStrategy, BareTrainer, Net, hooked, make_loader, same_bits, weights
from bare_ranks import ThreadedStrategy, on_ranks
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks_in_threads import Exchange

from camshaft.loops import FitLimits
from camshaft.loops.fit.limits import Agreement
from camshaft.loops.state.progress import FitProgress


def batches(number: int) -> Any:
    x = torch.arange(float(3 * number)).reshape(number, 1, 3)
    return make_loader("sized", [(row, row.sum(1, keepdim=True)) for row in x])


def stopper(rank: int, at: tuple[int, int], act: Any) -> Any:
    """A callback that acts on one rank, after one batch."""

    def on_train_batch_end(trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.strategy.global_rank == at[0] == rank and batch_idx == at[1]:
            act(trainer)

    return hooked(on_train_batch_end=on_train_batch_end)


def fit(strategy: ThreadedStrategy, at: tuple[int, int], act: Any, **arguments: Any) -> BareTrainer:
    callback = stopper(strategy.global_rank, at, act)
    arguments = {"max_epochs": 2, "agree_every_n_batches": 1} | arguments
    return BareTrainer(Net(), callbacks=[callback], strategy=strategy, **arguments).fit(batches(12))


def stop(trainer: BareTrainer) -> None:
    trainer.fit_loop.should_stop = True


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_all_ranks_stop_after_the_batch_in_which_one_wants_to(rank: int) -> None:
    trainers = on_ranks(3, lambda strategy: fit(strategy, (rank, 4), stop))
    assert [trainer.global_step for trainer in trainers] == [5, 5, 5]
    assert all(trainer.fit_loop.should_stop for trainer in trainers)


@settings(deadline=None)
@given(every=st.integers(1, 30), rank=st.integers(0, 1), batch_idx=st.integers(0, 11))
def test_they_stop_at_the_next_round_or_at_the_end_of_the_epoch(every: int, rank: int, batch_idx: int) -> None:
    trainers = on_ranks(2, lambda strategy: fit(strategy, (rank, batch_idx), stop, agree_every_n_batches=every))
    rounds = [num for num in range(every, 12, every) if num > batch_idx] or [12]
    assert [trainer.global_step for trainer in trainers] == [min(rounds[0], 12)] * 2


def test_an_interval_of_its_own_choice_is_the_same_for_all_and_grows_while_batches_are_short() -> None:
    def run(strategy: ThreadedStrategy) -> list[int]:
        agreement = Agreement(strategy, FitProgress())
        intervals, num_batches = [], 0
        while len(intervals) < 5:
            num_batches += 1
            if agreement.is_due():
                agreement.hold()
                intervals.append(num_batches)
                num_batches = 0
        return intervals

    first, second = on_ranks(2, run)
    assert first == second
    assert first[0] == 1 and first[-1] > 4


class UnderWay(ThreadedStrategy):
    """Exchanges what rounds say when somebody waits for it."""

    def start_max(self, values: list[int]) -> Callable[[], list[int]]:
        return lambda: [max(of_ranks) for of_ranks in zip(*self.all_gather(values), strict=True)]


def stopping(should_stop: bool) -> FitProgress:
    progress = FitProgress()
    progress.should_stop = should_stop
    return progress


def under_way(strategy: Any) -> Any:
    strategy.__class__ = UnderWay
    return strategy


@pytest.mark.parametrize("rank", [0, 1, 2])
@settings(deadline=None, max_examples=20)
@given(batch_idx=st.integers(0, 23))
def test_all_ranks_act_on_rounds_that_nobody_waits_for_at_the_same_batch(rank: int, batch_idx: int) -> None:
    def run(strategy: ThreadedStrategy) -> tuple[int, int]:
        arguments = {"agree_every_n_batches": None, "max_epochs": 2, "min_epochs": 2}
        at = (rank, batch_idx % 12)
        left = fit(under_way(strategy), at, lambda trainer: trainer.run.preempt("left.ckpt"), **arguments)
        return left.global_step, left.load("left.ckpt")["global_step"]

    outcomes = on_ranks(3, run)
    assert len(set(outcomes)) == 1
    assert batch_idx % 12 < outcomes[0][0] == outcomes[0][1] <= 12


def test_the_outcome_of_a_round_holds_from_the_next_one_on_and_at_once_at_a_fixed_moment() -> None:
    def run(strategy: ThreadedStrategy) -> list[bool]:
        agreement = Agreement(under_way(strategy), stopping(strategy.global_rank == 1))
        seen = []
        for waits in (False, False):
            agreement.hold(waits=waits)
            seen.append(agreement.should_stop)
        fixed = Agreement(strategy, stopping(strategy.global_rank == 0))
        fixed.hold()
        return [*seen, fixed.should_stop]

    assert on_ranks(2, run) == [[False, True, True]] * 2


def test_rounds_are_rarer_with_more_processes() -> None:
    class OneOfMany(BareStrategy):
        def reduce(self, tensor: Any, op: Any = "mean") -> Any:
            return tensor

    def num_rounds(num_processes: int) -> int:
        strategy = OneOfMany()
        strategy.world_size = num_processes
        agreement, held = Agreement(strategy, FitProgress()), 0
        for _ in range(1000):
            time.sleep(1e-3)
            if agreement.is_due():
                agreement.hold(waits=False)
                held += 1
        return held

    assert num_rounds(1024) < num_rounds(2)


def test_one_process_holds_no_rounds() -> None:
    class Alone(BareStrategy):
        def reduce(self, tensor: Any, op: Any = "mean") -> Any:
            raise AssertionError("nobody to ask")

    trainer = BareTrainer(Net(), strategy=Alone(), max_epochs=2).fit(batches(4))
    assert trainer.global_step == 8


def test_time_that_is_over_on_one_rank_ends_training_on_all() -> None:
    def run(strategy: ThreadedStrategy) -> int:
        late = strategy.global_rank == 1
        arguments = {"max_time": {"seconds": 1e-6 if late else 1e6}, "agree_every_n_batches": 3, "max_epochs": 9}
        return BareTrainer(Net(), strategy=strategy, **arguments).fit(batches(12)).global_step

    assert on_ranks(2, run) == [3, 3]


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("batch_idx", [3, 11])
def test_a_preempted_run_saves_and_stops_on_all_ranks_whatever_the_minimum(size: int, batch_idx: int) -> None:
    def run(strategy: ThreadedStrategy) -> BareTrainer:
        def preempt(trainer: Any) -> None:
            trainer.run.preempt("left.ckpt")

        return fit(strategy, (size - 1, batch_idx), preempt, min_epochs=2)

    for trainer in on_ranks(size, run):
        assert trainer.global_step == batch_idx + 1
        assert trainer.load("left.ckpt")["global_step"] == batch_idx + 1


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("is_before", [True, False])
@settings(deadline=None, max_examples=20)
@given(num_rounds=st.integers(1, 24))
def test_a_preemption_in_the_middle_of_a_round_holds_at_the_next_one(
    rank: int, is_before: bool, num_rounds: int
) -> None:
    class SignalledStrategy(ThreadedStrategy):
        """Gets the signal when this process has said what it wants, or before it knows what the others do."""

        num_reductions = 0
        trainer: Any = None

        def reduce(self, tensor: Any, op: Any = "mean") -> Any:
            self.num_reductions += self.trainer is not None
            is_now = self.global_rank == rank and self.num_reductions == num_rounds
            if is_now and is_before:
                self.trainer.run.preempt("left.ckpt")
            reduced = super().reduce(tensor, op)
            if is_now and not is_before:
                self.trainer.run.preempt("left.ckpt")
            return reduced

    def run(strategy: Any) -> BareTrainer:
        strategy.__class__ = SignalledStrategy

        def on_train_start(trainer: Any, module: Any) -> None:
            strategy.trainer = trainer

        arguments = {"max_epochs": 3, "min_epochs": 3, "agree_every_n_batches": 1}
        callback = hooked(on_train_start=on_train_start)
        return BareTrainer(Net(), callbacks=[callback], strategy=strategy, **arguments).fit(batches(12))

    first, second = on_ranks(2, run)
    assert first.global_step == second.global_step < 36
    assert first.load("left.ckpt")["global_step"] == second.load("left.ckpt")["global_step"] == first.global_step


def test_a_preempted_run_does_not_validate_before_it_leaves() -> None:
    class Validating(Net):
        num_validated = 0

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.num_validated += 1

    module = Validating()
    callback = stopper(0, (0, 2), lambda trainer: trainer.run.preempt("left.ckpt"))
    BareTrainer(module, callbacks=[callback], max_epochs=1).fit(batches(6), batches(2))
    assert module.num_validated == 0


def test_the_run_that_goes_on_from_a_preempted_one_ends_with_the_same_weights() -> None:
    arguments = {"max_epochs": 2, "stateless_loaders": "fast_forward", "agree_every_n_batches": 2}
    modules = [Net(), Net()]

    def run(strategy: ThreadedStrategy) -> bool:
        rank = strategy.global_rank
        straight, stopped, resumed = (copy.deepcopy(modules[rank]) for _ in range(3))
        BareTrainer(straight, strategy=strategy, **arguments).fit(batches(12))
        callback = stopper(rank, (1, 6), lambda trainer: trainer.run.preempt("left.ckpt"))
        left = BareTrainer(stopped, callbacks=[callback], strategy=strategy, **arguments).fit(batches(12))
        assert left.global_step == 8
        BareTrainer(resumed, strategy=strategy, **arguments).fit(batches(12), checkpoint=left.load("left.ckpt"))
        return same_bits(weights(straight), weights(resumed)) and not same_bits(weights(straight), weights(stopped))

    assert on_ranks(2, run) == [True, True]


@pytest.mark.parametrize("size", [1, 2])
def test_a_run_that_is_preempted_before_it_trains_saves_what_it_has_and_trains_nothing(size: int) -> None:
    def run(strategy: ThreadedStrategy) -> BareTrainer:
        def setup(trainer: Any, module: Any, stage: str) -> None:
            if strategy.global_rank == size - 1:
                trainer.run.preempt("left.ckpt")

        return BareTrainer(Net(), callbacks=[hooked(setup=setup)], strategy=strategy, max_epochs=2).fit(batches(4))

    for trainer in on_ranks(size, run):
        assert trainer.global_step == 0
        assert trainer.load("left.ckpt")["global_step"] == 0


def test_what_is_preempted_when_training_is_over_ends_as_it_would_have() -> None:
    callback = hooked(on_fit_end=lambda trainer, module: trainer.run.preempt("left.ckpt"))
    trainer = BareTrainer(Net(), callbacks=[callback], max_epochs=1).fit(batches(2))
    assert trainer.global_step == 2 and trainer.files == {}
    assert trainer.fit(batches(2)).global_step == 2  # and the next run is not preempted by it


@pytest.mark.parametrize(("value", "error"), [(0, ValueError), (True, TypeError), (1.5, TypeError)])
def test_an_interval_is_a_positive_number_of_batches(value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="`agree_every_n_batches` must be"):
        FitLimits(agree_every_n_batches=value)


def test_windows_synchronise_gradients_at_their_end_only() -> None:
    strategy = ThreadedStrategy(Exchange(1), 0)
    BareTrainer(Net(), strategy=strategy, max_epochs=1, accumulate_grad_batches=3).fit(batches(7))
    assert strategy.synced == [False, False, True, False, False, True, True, True]  # the last one leaves it on


def test_without_accumulation_nobody_is_told_of_windows() -> None:
    strategy = ThreadedStrategy(Exchange(1), 0)
    BareTrainer(Net(), strategy=strategy, max_epochs=1).fit(batches(3))
    assert strategy.synced == []


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("step", [3, 12, 24])
def test_a_preemption_while_a_checkpoint_is_written_stops_at_that_save_point(size: int, step: int) -> None:
    class Preempted(BareTrainer):
        """Is told to leave while the checkpoint is written; in the epoch, at its end, and at the end of training."""

        def _write(self, request: Any) -> None:
            super()._write(request)
            if request.path == "usual.ckpt" and self.strategy.global_rank == size - 1:
                self.run.preempt("left.ckpt")

    def run(strategy: ThreadedStrategy) -> BareTrainer:
        def save(trainer: Any, *_: Any) -> None:
            if trainer.global_step == step:
                trainer.save_checkpoint("usual.ckpt")

        arguments = {"max_epochs": 2, "min_epochs": 2, "agree_every_n_batches": 1000}
        callback = hooked(on_train_batch_end=save)
        return Preempted(Net(), callbacks=[callback], strategy=strategy, **arguments).fit(batches(12))

    for trainer in on_ranks(size, run):
        assert trainer.global_step == step
        assert trainer.load("left.ckpt")["global_step"] == trainer.load("usual.ckpt")["global_step"] == step

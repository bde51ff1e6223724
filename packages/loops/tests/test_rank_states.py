"""Each process finds in a checkpoint what it had itself, and what all share."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from bare_parts import BareTrainer, Net, hooked, make_loader, same_bits, weights
from bare_ranks import ThreadedStrategy, on_ranks
from ranks_in_threads import Exchange
from torch import Tensor

from camshaft.loops.fit.resume import rank_state
from camshaft.loops.fit.saving import gather_rank_states
from camshaft.loops.state.random_state import random_state, restore_random_state


def state(rank: int, **gradients: Tensor) -> dict[str, Any]:
    return {"fit": {"metrics": rank, "gradients": gradients}, "rng": f"numbers of {rank}"}


def strategy_of(rank: int, size: int) -> ThreadedStrategy:
    return ThreadedStrategy(Exchange(size), rank)


def test_one_process_adds_nothing() -> None:
    own = state(0)
    assert gather_rank_states(own, strategy_of(0, 1)) is own


def test_every_rank_gets_its_own_state_back() -> None:
    checkpoints = on_ranks(3, lambda strategy: gather_rank_states(state(strategy.global_rank), strategy))
    for checkpoint in checkpoints:  # the same on all ranks
        for rank in range(3):
            own = rank_state(checkpoint, strategy_of(rank, 3))
            assert (own["fit"]["metrics"], own["rng"]) == (rank, f"numbers of {rank}")


def test_gradients_that_all_ranks_share_are_kept_once() -> None:
    def save(strategy: ThreadedStrategy) -> dict[str, Any]:
        rank = strategy.global_rank
        return gather_rank_states(state(rank, same=torch.ones(2), own=torch.full((2,), float(rank))), strategy)

    checkpoint = on_ranks(2, save)[0]
    assert list(checkpoint["fit"]["gradients"]) == ["same"]
    assert [list(its["fit"]["gradients"]) for its in checkpoint["ranks"]] == [["own"], ["own"]]
    gradients = rank_state(checkpoint, strategy_of(1, 2))["fit"]["gradients"]
    assert torch.equal(gradients["same"], torch.ones(2)) and torch.equal(gradients["own"], torch.ones(2))


@pytest.mark.parametrize("has_gradient", [0, 1])
def test_a_gradient_that_only_some_ranks_have_is_theirs_alone(has_gradient: int) -> None:
    def save(strategy: ThreadedStrategy) -> dict[str, Any]:
        mine = {"own": torch.ones(1)} if strategy.global_rank == has_gradient else {}
        return gather_rank_states(state(strategy.global_rank, **mine), strategy)

    checkpoint = on_ranks(2, save)[0]
    found = [list(rank_state(checkpoint, strategy_of(rank, 2))["fit"]["gradients"]) for rank in range(2)]
    assert found == [["own"] if rank == has_gradient else [] for rank in range(2)]


def saved(num_ranks: int, *, inside: bool) -> dict[str, Any]:
    """A checkpoint of a fit: of its first epoch's end, or of the batch before that."""

    def run(strategy: ThreadedStrategy) -> dict[str, Any]:
        def ask(trainer: Any, *_: Any) -> None:
            trainer.save_checkpoint("x.ckpt")

        def after_the_third(trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx == 2:
                ask(trainer)

        callback = hooked(on_train_batch_end=after_the_third) if inside else hooked(on_train_epoch_end=ask)
        trainer = BareTrainer(Net(), callbacks=[callback], strategy=strategy, max_epochs=1)
        trainer.fit_loop.loader_settings.stateless_loaders = "fast_forward"
        return trainer.fit(loader()).load("x.ckpt")

    return on_ranks(num_ranks, run)[0]


def loader() -> Any:
    x = torch.arange(12.0).reshape(4, 1, 3)
    return make_loader("sized", [(row, row.sum(1, keepdim=True)) for row in x])


@pytest.mark.parametrize(("then", "now"), [(1, 2), (2, 1), (2, 3)])
def test_inside_an_epoch_other_processes_cannot_share_what_has_no_known_order(then: int, now: int) -> None:
    checkpoint = saved(then, inside=True)

    def run(strategy: ThreadedStrategy) -> None:
        trainer = BareTrainer(Net(), strategy=strategy, max_epochs=2)
        trainer.fit_loop.loader_settings.stateless_loaders = "fast_forward"
        trainer.fit(loader(), checkpoint=copy.deepcopy(checkpoint))

    expected = rf"`number of processes` must be that of the checkpoint \({then}\).*but got {now}, among .*\(Sized\)"
    with pytest.raises(ValueError, match=expected):
        on_ranks(now, run)


@pytest.mark.parametrize(("then", "now"), [(1, 2), (2, 1), (2, 3)])
def test_from_an_epochs_end_any_number_of_processes_goes_on(then: int, now: int) -> None:
    checkpoint = saved(then, inside=False)

    def run(strategy: ThreadedStrategy) -> int:
        trainer = BareTrainer(Net(), strategy=strategy, max_epochs=2)
        return trainer.fit(loader(), checkpoint=copy.deepcopy(checkpoint)).global_step

    assert on_ranks(now, run) == [8] * now


def test_a_process_that_had_no_random_numbers_gets_others_than_the_first_always_the_same() -> None:
    checkpoint = saved(1, inside=False)
    states = [rank_state(checkpoint, strategy_of(rank, 3))["rng"] for rank in (0, 1, 2, 2)]

    def draw(state: dict[str, Any]) -> float:
        restore_random_state(state)
        return float(torch.rand(()))

    before = random_state()
    first, second, third, again = map(draw, states)
    restore_random_state(before)
    assert len({first, second, third}) == 3 and third == again


def test_windows_that_are_open_go_on_with_the_gradients_of_each_rank() -> None:
    arguments: dict[str, Any] = {"max_epochs": 1, "accumulate_grad_batches": 4, "stateless_loaders": "fast_forward"}
    module = Net()

    def data(rank: int) -> Any:
        x = torch.arange(12.0).reshape(4, 1, 3) * (rank + 1)
        return make_loader("sized", [(row, row.sum(1, keepdim=True)) for row in x])

    def run(strategy: ThreadedStrategy) -> tuple[bool, bool]:
        def ask(trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx == 1:
                trainer.save_checkpoint("x.ckpt")

        straight, resumed = copy.deepcopy(module), copy.deepcopy(module)
        callback = hooked(on_train_batch_end=ask)
        first = BareTrainer(straight, callbacks=[callback], strategy=strategy, **arguments).fit(
            data(strategy.global_rank)
        )
        checkpoint = first.load("x.ckpt")
        second = BareTrainer(resumed, strategy=strategy, **arguments)
        second.fit(data(strategy.global_rank), checkpoint=checkpoint)
        return same_bits(weights(straight), weights(resumed)), not same_bits(weights(straight), weights(module))

    assert on_ranks(2, run) == [(True, True), (True, True)]

"""Random numbers of worker processes."""

from __future__ import annotations

import random
from typing import Any

import numpy
import pytest
import torch
from bare_parts import BareStrategy, BareTrainer, Net
from torch.utils.data import DataLoader, Dataset, get_worker_info

from camshaft.loops import TestLoop
from camshaft.loops.state.random_state import SEED_WORKERS_VARIABLE, seed_worker, seed_workers

pytestmark = pytest.mark.filterwarnings("ignore:There is a `validation_step`")


class Drawing(Dataset[Any]):
    """Samples are what a worker draws."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        drawn = [float(torch.rand(())), random.random(), float(numpy.random.rand())]
        return torch.tensor([*drawn][:3]), torch.ones(1)


def loader() -> Any:
    return DataLoader(Drawing(), batch_size=2, num_workers=2)


def drawn(rank: int = 0, *, is_asked: bool, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv(SEED_WORKERS_VARIABLE, str(int(is_asked)))
    torch.manual_seed(3)
    made = loader()
    seed_workers([made], rank)
    return torch.cat([x for x, _ in made])


def test_workers_of_all_ranks_draw_other_numbers_and_the_same_ones_again(monkeypatch: pytest.MonkeyPatch) -> None:
    first, other, again = (drawn(rank, is_asked=True, monkeypatch=monkeypatch) for rank in (0, 1, 0))
    assert torch.equal(first, again)
    assert not (first == other).any()
    assert len(first.flatten().unique()) == first.numel()


def test_the_seeds_are_those_of_lightning() -> None:
    """What its function gave for base seed 12345, worker 1 and rank 2."""
    state = random.getstate(), torch.get_rng_state(), numpy.random.get_state()
    try:
        torch.manual_seed(12345 + 1)
        seed_worker(1, rank=2)
        assert torch.initial_seed() == 12949079156800912038
        assert (random.random(), float(numpy.random.rand())) == (0.7779762345293275, 0.7808993456757323)
    finally:
        random.setstate(state[0])
        torch.set_rng_state(state[1])
        numpy.random.set_state(state[2])


def test_workers_are_left_alone_unless_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for is_asked, num_workers, own in ((False, 2, None), (True, 0, None), (True, 2, print)):
        monkeypatch.setenv(SEED_WORKERS_VARIABLE, str(int(is_asked)))
        made: Any = DataLoader(Drawing(), num_workers=num_workers, worker_init_fn=own)
        seed_workers([made, [1, 2]], 0)
        assert made.worker_init_fn is own


@pytest.mark.parametrize("verb", ["fit", "test"])
def test_verbs_seed_the_workers_of_their_loaders_by_rank(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SEED_WORKERS_VARIABLE, "1")
    made = loader()
    strategy = BareStrategy()
    trainer = BareTrainer(Net(), max_epochs=1, strategy=strategy, limit_train_batches=1)
    trainer.fit(made) if verb == "fit" else trainer.verb("test", TestLoop(limit_batches=1), made)
    assert made.worker_init_fn.func is seed_worker and made.worker_init_fn.keywords == {"rank": strategy.global_rank}


class Recording(Drawing):
    """Features are what a worker draws, so that the weights tell whether a resumed run draws the same."""

    def __getitem__(self, index: int) -> Any:
        assert get_worker_info() is not None
        return super().__getitem__(index)


@pytest.mark.parametrize("stop_at", [1, 2])
def test_a_run_that_is_resumed_within_an_epoch_draws_on_in_its_workers(
    stop_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bare_parts import hooked, same_bits, weights

    monkeypatch.setenv(SEED_WORKERS_VARIABLE, "1")

    def save(trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx + 1 == stop_at:
            trainer.save_checkpoint("inside")

    def run(checkpoint: Any = None) -> BareTrainer:
        torch.manual_seed(0)
        random.seed(0)
        trainer = BareTrainer(Net(), max_epochs=2, callbacks=[hooked(on_train_batch_end=save)])
        return trainer.fit(DataLoader(Recording(), batch_size=2, num_workers=2), checkpoint=checkpoint)

    whole = run()
    resumed = run(whole.load("inside"))
    assert same_bits(weights(whole.module), weights(resumed.module))

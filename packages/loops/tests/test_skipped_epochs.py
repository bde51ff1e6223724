"""Skipping the rest of an epoch on several processes."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from bare_parts import BareTrainer, Batch, Net, Sized, hooked, make_batches, seeded
from bare_ranks import ThreadedStrategy, on_ranks
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from camshaft.hooks_core.support.messages import warn_user
from camshaft.loops.fit.epoch import batch_start_of_all

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


class Seeing(Net):
    """Remembers the batches that it was trained with."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        self.seen.append(batch_idx)
        return self.loss(batch)


class Skipping(Seeing):
    skips_at: int | None = None

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        return -1 if batch_idx == self.skips_at else None


def train(strategy: Any, module: Seeing, **arguments: Any) -> BareTrainer:
    trainer = BareTrainer(module, strategy=strategy, max_epochs=1, limit_val_batches=0, **arguments)
    return trainer.fit(Sized(make_batches(6)), None)


@settings(max_examples=20, deadline=None)
@given(skips_at=st.lists(st.one_of(st.none(), st.integers(0, 7)), min_size=2, max_size=3))
def test_all_skip_where_the_first_of_them_does(skips_at: list[int | None]) -> None:
    def run(strategy: ThreadedStrategy) -> list[int]:
        module = seeded(Skipping)
        module.skips_at = skips_at[strategy.global_rank]
        trainer = train(strategy, module)
        assert trainer.fit_loop.is_last_batch
        return module.seen

    expected = list(range(min([6, *(one for one in skips_at if one is not None)])))
    assert on_ranks(len(skips_at), run) == [expected] * len(skips_at)


def test_a_callback_that_skips_on_one_process_skips_on_all() -> None:
    def run(strategy: ThreadedStrategy) -> list[int]:
        module = seeded(Seeing)

        def skip(trainer: Any, module: Any, batch: Any, batch_idx: int) -> Any:
            return -1 if strategy.global_rank == 1 and batch_idx == 2 else 0

        train(strategy, module, callbacks=[hooked(on_train_batch_start=skip)])
        return module.seen

    assert on_ranks(2, run) == [[0, 1]] * 2


def announce(_: Any, batch: Any, batch_idx: int) -> None:
    if batch_idx > 100:
        return
    warn_user("a batch starts")


def choose(_: Any, batch: Any, batch_idx: int) -> int | None:
    return None if batch_idx < 3 else -1


def pass_on(_: Any, batch: Any, batch_idx: int) -> Any:
    return announce(_, batch, batch_idx)


@pytest.mark.parametrize(
    ("hook", "asks"),
    [(announce, False), (choose, True), (pass_on, True), (lambda _, batch, batch_idx: None, False)],
)
def test_nobody_asks_where_nothing_is_returned(hook: Any, asks: bool) -> None:
    kind = type("Own", (Seeing,), {"on_train_batch_start": hook})

    def run(strategy: ThreadedStrategy) -> bool:
        trainer = train(strategy, seeded(kind))
        return batch_start_of_all(trainer.run) is not trainer.run.hooks.on_train_batch_start

    assert on_ranks(2, run) == [asks] * 2


def test_where_code_is_not_to_be_had_they_ask() -> None:
    def run(strategy: ThreadedStrategy) -> bool:
        module = seeded(Seeing)
        module.on_train_batch_start = partial(announce, None)
        trainer = train(strategy, module)
        return batch_start_of_all(trainer.run) is not trainer.run.hooks.on_train_batch_start

    assert on_ranks(2, run) == [True] * 2


def test_one_process_never_asks() -> None:
    module = seeded(Skipping)
    trainer = BareTrainer(module, max_epochs=1, limit_val_batches=0)
    trainer.fit(Sized(make_batches(2)), None)
    assert batch_start_of_all(trainer.run) is trainer.run.hooks.on_train_batch_start

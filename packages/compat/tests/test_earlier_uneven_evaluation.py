"""Where processes of earlier eras differ: in how many batches they evaluate, and in who skips an epoch."""

from __future__ import annotations

from typing import Any

import pytest
from bare_parts import Batch, Net, Sized, make_batches, seeded
from bare_ranks import ThreadedStrategy, on_ranks
from compat_parts import BareTrainer

from camshaft.loops import ValidationLoop

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


class Ending(Net):
    hook_era = "1.5"

    def __init__(self) -> None:
        super().__init__()
        self.ended_with: list[Any] = []

    def validation_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> Any:
        return batch_idx

    def validation_epoch_end(self, outputs: Any) -> None:
        self.ended_with.append(outputs)


class Mean(Ending):
    def validation_epoch_end(self, outputs: Any) -> None:
        self.ended_with.append([sum(of_loader) / len(of_loader) for of_loader in outputs])


def validate(strategy: Any, module: Any, *num_batches: int) -> list[Any]:
    loaders: Any = [Sized(make_batches(number)) for number in num_batches]
    BareTrainer(module, strategy=strategy).verb("validate", ValidationLoop(), loaders)
    return module.ended_with


def test_a_process_without_any_batch_leaves_it_out() -> None:
    def run(strategy: ThreadedStrategy) -> list[Any]:
        return validate(strategy, seeded(Ending), 1 if strategy.global_rank == 0 else 0)

    assert on_ranks(2, run) == [[[0]], []]


def test_one_that_has_some_of_another_loader_ends_with_an_empty_list() -> None:
    def run(strategy: ThreadedStrategy) -> list[Any]:
        return validate(strategy, seeded(Ending), 2, 1 if strategy.global_rank == 0 else 0)

    assert on_ranks(2, run) == [[[[0, 1], [0]]], [[[0, 1], []]]]


def test_what_raises_for_the_empty_list_says_why_it_is_empty() -> None:
    def run(strategy: ThreadedStrategy) -> list[Any]:
        return validate(strategy, seeded(Mean), 2, 1 if strategy.global_rank == 0 else 0)

    with pytest.raises(ZeroDivisionError) as caught:
        on_ranks(2, run)
    assert any("Loader 1 has fewer batches than there are processes" in note for note in caught.value.__notes__)


def test_steps_that_return_nothing_still_end_on_every_process() -> None:
    class Silent(Ending):
        def validation_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> Any:
            return None

    assert on_ranks(2, lambda strategy: validate(strategy, seeded(Silent), 1)) == [[[]], [[]]]
    assert validate(None, seeded(Silent), 1) == [[]]


class Skipping(Net):
    """Skips the rest of the epoch by a hook of 0.8, which is not told of the index."""

    hook_era = "0.8"

    def __init__(self, skips_at: int | None) -> None:
        super().__init__()
        self.skips_at, self.num_started = skips_at, 0
        self.seen: list[int] = []

    def on_batch_start(self, batch: Any) -> int | None:
        self.num_started += 1
        return -1 if self.num_started - 1 == self.skips_at else None

    def training_step(self, batch: Batch, batch_idx: int) -> Any:
        self.seen.append(batch_idx)
        return self.loss(batch)


@pytest.mark.parametrize("skips_at", [[None, 2], [4, 1], [0, None], [None, None, 5]])
def test_all_skip_where_the_first_of_them_does(skips_at: list[int | None]) -> None:
    def run(strategy: ThreadedStrategy) -> list[int]:
        module = seeded(Skipping, skips_at[strategy.global_rank])
        trainer = BareTrainer(module, strategy=strategy, max_epochs=1, limit_val_batches=0)
        trainer.fit(Sized(make_batches(6)))
        return module.seen

    expected = list(range(min([6, *(one for one in skips_at if one is not None)])))
    assert on_ranks(len(skips_at), run) == [expected] * len(skips_at)

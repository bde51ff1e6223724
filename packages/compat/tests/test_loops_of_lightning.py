"""Loops and loaders under the import names: their counters, and what loaders draw and give there."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from compat_parts import Regression, quiet_trainer
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset
from trainer_parts import NO_VALIDATION, loader

from camshaft.callbacks import LambdaCallback
from camshaft.compat.loaders import numbered
from camshaft.hooks_core import Callback
from camshaft.loops.data.loaders import ReadAhead

pytestmark = [
    pytest.mark.filterwarnings(NO_VALIDATION),
]


@pytest.mark.parametrize(("release", "is_plain"), [("0.9", True), ("1.5", True), ("1.6", False), (None, False)])
def test_a_loader_that_shuffles_by_its_own_generator_has_the_order_of_the_release(
    tmp_path: Path, release: str | None, is_plain: bool
) -> None:
    class Reading(Regression):
        hook_era = release

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            read.append(batch[0])
            return self.loss(batch)

    def shuffled() -> DataLoader[Any]:
        data = [(torch.full((3,), float(one)), torch.ones(1)) for one in range(8)]
        return DataLoader(data, 2, shuffle=True, generator=torch.Generator().manual_seed(1))

    read: list[Tensor] = []
    quiet_trainer(tmp_path, max_epochs=2).fit(Reading(), shuffled())
    plain = shuffled()
    assert torch.equal(torch.stack(read), torch.stack([batch[0] for _ in range(2) for batch in plain])) is is_plain


# counters


class Counting(Callback):
    """Notes counters of batches."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        loop = trainer.fit_loop.epoch_loop
        progress = loop.batch_progress
        self.seen.append((loop.batch_idx, progress.current.ready, progress.total.ready, progress.is_last_batch))


def test_loops_count_under_lightnings_names(tmp_path: Path) -> None:
    counting = Counting()
    trainer = quiet_trainer(tmp_path, max_epochs=2, callbacks=[counting], num_sanity_val_steps=1)
    trainer.fit(Regression(), loader(2), loader(3))
    assert counting.seen == [(0, 1, 1, False), (1, 2, 2, True), (0, 1, 3, False), (1, 2, 4, True)]
    loop = trainer.fit_loop.epoch_loop
    assert (loop.batch_idx, loop.total_batch_idx, loop.batch_progress.total.completed) == (1, 3, 4)
    assert (loop.val_loop.batch_progress.current.ready, loop.val_loop.batch_progress.total.ready) == (3, 6)
    assert loop.automatic_optimization.optim_progress.optimizer_steps == 4
    assert loop.manual_optimization.optim_step_progress.total.completed == 0
    assert (loop.done, loop.max_batches, loop.val_loop.max_batches) == (True, 2, [3])


def test_the_batches_of_an_epoch_can_be_set_for_the_next(tmp_path: Path) -> None:
    class Shortening(Callback):
        def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
            trainer.fit_loop.max_batches = 1

    trainer = quiet_trainer(tmp_path, max_epochs=3, callbacks=[Shortening()])
    with pytest.raises(RuntimeError, match="`max_batches` must be set when the loaders are there"):
        trainer.fit_loop.max_batches = 1
    trainer.fit(Regression(), loader(4))
    assert trainer.global_step == 4 + 1 + 1


def test_epochs_that_are_set_as_over_are_not_trained(tmp_path: Path) -> None:
    trainer = quiet_trainer(tmp_path, max_epochs=3)
    trainer.fit_loop.epoch_progress.current.completed = 2
    trainer.fit(Regression(), loader(2))
    assert (trainer.current_epoch, trainer.global_step) == (3, 2)
    trainer.fit_loop.epoch_progress.reset()
    trainer.fit(Regression(), loader(2))
    assert (trainer.current_epoch, trainer.global_step) == (3, 8)


def test_counts_that_training_would_not_follow_are_refused(tmp_path: Path) -> None:
    loop = quiet_trainer(tmp_path).fit_loop
    with pytest.raises(AttributeError, match=r"`current\.ready` must be 0 while the epoch runs, but got 3"):
        loop.batch_progress.current.ready = 3
    with pytest.raises(AttributeError):
        loop.epoch_progress.current.complete = 1


# loaders


class Watched:
    """A loader of numbers that says how many it has, and gives another number of them."""

    def __init__(self, length: int, given: int) -> None:
        self.length, self.given = length, given

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.given))


class Batches:
    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[Any]:
        return iter([(torch.ones(1, 3), torch.ones(1, 1))])


class Stream(IterableDataset[Any]):
    def __init__(self, given: int, length: int) -> None:
        self.given, self.length = given, length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.given))


def test_a_loader_may_give_less_than_it_promised() -> None:
    ahead = ReadAhead()
    with pytest.warns(UserWarning, match="Watched tells that it has 3 batches and has given 1: the epoch ends there"):
        assert list(numbered(Watched(3, given=1), 3, 0, ahead)) == [(0, 0, False)]
    ahead.load_state_dict({"lengths": [2]}, is_same_data=True)
    with pytest.raises(RuntimeError, match="gives 2 batches in each epoch, as before the run was resumed"):
        list(numbered(Watched(3, given=1), 3, 0, ahead))


@pytest.mark.filterwarnings("ignore")
def test_nothing_is_read_ahead_of_a_stream_whose_length_is_known() -> None:
    stream = DataLoader(Stream(3, 3), batch_size=None)
    ahead = ReadAhead()
    told = [(is_last, ahead.state_dict()) for _, _, is_last in numbered(stream, 3, 0, ahead)]
    assert told == [(False, {"lengths": []}), (False, {"lengths": []}), (True, {"lengths": [3]})]
    too_few = numbered(DataLoader(Stream(2, 5), batch_size=None), 5)
    assert [is_last for _, _, is_last in too_few] == [False, False]
    ahead.load_state_dict({"batch": "of a run that read it", "lengths": []}, is_same_data=True)
    assert next(numbered(stream, 3, 1, ahead)) == (1, "of a run that read it", False)


class Told(IterableDataset[Any]):
    """One that notes the epochs that it is told."""

    def __init__(self) -> None:
        self.told: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.told.append(epoch)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter([(torch.ones(3), torch.ones(1))] * 2)


def test_datasets_are_not_told_the_epoch(tmp_path: Path) -> None:
    train, val = Told(), Told()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quiet_trainer(tmp_path, max_epochs=3).fit(Regression(), DataLoader(train), DataLoader(val))
    assert train.told == val.told == []


def test_the_sanity_check_restores_the_global_random_numbers_alone(tmp_path: Path) -> None:
    class Drawing(Callback):
        num_batches = 0

        def state_dict(self) -> dict[str, int]:
            return {"num_batches": self.num_batches}

        def load_state_dict(self, state: dict[str, int]) -> None:
            raise AssertionError("nothing is put back")

        def on_validation_batch_end(self, *_: Any) -> None:
            torch.rand(())
            self.num_batches += 1

    generator, callback, drawn = torch.Generator().manual_seed(1), Drawing(), []
    before = generator.get_state()
    start = LambdaCallback(on_train_start=lambda *_: drawn.append(float(torch.rand(()))))
    trainer = quiet_trainer(tmp_path, callbacks=[callback, start], max_epochs=1, num_sanity_val_steps=2)
    module, train = Regression(), Batches()  # which draws nothing when it begins
    val = DataLoader([(torch.ones(3), torch.ones(1))] * 2, shuffle=True, generator=generator)
    torch.manual_seed(5)
    trainer.fit(module, train, val)
    torch.manual_seed(5)
    assert drawn == [float(torch.rand(()))]
    assert callback.num_batches == 4 and not torch.equal(generator.get_state(), before)

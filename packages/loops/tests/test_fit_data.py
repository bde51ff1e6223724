"""When loaders are asked for, again and again, and that a resumed run asks as the run did that was not stopped."""

from __future__ import annotations

import gc
import multiprocessing
import random
from typing import Any

import attrs
import pytest
import torch
from bare_parts import (
    NUM_FEATURES,
    BareTrainer,
    Net,
    Sized,
    Unsized,
    adam,
    hooked,
    make_batches,
    make_loader,
    same_bits,
    seeded,
    weights,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from logical_parts import LogicalStrategy
from ranks_in_turn import in_turn
from resumable_data import Counting
from resumed_runs import same_values, without_time
from torch.utils.data import DataLoader, Sampler, TensorDataset

from camshaft.hooks_core.check import check
from camshaft.hooks_core.trace import Trace

pytestmark = pytest.mark.filterwarnings("ignore:There is a `validation_step`")


class Changing:
    """A data module whose loaders differ by the epoch in which they are asked for, and by random numbers."""

    def __init__(self, trainer: BareTrainer | None = None) -> None:
        self.trainer = trainer
        self.asked: list[tuple[str, int]] = []

    def loader(self, name: str, number: int) -> Any:
        assert self.trainer is not None
        epoch = self.trainer.progress.current_epoch
        self.asked.append((name, epoch))
        x = torch.randn(2 * (number + epoch), NUM_FEATURES) + epoch + random.random()
        generator = torch.Generator().manual_seed(int(torch.randint(1000, ())))
        return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=2, shuffle=True, generator=generator)

    def train_dataloader(self) -> Any:
        return self.loader("train", 2)

    def val_dataloader(self) -> Any:
        return self.loader("val", 1)


def numbers(trainer: BareTrainer) -> list[int]:
    """The number of batches of each epoch, as the loop told it in that epoch."""
    return trainer.callbacks[0].numbers


def train(every: int, *, num_epochs: int = 5, start: Any = None, **arguments: Any) -> BareTrainer:
    data = Changing()
    callback = hooked(on_train_epoch_start=lambda trainer, *_: callback.numbers.append(trainer.fit_loop.num_batches))
    callback.numbers = []
    trainer = BareTrainer(
        seeded(),
        callbacks=[callback],
        data=data,
        max_epochs=num_epochs,
        reload_dataloaders_every_n_epochs=every,
        **arguments,
    )
    data.trainer = trainer
    return trainer.fit(**(start or {}))


@pytest.mark.parametrize(
    ("every", "epochs"), [(0, [0]), (1, [0, 1, 2, 3, 4]), (2, [0, 2, 4]), (3, [0, 3]), (5, [0]), (9, [0])]
)
def test_loaders_are_asked_for_before_every_so_many_epochs(every: int, epochs: list[int]) -> None:
    trainer = train(every)
    assert trainer.data.asked == [(name, epoch) for epoch in epochs for name in ("train", "val")]
    length, lengths = 0, []
    for epoch in range(5):
        length = 2 + epoch if epoch in epochs else length
        lengths.append(length)
    assert numbers(trainer) == lengths
    assert trainer.progress.total_batches == sum(lengths)


def test_loaders_that_were_passed_are_kept_and_the_others_are_asked_for() -> None:
    given = {"train": Sized(make_batches(3))}
    trainer = train(1, num_epochs=3, start=given)
    assert trainer.fit_loop.loader is given["train"]
    assert trainer.data.asked == [("val", 0), ("val", 1), ("val", 2)]
    trainer = train(1, num_epochs=3, start={"val": Sized(make_batches(3))})
    assert trainer.data.asked == [("train", 0), ("train", 1), ("train", 2)]


class Splitting:
    """A data module that draws which samples it takes."""

    def __init__(self) -> None:
        self.splits: list[list[int]] = []

    def split(self) -> Any:
        self.splits.append([*torch.randperm(8)[:4].tolist(), random.randrange(100)])
        return DataLoader(torch.zeros(4, NUM_FEATURES), batch_size=1)  # type: ignore[arg-type]

    train_dataloader = val_dataloader = split


def test_processes_draw_alike_where_loaders_are_asked_for_again() -> None:
    def splits_of(strategy: Any, **settings: Any) -> Any:
        data, module = Splitting(), Net()
        module.training_step = lambda batch, batch_idx: module(batch).sum()
        module.validation_step = lambda batch, batch_idx: None
        arguments = {"max_epochs": 3, "reload_dataloaders_every_n_epochs": 1, "num_sanity_val_steps": 0, **settings}
        BareTrainer(module, data=data, strategy=strategy, **arguments).fit()
        return data.splits

    first, second = in_turn(2, splits_of)
    assert first[0] != second[0] and first[2:] == second[2:] and len(first) == 6
    first, second = in_turn(2, lambda strategy: splits_of(strategy, use_distributed_sampler=False))
    assert not {str(split) for split in first} & {str(split) for split in second}, "each its own"


class ByEpoch(Sampler[Any]):
    """Batches whose number follows the epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return (4, 3, 5)[self.epoch]

    def __iter__(self) -> Any:
        return iter([[number] for number in range(len(self))])


@pytest.mark.parametrize("num_logical_ranks", [None, 1])
def test_an_epoch_has_the_batches_that_its_sampler_has_for_it(num_logical_ranks: int | None) -> None:
    saved: list[Any] = []

    def train(checkpoint: Any = None) -> Any:
        def save(trainer: BareTrainer, *arguments: Any) -> None:
            if trainer.progress.total_batches == 10:
                trainer.save_checkpoint("inside")

        strategy = None if num_logical_ranks is None else LogicalStrategy(num_logical_ranks)
        trainer = BareTrainer(seeded(), callbacks=[hooked(on_train_batch_end=save)], strategy=strategy, max_epochs=3)
        x = torch.ones(8, NUM_FEATURES)
        trainer.fit(DataLoader(TensorDataset(x, x[:, :1]), batch_sampler=ByEpoch()), checkpoint=checkpoint)
        saved.append(trainer.load("inside") if checkpoint is None else None)
        return trainer

    whole, resumed = train(), train(saved[0])
    assert whole.progress.total_batches == resumed.progress.total_batches == 12
    assert same_bits(weights(whole.module), weights(resumed.module))


@pytest.mark.parametrize("num_logical_ranks", [None, 1])
def test_a_validation_has_the_batches_that_its_sampler_has_for_the_epoch(num_logical_ranks: int | None) -> None:
    epochs: list[int] = []
    callback = hooked(on_validation_batch_start=lambda trainer, *_: epochs.append(trainer.progress.current_epoch))
    strategy = None if num_logical_ranks is None else LogicalStrategy(num_logical_ranks)
    x = torch.ones(8, NUM_FEATURES)
    val = DataLoader(TensorDataset(x, x[:, :1]), batch_sampler=ByEpoch())
    arguments = {"max_epochs": 3, "num_sanity_val_steps": 0}
    trainer = BareTrainer(seeded(), callbacks=[callback], strategy=strategy, **arguments)
    trainer.fit(make_loader("dataloader", make_batches(2)), val)
    assert epochs == [0] * 4 + [1] * 3 + [2] * 5


def test_nobody_is_asked_for_validation_loaders_that_are_not_used() -> None:
    assert train(1, num_epochs=2, limit_val_batches=0).data.asked == [("train", 0), ("train", 1)]


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, [2, 5, 9]),
        ({"val_check_interval": 0.5}, [1, 2, 3, 4, 5, 7, 9]),
        ({"val_check_interval": 2}, [2, 4, 7, 9]),
        ({"val_check_interval": 2, "check_val_every_n_epoch": None}, [2, 4, 6, 8]),
        ({"check_val_every_n_epoch": 2}, [5]),
    ],
)
def test_validation_keeps_to_the_lengths_of_the_new_loaders(limits: dict[str, Any], expected: list[int]) -> None:
    after: list[int] = []
    data = Changing()
    callback = hooked(on_validation_start=lambda trainer, *_: after.append(trainer.progress.total_batches))
    trainer = BareTrainer(
        seeded(), callbacks=[callback], data=data, max_epochs=3, reload_dataloaders_every_n_epochs=1, **limits
    )
    data.trainer = trainer
    trainer.fit()
    assert after == expected
    last_epoch = 1 if "check_val_every_n_epoch" in limits and limits["check_val_every_n_epoch"] == 2 else 2
    assert trainer.fit_loop.validation.num_batches == [1 + last_epoch], "those of the last epoch with a validation"


@pytest.mark.parametrize(
    ("every", "check_val_every_n_epoch", "epochs"),
    [(1, 1, [0, 1, 2, 3, 4, 5, 6, 7]), (1, 2, [0, 1, 3, 5, 7]), (2, 1, [0, 2, 4, 6]), (3, 2, [0, 1, 5]),
     (2, 3, [0, 2, 5]), (1, None, [0, 1, 2, 3, 4, 5, 6, 7]), (0, 3, [0])],
)  # fmt: skip
def test_validation_loaders_are_asked_for_again_in_an_epoch_in_which_they_are_used(
    every: int, check_val_every_n_epoch: int | None, epochs: list[int]
) -> None:
    interval = 2 if check_val_every_n_epoch is None else 1.0
    trainer = train(
        every, num_epochs=8, check_val_every_n_epoch=check_val_every_n_epoch, val_check_interval=interval,
        num_sanity_val_steps=1,
    )  # fmt: skip
    assert [epoch for name, epoch in trainer.data.asked if name == "val"] == epochs


def test_validation_loaders_are_asked_for_before_the_first_validation_of_an_epoch() -> None:
    calls: list[str] = []

    class Data(Changing):
        def val_dataloader(self) -> Any:
            calls.append("asked")
            return super().val_dataloader()

    callback = hooked(
        on_train_batch_end=lambda *_: calls.append("trained"), on_validation_start=lambda *_: calls.append("validates")
    )
    data, module = Data(), seeded()
    data.trainer = BareTrainer(
        module, callbacks=[callback], data=data, max_epochs=2, val_check_interval=1, reload_dataloaders_every_n_epochs=1
    )
    data.trainer.fit()
    first, again = ["trained", "validates"], ["trained", "asked", "validates"]
    assert calls == ["asked", *first, *first, *again, *first, *first]


def test_validation_begins_once_a_new_loader_has_batches() -> None:
    class Late(Changing):
        def val_dataloader(self) -> Any:
            return Sized(make_batches(self.trainer.progress.current_epoch))

    validated: list[int] = []
    callback = hooked(on_validation_start=lambda trainer, *_: validated.append(trainer.progress.current_epoch))
    data = Late()
    data.trainer = BareTrainer(
        seeded(), callbacks=[callback], data=data, max_epochs=3, reload_dataloaders_every_n_epochs=1,
        num_sanity_val_steps=1,
    )  # fmt: skip
    data.trainer.fit()
    assert validated == [1, 2]


def test_a_second_fit_counts_from_its_own_first_epoch() -> None:
    trainer = train(2, num_epochs=3)
    trainer.data.asked.clear()
    trainer.fit_loop.limits = attrs.evolve(trainer.fit_loop.limits, max_epochs=6)
    trainer.fit()
    assert [epoch for name, epoch in trainer.data.asked if name == "train"] == [3, 5]


def test_limits_hold_for_the_new_loaders() -> None:
    assert numbers(train(1, limit_train_batches=4)) == [2, 3, 4, 4, 4]
    assert numbers(train(2, limit_train_batches=0.5)) == [1, 1, 2, 2, 3]
    with pytest.warns(UserWarning, match="`overfit_batches` takes the same batches in every epoch: the train loader's"):
        trainer = train(1, overfit_batches=3)
    assert numbers(trainer) == [2, 3, 3, 3, 3]
    assert trainer.fit_loop.validation.num_batches == [3]


def test_an_interval_that_is_too_long_for_a_new_loader_is_an_error_then() -> None:
    class Shrinking(Changing):
        def train_dataloader(self) -> Any:
            assert self.trainer is not None
            return Sized(make_batches(4 - self.trainer.progress.current_epoch))

    data = Shrinking()
    data.trainer = BareTrainer(
        seeded(), data=data, max_epochs=3, reload_dataloaders_every_n_epochs=1, val_check_interval=3
    )
    with pytest.raises(ValueError, match=r"`val_check_interval` must be at most the epoch's 2 batches, but got 3"):
        data.trainer.fit()
    assert data.trainer.progress.total_batches == 7


def test_a_new_loader_without_batches_is_an_error() -> None:
    class Emptied(Changing):
        def train_dataloader(self) -> Any:
            assert self.trainer is not None
            return Sized(make_batches(1 - self.trainer.progress.current_epoch))

    data = Emptied()
    data.trainer = BareTrainer(seeded(), data=data, max_epochs=2, reload_dataloaders_every_n_epochs=1)
    with (
        pytest.warns(UserWarning, match="The training loader is empty"),
        pytest.raises(RuntimeError, match="`train loader` must give batches in every epoch, but got none in epoch 1"),
    ):
        data.trainer.fit()


class Growing(Unsized):
    """A loader with a state that tells its length, which grows from epoch to epoch."""

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Any:
        self.batches = [*self.batches, *make_batches(1)]
        return iter(self.batches[:-1])


def test_a_passed_loader_is_measured_anew() -> None:
    assert numbers(train(1, num_epochs=3, start={"train": Growing(make_batches(1))})) == [1, 2, 3]


def workers_of_loader(every: int, passes: str) -> list[float]:
    """What each batch of three epochs says of how often its persistent worker was asked before."""
    loader = DataLoader(Counting(2), batch_size=1, num_workers=1, persistent_workers=True)
    said: list[float] = []

    class Listening(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            said.append(float(batch[0].sum()))
            return self.loss(batch)

    class Same:
        def train_dataloader(self) -> Any:
            return loader

    torch.manual_seed(0)
    data = Same() if passes == "the same each time" else None
    trainer = BareTrainer(Listening(), data=data, max_epochs=3, reload_dataloaders_every_n_epochs=every)
    trainer.fit(loader if data is None else None)
    return said


@pytest.mark.parametrize("passes", ["once", "the same each time"])
def test_a_loader_that_is_the_same_as_before_keeps_its_workers(passes: str) -> None:
    assert workers_of_loader(1, passes) == workers_of_loader(0, passes)


def test_worker_processes_end_with_the_fit() -> None:
    def fit() -> BareTrainer:
        loader = DataLoader(Counting(4), batch_size=2, num_workers=1, persistent_workers=True)
        return BareTrainer(Net(), max_epochs=2).fit(loader)

    gc.collect()
    before = set(multiprocessing.active_children())
    trainer = fit()
    gc.collect()
    assert set(multiprocessing.active_children()) <= before
    assert trainer.fit_loop.num_batches == 2


# Going on


@attrs.frozen(kw_only=True)
class Plan:
    """What a process is started with."""

    every: int
    num_epochs: int
    accumulate: int
    limit: int | float
    stop: int
    again: int
    check_val_every_n_epoch: int | None = 1


plans = st.builds(
    Plan,
    every=st.integers(0, 3),
    num_epochs=st.integers(1, 4),
    accumulate=st.integers(1, 3),
    limit=st.sampled_from([1.0, 3]),
    stop=st.integers(1, 18),
    again=st.integers(1, 18),
    check_val_every_n_epoch=st.sampled_from([1, 2, 3, None]),
)


class Process:
    """Everything that a new process makes anew."""

    def __init__(self, plan: Plan, seed: int) -> None:
        torch.manual_seed(seed)
        random.seed(seed)
        self.seen: list[Any] = []
        process = self

        class Seeing(Net):
            def training_step(self, batch: Any, batch_idx: int) -> Any:
                process.seen.append(batch[0].tolist())
                return self.loss(batch)

            def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
                process.seen.append(batch[0].tolist())

        def save(trainer: Any, *_: Any) -> None:
            trainer.save_checkpoint(f"batch {trainer.progress.total_batches + 1}")

        self.data = Changing()
        self.trainer = BareTrainer(
            Seeing(adam, dropout=0.3),
            callbacks=[hooked(on_train_batch_end=save)],
            data=self.data,
            max_epochs=plan.num_epochs,
            accumulate_grad_batches=plan.accumulate,
            limit_train_batches=plan.limit,
            reload_dataloaders_every_n_epochs=plan.every,
            num_sanity_val_steps=1,
            check_val_every_n_epoch=plan.check_val_every_n_epoch,
            val_check_interval=2 if plan.check_val_every_n_epoch is None else 1.0,
        )
        self.data.trainer = self.trainer
        self.trace = Trace()
        for receiver, kind in ((self.trainer.module, "module"), (self.data, "data")):
            self.trace.record(receiver, kind)

    def fit(self, checkpoint: dict[str, Any] | None = None) -> Process:
        self.trainer.fit(checkpoint=checkpoint)
        check(self.trace, "fit")
        return self


@settings(max_examples=25, deadline=None)
@given(plans)
def test_going_on_with_reloaded_loaders_is_exact(plan: Plan) -> None:
    whole = Process(plan, seed=0).fit()
    number = whole.trainer.progress.total_batches
    earlier = whole
    for seed, stop in enumerate(sorted({1 + plan.stop % number, 1 + plan.again % number}), 1):
        earlier = Process(plan, seed).fit(earlier.trainer.load(f"batch {stop}"))
        assert earlier.seen == whole.seen[len(whole.seen) - len(earlier.seen) :]
        assert same_bits(weights(earlier.trainer.module), weights(whole.trainer.module))
        assert earlier.trainer.progress.earlier_batches == whole.trainer.progress.earlier_batches
        for path in earlier.trainer.files:
            one, other = (without_time(process.trainer.load(path)) for process in (earlier, whole))
            assert same_values(one, other), path


def test_a_resumed_run_asks_first_in_the_epoch_in_which_it_was_asked_last() -> None:
    plan = Plan(every=2, num_epochs=4, accumulate=1, limit=1.0, stop=0, again=0)
    whole = Process(plan, seed=0).fit()
    assert [epoch for name, epoch in whole.data.asked if name == "train"] == [0, 2]

    def asked(stop: int) -> list[int]:
        rest = Process(plan, seed=1).fit(whole.trainer.load(f"batch {stop}"))
        return [epoch for name, epoch in rest.data.asked if name == "train"]

    origin = whole.trainer.load("batch 9")["fit"]["loaders"]["progress"]
    assert (origin["current_epoch"], origin["elapsed_seconds"]) == (2, 0.0), "the time plays no part"
    assert asked(1) == [0, 2], "inside epoch 0"
    assert asked(4) == [0, 2], "after epoch 1, before the loaders of epoch 2"
    assert asked(5) == [2], "inside epoch 2"
    assert asked(9) == [2], "inside epoch 3, whose loaders are those of epoch 2"


def test_on_fit_start_and_the_optimizers_are_made_before_progress_is_taken_back() -> None:
    seen: list[tuple[str, int]] = []

    def configure(module: Any) -> Any:
        seen.append(("configure_optimizers", trainer.progress.current_epoch))
        return adam(module)

    class Data:
        def train_dataloader(self) -> Any:
            seen.append(("train_dataloader", trainer.progress.current_epoch))
            return Sized(make_batches(2))

    def make(num_epochs: int) -> BareTrainer:
        callback = hooked(
            on_fit_start=lambda trainer, *_: seen.append(("on_fit_start", trainer.progress.current_epoch)),
            on_train_end=lambda trainer, *_: trainer.save_checkpoint("file"),
        )
        arguments: dict[str, Any] = {"reload_dataloaders_every_n_epochs": 1, "max_epochs": num_epochs}
        return BareTrainer(seeded(Net, configure), callbacks=[callback], data=Data(), **arguments)

    trainer = make(2)
    checkpoint = trainer.fit().load("file")
    seen.clear()
    trainer = make(3)
    trainer.fit(checkpoint=checkpoint)
    assert seen == [("train_dataloader", 1), ("configure_optimizers", 0), ("on_fit_start", 0), ("train_dataloader", 2)]


def test_a_data_module_has_its_memory_before_it_is_asked_for_loaders() -> None:
    class Remembering:
        def __init__(self, number: int) -> None:
            self.number = number

        def train_dataloader(self) -> Any:
            return Sized(make_batches(self.number))

        def state_dict(self) -> dict[str, Any]:
            return {"number": self.number}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.number = state["number"]

    save = hooked(on_train_epoch_end=lambda trainer, *_: trainer.save_checkpoint("file"))
    first = BareTrainer(seeded(), callbacks=[save], data=Remembering(3), max_epochs=1).fit()
    second = BareTrainer(seeded(), data=Remembering(5), max_epochs=2).fit(checkpoint=first.load("file"))
    assert second.progress.total_batches == 3 + 3

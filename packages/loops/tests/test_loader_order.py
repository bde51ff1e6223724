"""Loaders without their shuffling: `overfit_batches`, by itself and in a fit."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from bare_parts import BareTrainer, Net, Sized, Unsized, adam, hooked, make_batches, make_loader, same_bits, seeded
from bare_parts import weights as weights_of
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from torchdata.stateful_dataloader import StatefulDataLoader

from camshaft.loops import CombinedLoader
from camshaft.loops.data.loaders import in_order

NUM_SAMPLES = 8


class Numbers(TensorDataset):
    def __init__(self) -> None:
        super().__init__(torch.arange(float(NUM_SAMPLES)))


class Backwards(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return reversed(range(NUM_SAMPLES))

    def __len__(self) -> int:
        return NUM_SAMPLES


class OwnBatches(Sampler[list[int]]):
    def __iter__(self) -> Iterator[list[int]]:
        return iter([[0, 1], [2]])

    def __len__(self) -> int:
        return 2


class Special(DataLoader[Any]):
    """A loader with arguments of its own, which iterates as any other."""

    def __init__(self, number: int) -> None:
        super().__init__(Numbers(), batch_size=number, shuffle=True)


def indices(loader: Any) -> list[Any]:
    return [batch[0].tolist() for batch in loader]


def weighted() -> WeightedRandomSampler:
    return WeightedRandomSampler([1.0] * NUM_SAMPLES, NUM_SAMPLES)


def distributed(shuffle: bool) -> Any:
    return DistributedSampler(Numbers(), num_replicas=2, rank=1, shuffle=shuffle)


IN_ORDER = [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0], [6.0, 7.0]]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"batch_size": 3, "shuffle": True}, IN_ORDER),
        ({"batch_size": 3, "shuffle": True, "drop_last": True}, IN_ORDER[:2]),
        ({"batch_size": 3, "sampler": weighted()}, IN_ORDER),
        ({"batch_size": 3, "sampler": Backwards()}, IN_ORDER),
        ({"batch_size": 3, "sampler": SubsetRandomSampler([5, 2, 7, 3])}, [[5.0, 2.0, 7.0], [3.0]]),
        ({"batch_size": 3, "sampler": distributed(True)}, [[1.0, 3.0, 5.0], [7.0]]),
        ({"batch_size": None, "shuffle": True}, [float(number) for number in range(NUM_SAMPLES)]),
        ({"batch_sampler": BatchSampler(RandomSampler(Numbers()), 3, False)}, IN_ORDER),
        ({"batch_sampler": BatchSampler(RandomSampler(Numbers()), 3, True)}, IN_ORDER[:2]),
    ],
)
def test_whatever_decides_the_order_gives_way_to_that_of_the_dataset(
    arguments: dict[str, Any], expected: list[Any]
) -> None:
    loader = DataLoader(Numbers(), **arguments)
    with pytest.warns(UserWarning, match="in every epoch: the train loader's (.*Sampler|Backwards) is left out"):
        ordered = in_order(loader, "train")
    assert indices(ordered) == indices(ordered) == expected
    assert len(ordered) == len(expected)


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(Numbers(), batch_size=3),
        DataLoader(Numbers(), batch_size=None),
        DataLoader(Numbers(), batch_size=3, sampler=[4, 2, 0]),
        DataLoader(Numbers(), batch_size=3, sampler=distributed(False)),
        DataLoader(Numbers(), batch_sampler=BatchSampler(SequentialSampler(Numbers()), 3, False)),
        StatefulDataLoader(Numbers(), batch_size=3),
        make_loader("stream", make_batches(2)),
        Sized([1]),
        Unsized([1]),
    ],
)
def test_a_loader_whose_order_is_fixed_or_unknown_is_taken_as_it_is(loader: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert in_order(loader, "train") is loader


@pytest.mark.parametrize(
    "loader", [DataLoader(Numbers(), batch_sampler=OwnBatches()), StatefulDataLoader(Numbers(), shuffle=True)]
)
def test_a_loader_whose_order_cannot_be_changed_is_refused(loader: Any) -> None:
    message = (
        r"`train loader` must be one whose batches come in the dataset's order, .* in FitLoop\(overfit_batches=.*\)\. "
        "Pass a DataLoader with shuffle=False, or limit_train_batches in place of overfit_batches"
    )
    with pytest.raises(ValueError, match=message):
        in_order(loader, "train")


def collate(samples: list[Any]) -> Any:
    return torch.stack([sample[0] for sample in samples])


def seed_worker(worker_id: int) -> None:
    torch.manual_seed(worker_id)


@pytest.mark.filterwarnings("ignore:`overfit_batches` takes the same batches")
def test_everything_else_of_the_loader_stays() -> None:
    loader = DataLoader(
        Numbers(),
        batch_size=3,
        shuffle=True,
        num_workers=2,
        collate_fn=collate,
        timeout=30,
        worker_init_fn=seed_worker,
        multiprocessing_context="fork",
        generator=torch.Generator().manual_seed(5),
        prefetch_factor=3,
        persistent_workers=True,
        drop_last=True,
    )
    ordered = in_order(loader, "train")
    assert ordered is not loader and isinstance(loader.sampler, RandomSampler), "the user's own is as it was"
    for name in (
        *("dataset", "batch_size", "num_workers", "collate_fn", "timeout", "worker_init_fn", "generator"),
        *("multiprocessing_context", "prefetch_factor", "persistent_workers", "drop_last", "pin_memory"),
    ):
        assert getattr(ordered, name) == getattr(loader, name), name


@pytest.mark.filterwarnings("ignore:`overfit_batches` takes the same batches")
def test_a_subclass_with_arguments_of_its_own_is_put_in_order_as_well() -> None:
    assert indices(in_order(Special(3), "train")) == IN_ORDER


@pytest.mark.filterwarnings("ignore:`overfit_batches` takes the same batches")
def test_each_loader_of_a_combination_is_put_in_order() -> None:
    fixed = DataLoader(Numbers(), batch_size=3)
    loaders = {"a": DataLoader(Numbers(), batch_size=3, shuffle=True), "b": [fixed]}
    ordered = in_order(CombinedLoader(loaders, "min_size"), "train")
    assert ordered.mode == "min_size" and ordered.flattened[1] is fixed
    assert [batch["a"][0].tolist() for batch in ordered] == IN_ORDER


# In a fit


class Seeing(Net):
    """Remembers the first feature of each batch's samples, by stage."""

    def __init__(self) -> None:
        super().__init__(adam, dropout=0.3)
        self.trained: list[Any] = []
        self.validated: list[Any] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.trained.append(batch[0][:, 0].tolist())
        return self.loss(batch)

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.validated.append((dataloader_idx, batch[0][:, 0].tolist()))


def samples(number: int = NUM_SAMPLES) -> Any:
    x = torch.arange(float(number)).repeat(3, 1).T
    return TensorDataset(x, x.sum(1, keepdim=True))


def loader(number: int = NUM_SAMPLES, **arguments: Any) -> DataLoader[Any]:
    return DataLoader(samples(number), **{"batch_size": 2, "shuffle": True, **arguments})


pytestmark = pytest.mark.filterwarnings(
    "ignore:`overfit_batches` takes the same batches", "ignore:There is a `validation_step`"
)


@pytest.mark.parametrize(
    ("overfit", "expected"),
    [(2, [[0.0, 1.0], [2.0, 3.0]]), (0.25, [[0.0, 1.0]]), (1, [[0.0, 1.0]]), (0.5, [[0.0, 1.0], [2.0, 3.0]])],
)
def test_a_number_or_share_of_batches_is_the_same_in_every_epoch(overfit: Any, expected: list[Any]) -> None:
    module = seeded(Seeing)
    trainer = BareTrainer(module, overfit_batches=overfit, max_epochs=3).fit(loader())
    assert module.trained == expected * 3
    assert trainer.fit_loop.num_batches == len(expected)


@pytest.mark.parametrize(("overfit", "number"), [(1.0, 4), (9, 4), (0, 4), (0.0, 4)])
def test_all_of_it_or_nothing_of_it(overfit: Any, number: int) -> None:
    module = seeded(Seeing)
    BareTrainer(module, overfit_batches=overfit, max_epochs=2).fit(loader())
    first, second = module.trained[:number], module.trained[number:]
    assert len(first) == len(second) == number
    assert (first == second) is bool(overfit), "0 shuffles as ever"


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"overfit_batches": 2}, [2, 1]),
        ({"overfit_batches": 1}, [1, 1]),
        ({"overfit_batches": 3, "limit_val_batches": 2}, [2, 1]),
        ({"overfit_batches": 2, "limit_val_batches": 3}, [2, 1]),
        ({"overfit_batches": 1.0}, [4, 1]),
    ],
)
def test_validation_takes_at_most_as_much_and_does_not_shuffle_either(
    limits: dict[str, Any], expected: list[int]
) -> None:
    module = seeded(Seeing)
    trainer = BareTrainer(module, max_epochs=2, **limits).fit(loader(), [loader(), loader(2)])
    assert trainer.fit_loop.validation.num_batches == expected
    first = [(0, [2.0 * number, 2.0 * number + 1]) for number in range(expected[0])] + [(1, [0.0, 1.0])]
    assert module.validated == first * 2


def test_no_validation_stays_none() -> None:
    module = seeded(Seeing)
    BareTrainer(module, max_epochs=1, overfit_batches=2, limit_val_batches=0).fit(loader(), loader())
    assert module.validated == []


def test_a_share_holds_for_each_loader_and_has_to_be_a_batch_of_it() -> None:
    module = seeded(Seeing)
    trainer = BareTrainer(module, max_epochs=1, overfit_batches=0.5).fit(loader(), loader(4))
    assert (trainer.fit_loop.num_batches, trainer.fit_loop.validation.num_batches) == (2, [1])
    message = "`overfit_batches` must be 0 or a share of at least one of the loader's 2 batches, but got 0.25"
    with pytest.raises(ValueError, match=message):
        BareTrainer(seeded(Seeing), max_epochs=1, overfit_batches=0.25).fit(loader(), loader(4))
    message = r"`overfit_batches` must be 1\.0 or an int for a loader of unknown length"
    with pytest.raises(ValueError, match=message):
        BareTrainer(seeded(Seeing), max_epochs=1, overfit_batches=0.5).fit(loader(), Unsized(make_batches(4)))


def test_a_validation_loader_that_cannot_be_put_in_order_is_refused() -> None:
    own = DataLoader(samples(), batch_sampler=OwnBatches())
    with pytest.raises(ValueError, match=r"`validate loader` must be one whose batches come in the dataset's order"):
        BareTrainer(seeded(Seeing), max_epochs=1, overfit_batches=1).fit(loader(), own)
    BareTrainer(seeded(Seeing), max_epochs=1).fit(loader(), own)


def test_streams_are_cut_short_as_they_come() -> None:
    module = seeded(Seeing)
    stream = make_loader("stream", [(x, y) for x, y in DataLoader(samples(), batch_size=2)])
    BareTrainer(module, max_epochs=2, overfit_batches=2).fit(stream, stream)
    assert module.trained == [[0.0, 1.0], [2.0, 3.0]] * 2
    assert module.validated == [(0, batch) for batch in module.trained]


def test_of_two_limits_of_an_epoch_overfit_batches_counts_with_a_warning() -> None:
    module = seeded(Seeing)
    with pytest.warns(UserWarning, match=r"`overfit_batches=1` takes the place of `limit_train_batches=2`"):
        trainer = BareTrainer(module, max_epochs=2, overfit_batches=1, limit_train_batches=2)
    trainer.fit(loader())
    assert module.trained == [[0.0, 1.0]] * 2


def test_weights_are_those_of_a_loop_over_the_first_batches() -> None:
    module, other = seeded(Seeing), seeded(Seeing)
    torch.manual_seed(3)
    BareTrainer(module, max_epochs=3, overfit_batches=2).fit(loader(generator=torch.Generator()))
    torch.manual_seed(3)
    optimizer = adam(other)
    batches: list[tuple[Tensor, Tensor]] = list(DataLoader(samples(), batch_size=2, generator=torch.Generator()))
    for x, y in batches[:2] * 3:
        loss = other.training_step((x, y), 0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert same_bits(weights_of(module), weights_of(other))


@pytest.mark.parametrize("stop_after", [1, 2, 3, 5])
def test_going_on_inside_an_epoch_is_exact(stop_after: int) -> None:
    def save(trainer: Any, *_: Any) -> None:
        trainer.save_checkpoint(f"batch {trainer.progress.total_batches + 1}")

    def trainer(seed: int) -> BareTrainer:
        module = seeded(Seeing, seed=seed)
        return BareTrainer(module, callbacks=[hooked(on_train_batch_end=save)], max_epochs=2, overfit_batches=3)

    whole = trainer(0).fit(loader())
    rest = trainer(9).fit(loader(), checkpoint=whole.load(f"batch {stop_after}"))
    assert rest.module.trained == whole.module.trained[stop_after:]
    assert same_bits(weights_of(rest.module), weights_of(whole.module))

"""Loaders that draw random numbers, in all ways in which people write them: under the import names as in Lightning."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, Sampler, TensorDataset

from camshaft.callbacks import ModelCheckpoint

lightning = pytest.importorskip("lightning.pytorch", reason="compares with Lightning")
compat = pytest.importorskip("camshaft.compat")

QUIET = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def shuffling(num_samples: int = 9, **arguments: Any) -> DataLoader[Any]:
    dataset = TensorDataset(torch.arange(float(num_samples))[:, None])
    return DataLoader(dataset, 2, **{"shuffle": True, **arguments})


class Own:
    """A loader of no library, which draws its order when it is begun; by a generator of its own if it has one."""

    def __init__(self, generator: torch.Generator | None = None) -> None:
        self.generator = generator

    def order(self) -> list[int]:
        return torch.randperm(5, generator=self.generator).tolist()

    def __iter__(self) -> Iterator[Any]:
        return iter([torch.tensor([[float(number)]]) for number in self.order()])


class Sized(Own):
    def __len__(self) -> int:
        return 5


class Lazy(Sized):
    """Draws while it is read."""

    def __iter__(self) -> Iterator[Any]:
        for number in self.order():
            yield torch.tensor([[number + random.random()]])


class Counting(Sized):
    """Knows how often it was begun."""

    num_begun = 0

    def order(self) -> list[int]:
        self.num_begun += 1
        return [10 * self.num_begun + number for number in range(5)]


class ItsOwnIterator(Sized):
    def __iter__(self) -> Iterator[Any]:
        self.left = self.order()
        return self

    def __next__(self) -> torch.Tensor:
        if not self.left:
            raise StopIteration
        return torch.tensor([[float(self.left.pop())]])


class Augmenting(IterableDataset[torch.Tensor]):
    """A stream that draws for each sample."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (number + torch.rand(1) for number in range(7))


class Promising(Augmenting):
    """One that promises one batch more than it has."""

    def __len__(self) -> int:
        return 10


class Estimating(Sampler[list[int]]):
    """Batches of different sizes, of which it promises more than it gives."""

    def __len__(self) -> int:
        return 5

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(9).tolist()
        return iter([order[:4], order[4:6], order[6:]])


class Remembering(RandomSampler):
    """As public code has it to resume: a state that cannot be told before an order was drawn, or of after that."""

    def __init__(self, dataset: Any, tells_later_numbers: bool) -> None:
        super().__init__(dataset, generator=generator())
        self.tells_later_numbers, self.counter, self.is_resumed = tells_later_numbers, 0, False

    def state_dict(self) -> dict[str, Any]:
        numbers = self.generator.get_state() if self.tells_later_numbers else self.before
        return {"numbers": numbers, "counter": self.counter}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.generator.set_state(state["numbers"])
        self.counter, self.is_resumed = state["counter"], True

    def __iter__(self) -> Iterator[int]:
        self.before = self.generator.get_state()
        order = torch.randperm(len(self), generator=self.generator).tolist()
        self.counter, self.is_resumed = self.counter if self.is_resumed else 0, False
        for index in order[self.counter :]:
            self.counter += 1
            yield index
        self.counter = 0


def sampled(kind: Any, *arguments: Any) -> DataLoader[Any]:
    dataset = TensorDataset(torch.arange(9.0)[:, None])
    if kind is Estimating:
        return DataLoader(dataset, batch_sampler=Estimating())
    return DataLoader(dataset, 2, sampler=kind(dataset, *arguments))


KINDS: dict[str, Callable[[], Any]] = {
    "a generator, full batches": lambda: shuffling(8, generator=generator()),
    "a generator, a short last batch": lambda: shuffling(generator=generator()),
    "no generator": shuffling,
    "workers": lambda: shuffling(generator=generator(), num_workers=1),
    "workers that live on": lambda: shuffling(num_workers=1, persistent_workers=True),
    "a stream": lambda: DataLoader(Augmenting(), 2),
    "a stream of wrong length": lambda: DataLoader(Promising(), 2),
    "own": Sized,
    "own, with a generator": lambda: Sized(generator()),
    "own, of unknown length": Own,
    "own, lazy": Lazy,
    "own, counting": Counting,
    "own, its own iterator": ItsOwnIterator,
    "a sampler of wrong length": lambda: sampled(Estimating),
    "a sampler whose state is not there at first": lambda: sampled(Remembering, False),
    "a sampler whose state is a later one": lambda: sampled(Remembering, True),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "sanity check": {},
    "no sanity check": {"num_sanity_val_steps": 0},
    "a whole sanity check": {"num_sanity_val_steps": -1},
    "limits": {"limit_train_batches": 3, "limit_val_batches": 2},
    "loaders that are asked for again": {"reload_dataloaders_every_n_epochs": 1},
    "validation in every second epoch": {"check_val_every_n_epoch": 2},
}


def run(framework: Any, make: Callable[[], Any], *, num_loaders: int = 1, **settings: Any) -> list[Any]:
    """All batches of two fits and the other verbs, what is drawn beside them, and the weight."""
    base: Any = getattr(framework, "LightningModule", None) or framework.TrainingModule
    seen: list[Any] = []

    class Module(base):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.dropout = torch.nn.Linear(1, 1), torch.nn.Dropout()

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            batch = batch[0] if isinstance(batch, list) else batch
            seen.append(batch.flatten().tolist())
            return self.dropout(self.layer(batch)).mean()

        def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
            batch = batch[0] if isinstance(batch, list) else batch
            seen.append((self.trainer.sanity_checking, batch.flatten().tolist(), torch.rand(1).item()))

        test_step = predict_step = validation_step

        def train_dataloader(self) -> Any:
            return make()

        def val_dataloader(self) -> Any:
            return [make() for _ in range(num_loaders)]

        test_dataloader = val_dataloader

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.01)

    torch.manual_seed(0)
    random.seed(0)
    module, trainer = Module(), framework.Trainer(accelerator="cpu", max_epochs=3, **QUIET, **settings)
    trainer.fit(module)
    trainer.fit_loop.max_epochs = 4
    trainer.fit(module)
    trainer.validate(module)
    trainer.test(module)
    return [*seen, module.layer.weight.item()]


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore")
def test_batches_and_draws_are_those_of_lightning(kind: str, settings: dict[str, Any]) -> None:
    if "workers" in kind and settings:
        pytest.skip("starting processes takes long")
    assert run(compat, KINDS[kind], **settings) == run(lightning, KINDS[kind], **settings)


@pytest.mark.parametrize("kind", ["a generator, full batches", "own", "own, with a generator", "own, counting"])
@pytest.mark.filterwarnings("ignore")
def test_so_are_those_of_several_loaders(kind: str) -> None:
    assert run(compat, KINDS[kind], num_loaders=2) == run(lightning, KINDS[kind], num_loaders=2)


@pytest.mark.filterwarnings("ignore")
def test_what_loaders_are_made_of_may_be_drawn() -> None:
    """Some split their data anew in each hook, which gives the same halves in both as the sanity check draws first."""

    def halves(framework: Any) -> Any:
        base: Any = getattr(framework, "LightningModule", None) or framework.TrainingModule

        class Module(base):
            def __init__(self) -> None:
                super().__init__()
                self.layer, self.seen = torch.nn.Linear(1, 1), []

            def half(self, number: int) -> Any:
                return torch.utils.data.random_split(torch.arange(8.0)[:, None], [4, 4])[number]

            def training_step(self, batch: Any, batch_idx: int) -> Any:
                self.seen.append(batch.item())
                return self.layer(batch).mean()

            def validation_step(self, batch: Any, batch_idx: int) -> None:
                self.seen.append(batch.item())

            def train_dataloader(self) -> Any:
                return DataLoader(self.half(0), shuffle=True)

            def val_dataloader(self) -> Any:
                return DataLoader(self.half(1))

            def configure_optimizers(self) -> Any:
                return torch.optim.SGD(self.parameters(), 0.01)

        torch.manual_seed(0)
        module = Module()
        framework.Trainer(accelerator="cpu", max_epochs=1, **QUIET).fit(module)
        return module.seen

    own = halves(compat)
    assert own == halves(lightning)
    assert set(own[2:6]).isdisjoint(own[6:])


@pytest.mark.filterwarnings("ignore")
def test_a_fit_that_trains_nothing_begins_the_loaders() -> None:
    def drawn(framework: Any) -> float:
        base: Any = getattr(framework, "LightningModule", None) or framework.TrainingModule

        class Module(base):
            def training_step(self, batch: Any, batch_idx: int) -> None: ...

            def configure_optimizers(self) -> None: ...

        torch.manual_seed(0)
        framework.Trainer(accelerator="cpu", max_epochs=0, **QUIET).fit(Module(), Sized())
        return torch.rand(1).item()

    assert drawn(compat) == drawn(lightning)


class Marking(IterableDataset[torch.Tensor]):
    """A stream that draws for each sample, and can go on inside an epoch."""

    position = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        while self.position < len(self):
            self.position += 1
            yield self.position + torch.rand(1)
        self.position = 0

    def __len__(self) -> int:
        return 8

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


@pytest.mark.parametrize("settings", [{}, {"num_sanity_val_steps": 0}, {"check_val_every_n_epoch": 2}], ids=str)
@pytest.mark.parametrize("val_kind", ["a generator, full batches", "own", "own, with a generator"])
@pytest.mark.parametrize("make_train", [KINDS["a generator, full batches"], lambda: DataLoader(Marking(), 2)])
@pytest.mark.filterwarnings("ignore")
def test_a_fit_that_goes_on_draws_as_one_that_was_not_stopped(
    make_train: Any, val_kind: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    def fit(max_steps: int, ckpt_path: Path | None = None) -> Any:
        class Module(compat.TrainingModule):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.layer, self.dropout, self.seen = torch.nn.Linear(1, 1), torch.nn.Dropout(), []

            def training_step(self, batch: Any, batch_idx: int) -> Any:
                batch = batch[0] if isinstance(batch, list) else batch
                self.seen.append((self.global_step, batch.flatten().tolist()))
                return self.dropout(self.layer(batch)).mean()

            def validation_step(self, batch: Any, batch_idx: int) -> None:
                batch = batch[0] if isinstance(batch, list) else batch
                drawn = torch.rand(1).item()
                if not self.trainer.sanity_checking:
                    self.seen.append((self.global_step, batch.flatten().tolist(), drawn))

            def configure_optimizers(self) -> Any:
                return torch.optim.SGD(self.parameters(), 0.01)

        torch.manual_seed(0)
        module = Module()
        trainer = compat.Trainer(accelerator="cpu", max_epochs=4, max_steps=max_steps, **QUIET, **settings)
        trainer.fit(module, make_train(), KINDS[val_kind](), ckpt_path=ckpt_path)
        trainer.save_checkpoint(tmp_path / "stopped.ckpt")
        return module.seen, module.layer.weight.item()

    whole, weight = fit(-1)
    for num_steps in (3, 4, 6, 9):
        before, _ = fit(num_steps)
        after, its_weight = fit(-1, tmp_path / "stopped.ckpt")
        assert (before + after, its_weight) == (whole, weight)


@pytest.mark.parametrize("tells_later_numbers", [False, True])
def test_a_sampler_whose_state_does_not_restore_it_is_replayed(tells_later_numbers: bool, tmp_path: Path) -> None:
    def batches(path: Path | None = None) -> list[list[float]]:
        seen: list[list[float]] = []

        class Module(compat.TrainingModule):  # type: ignore[name-defined,misc]
            def __init__(self) -> None:
                super().__init__()
                self.layer = torch.nn.Linear(1, 1)

            def training_step(self, batch: Any, batch_idx: int) -> Any:
                seen.append(batch[0].flatten().tolist())
                return self.layer(batch[0]).mean()

            def configure_optimizers(self) -> Any:
                return torch.optim.SGD(self.parameters(), 0.01)

        saves = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=2, save_top_k=-1)
        trainer = compat.Trainer(
            accelerator="cpu", max_epochs=2, callbacks=[saves], **{**QUIET, "enable_checkpointing": True}
        )
        trainer.fit(Module(), sampled(Remembering, tells_later_numbers), ckpt_path=path)
        return seen

    whole = batches()
    assert batches(tmp_path / "step=2.ckpt") == whole[2:]

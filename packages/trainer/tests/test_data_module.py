"""The data module by itself."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, TensorDataset
from trainer_parts import Regression, quiet_trainer

from camshaft.hooks_core import CATALOGUE, Receiver, is_overridden
from camshaft.trainer import DataModule


class Numbers(DataModule):
    def __init__(self, batch_size: int = 4) -> None:
        super().__init__()
        self.save_hyperparameters()

    def train_dataloader(self) -> list[int]:
        return [1, 2]


def test_only_what_a_subclass_defines_counts_as_implemented() -> None:
    for name in CATALOGUE:
        assert not is_overridden(DataModule(), name), name
    assert is_overridden(Numbers(), "train_dataloader")


def test_every_hook_of_a_data_module_can_be_overridden_with_its_name() -> None:
    for spec in CATALOGUE.received_by(Receiver.DATA):
        assert hasattr(DataModule, spec.name), spec.name


def test_hyperparameters_are_saved() -> None:
    assert Numbers(batch_size=8).hparams == {"batch_size": 8}


def test_the_trainer_is_known_once_attached() -> None:
    data, trainer = Numbers(), object()
    assert data.trainer is None
    data.trainer = trainer
    assert data.trainer is trainer


def test_a_trainer_can_be_assigned_and_deleted() -> None:
    data, trainer = Numbers(), object()
    data.trainer = trainer
    assert data.trainer is trainer
    del data.trainer
    assert data.trainer is None


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda data: pickle.loads(pickle.dumps(data))])
def test_copies_leave_the_trainer_behind(copied) -> None:
    data = Numbers(batch_size=8)
    data.trainer = lambda: "cannot be pickled"
    other = copied(data)
    assert other.hparams == {"batch_size": 8}
    assert other.trainer is None


class Stream(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self):
        return iter(torch.arange(5.0))


def test_datasets_make_a_data_module() -> None:
    class Sized(DataModule):
        def __init__(self, other: int, batch_size: int = 1) -> None:
            super().__init__()
            self.given = other, batch_size

    numbers = TensorDataset(torch.arange(6.0))
    data = Sized.from_datasets(numbers, [numbers, Stream()], batch_size=4, other=5)
    assert data.given == (5, 4)
    assert isinstance(data.train_dataloader().sampler, RandomSampler)
    sized, stream = data.val_dataloader()
    assert [len(batch[0]) for batch in sized] == [4, 2]
    assert [len(batch) for batch in stream] == [4, 1]
    assert is_overridden(data, "val_dataloader") and not is_overridden(data, "test_dataloader")
    assert str(data).splitlines() == [
        "{Train dataloader: size=6}",
        "{Validation dataloader: 1. size=6 ; 2. size=NA}",
        "{Test dataloader: None}",
        "{Predict dataloader: None}",
    ]
    assert len(pickle.loads(pickle.dumps(DataModule.from_datasets(numbers, batch_size=4))).train_dataloader()) == 2


def test_a_fit_takes_the_loaders_of_datasets(tmp_path: Path) -> None:
    data = DataModule.from_datasets(TensorDataset(torch.rand(6, 3), torch.rand(6, 1)), batch_size=2)
    trainer = quiet_trainer(tmp_path, max_epochs=1)
    trainer.fit(Regression(), datamodule=data)
    assert trainer.global_step == 3


def test_a_verb_leaves_out_the_data_module_of_an_earlier_one(tmp_path: Path) -> None:
    stages = []

    class Told(DataModule):
        def setup(self, stage: str) -> None:
            stages.append(stage)

        def train_dataloader(self) -> DataLoader:
            return DataLoader(TensorDataset(torch.rand(4, 3), torch.rand(4, 1)), batch_size=2)

    data, trainer = Told(), quiet_trainer(tmp_path, max_epochs=1)
    trainer.fit(Regression(), datamodule=data)
    assert (stages, trainer.datamodule) == (["fit"], data)
    trainer.validate(Regression(), data.train_dataloader(), verbose=False)
    assert (stages, trainer.datamodule) == (["fit"], None)


def test_a_data_module_that_is_not_set_up_has_no_sizes() -> None:
    class Lazy(DataModule):
        def train_dataloader(self):
            return DataLoader(self.data)

    assert str(Lazy()).splitlines()[0] == "{Train dataloader: None}"


def test_the_keys_of_hyperparameters_are_known(tmp_path: Path) -> None:
    class Data(Numbers):
        def train_dataloader(self):
            return DataLoader(TensorDataset(torch.rand(6, 3), torch.rand(6, 1)))

    trainer = quiet_trainer(tmp_path, max_epochs=1)
    trainer.fit(Regression(), datamodule=Data(batch_size=8))
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    saved = torch.load(tmp_path / "a.ckpt", weights_only=True)
    assert saved["datamodule_hyper_parameters"] == {"batch_size": 8}

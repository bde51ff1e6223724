"""The data module by itself."""

from __future__ import annotations

import copy
import pickle

import pytest

from camshaft.hooks_core import Receiver, is_overridden
from camshaft.hooks_core.catalogue import CATALOGUE
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
        assert not spec.is_current or hasattr(DataModule, spec.name), spec.name


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

"""Hyperparameters under the import names, as in Lightning."""

from __future__ import annotations

from typing import Any

import pytest

from camshaft.compat import DataModule, TrainingModule
from camshaft.compat.hyperparameters import HyperparametersMixin


@pytest.mark.parametrize("base", [HyperparametersMixin, TrainingModule, DataModule])
def test_an_object_has_the_arguments_of_those_that_make_it(base: Any) -> None:
    class Child(base):
        def __init__(self, dropout: float, init: str) -> None:
            super().__init__()
            self.save_hyperparameters(ignore="dropout")

    class Parent(base):
        def __init__(self, batch_size: int, optimizer: str) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.child = Child(0.1, "xavier")

    class Around:
        def __init__(self, seed: int = 42) -> None:
            self.parent = Parent(64, optimizer="adam")

    parent = Around().parent
    assert parent.hparams == {"batch_size": 64, "optimizer": "adam"}
    assert parent.child.hparams == {"init": "xavier", "batch_size": 64, "optimizer": "adam"}


def test_half_private_methods_that_libraries_call_are_there() -> None:
    module = TrainingModule()
    module._set_hparams({"a": 1, "b": 2})
    module._set_hparams({"b": 3, "c": 4})
    module.remove_ignored_hparams(["c", "d"])
    assert module.hparams == {"a": 1, "b": 3}
    omegaconf = pytest.importorskip("omegaconf")
    configuration = omegaconf.OmegaConf.create({"cfg": {"lr": 0.1}})
    module._set_hparams(configuration)
    assert module.hparams is configuration


def test_nothing_at_all_saves_nothing() -> None:
    class Optional(TrainingModule):
        def __init__(self, hparams: Any = None) -> None:
            super().__init__()
            self.save_hyperparameters(hparams)

    assert Optional().hparams == {}
    assert Optional({"a": 1}).hparams == {"a": 1}

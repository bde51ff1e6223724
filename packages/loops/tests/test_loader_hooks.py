"""Where the loaders of a fit come from: attributes, partials, data that a module owns, hooks with arguments."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from bare_parts import BareTrainer, Batch, Net, Sized, make_batches
from torch import Tensor

from camshaft.hooks_core import HookFaultError


def test_loaders_may_be_attributes_or_partials_of_the_module() -> None:
    def loader(num_batches: int) -> Sized:
        return Sized(make_batches(num_batches))

    module = Net()
    module.train_dataloader = loader(3)
    module.val_dataloader = partial(loader, 2)
    trainer = BareTrainer(module, max_epochs=1).fit()
    assert (trainer.fit_loop.num_batches, trainer.fit_loop.validation.num_batches) == (3, [2])
    module.val_dataloader = [loader(1), loader(2)]
    trainer.verb("validate", trainer.fit_loop.validation, None)
    assert trainer.fit_loop.validation.num_batches == [1, 2]


def test_a_data_module_that_the_module_owns_gives_its_loaders() -> None:
    class Data:
        def train_dataloader(self) -> Any:
            return [Sized(make_batches(2)), Sized(make_batches(3))]

    class Owning(Net):
        def __init__(self) -> None:
            super().__init__()
            self.data = Data()

        def train_dataloader(self) -> Any:
            return self.data.train_dataloader()

        def training_step(self, batch: list[Batch], batch_idx: int) -> Tensor:
            return self.loss(batch[0]) + self.loss(batch[1])

    assert BareTrainer(Owning(), max_epochs=1, limit_val_batches=0).fit().fit_loop.num_batches == 3


def test_a_loader_hook_that_the_user_calls_may_take_arguments() -> None:
    class Loading(Net):
        def train_dataloader(self, batch_size: int) -> Any:
            return make_batches(3, batch_size)

    module = Loading()
    trainer = BareTrainer(module, max_epochs=1).fit(Sized(module.train_dataloader(batch_size=4)))
    assert trainer.global_step == 3
    with pytest.raises(HookFaultError, match="train_dataloader"):
        BareTrainer(module, max_epochs=1).fit()

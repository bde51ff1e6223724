"""Modules whose `training_step` takes `optimizer_idx`, and what cannot be done with several optimizers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from compat_parts import Regression, quiet_trainer
from torch import Tensor
from trainer_parts import Twins, loader, own_frames

from camshaft.callbacks import BatchSizeFinder, LearningRateFinder
from camshaft.callbacks.arguments import InvalidArgumentError
from camshaft.compat import DataModule, TrainingModule

MOST_FRAMES = 8
"""One more than without compat, whose `fit` reads earlier arguments."""


def test_each_optimizer_gets_a_step_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "camshaft.compat.results", raising=False)  # other tests return results of 0.9

    class PerOptimizer(Twins, TrainingModule):
        frames: list[str]

        def training_step(self, batch: Any, batch_idx: int, optimizer_idx: int) -> Tensor:
            self.frames = own_frames()
            requiring = [layer.weight.requires_grad for layer in (self.first, self.second)]
            assert requiring == [optimizer_idx == 0, optimizer_idx == 1]
            return self.loss(batch)

    module = PerOptimizer()
    trainer = quiet_trainer(tmp_path)
    trainer.fit(module, loader(3))
    assert trainer.global_step == 3
    assert len(module.frames) <= MOST_FRAMES, module.frames
    assert all(parameter.requires_grad for parameter in module.parameters())


class WithTwo(Regression):
    def __init__(self) -> None:
        super().__init__()
        self.batch_size = 2

    def training_step(self, batch: Any, batch_idx: int, optimizer_idx: int) -> Tensor:  # type: ignore[override]
        return self.loss(batch)

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(self.layer.parameters(), lr=0.1), torch.optim.SGD(self.layer.parameters(), lr=0.1)]


class Data(DataModule):
    batch_size = 2

    def train_dataloader(self) -> Any:
        return loader(4)


@pytest.mark.parametrize("finder", [BatchSizeFinder, LearningRateFinder])
def test_finders_try_one_optimizer(tmp_path: Path, finder: type) -> None:
    rule = f"`number of optimizers` must be 1, but got 2 .* in {finder.__name__}"
    with pytest.raises(InvalidArgumentError, match=rule):
        quiet_trainer(tmp_path, callbacks=[finder()]).fit(WithTwo(), datamodule=Data())

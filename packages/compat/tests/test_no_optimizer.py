"""Fits of modules that configure no optimizer: their batches are counted, as in every release of Lightning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from compat_parts import quiet_trainer
from torch import nn
from torch.utils.data import DataLoader

from camshaft.compat import TrainingModule
from camshaft.compat.names.trainer.model_checkpoint import ModelCheckpoint


class WithoutOptimizer(TrainingModule):
    """Updates its weight by itself, as soon as there is a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1, bias=False)
        self.num_steps: list[int] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.layer(batch).mean()

    def on_after_backward(self) -> None:
        self.num_steps.append(self.global_step)
        with torch.no_grad():
            self.layer.weight -= self.layer.weight.grad
        self.layer.weight.grad = None

    def configure_optimizers(self) -> None:
        return None


def test_batches_are_differentiated_counted_and_saved(tmp_path: Path) -> None:
    saving = ModelCheckpoint(dirpath=tmp_path, every_n_train_steps=2, save_top_k=-1)
    trainer = quiet_trainer(tmp_path, callbacks=[saving], enable_checkpointing=True, max_epochs=-1, max_steps=5)
    module = WithoutOptimizer()
    start = module.layer.weight.item()
    with pytest.warns(UserWarning, match="`configure_optimizers` returned no optimizer: nothing will be updated"):
        trainer.fit(module, DataLoader(torch.ones(3, 1)))
    assert (module.num_steps, trainer.global_step) == ([0, 1, 2, 3, 4], 5)
    assert module.layer.weight.item() == pytest.approx(start - 5)
    assert len(list(tmp_path.glob("*.ckpt"))) == 2
    resumed = quiet_trainer(tmp_path, max_epochs=-1, max_steps=7)
    with pytest.warns(UserWarning, match="no optimizer"):
        resumed.fit(WithoutOptimizer(), DataLoader(torch.ones(3, 1)), ckpt_path=saving.best_model_path)
    assert resumed.global_step == 7


def test_by_hand_nothing_is_counted(tmp_path: Path) -> None:
    module = WithoutOptimizer()
    module.automatic_optimization = False
    trainer = quiet_trainer(tmp_path)
    trainer.fit(module, DataLoader(torch.ones(3, 1)))
    assert (module.num_steps, trainer.global_step) == ([], 0)

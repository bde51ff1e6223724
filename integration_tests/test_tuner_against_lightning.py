"""`Tuner` of the import names finds what Lightning's finds, and the fit after it is the same."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.tuner import Tuner as LightningTuner
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import camshaft.compat
from camshaft.compat.names.trainer.finders import Tuner

SIDES: dict[str, tuple[Any, Any, Any]] = {
    "lightning": (pl.LightningModule, pl.Trainer, LightningTuner),
    "camshaft": (camshaft.compat.TrainingModule, camshaft.compat.Trainer, Tuner),
}

pytestmark = pytest.mark.filterwarnings("ignore")


def line(base: Any) -> Any:
    class Line(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.lr, self.batch_size = 0.1, 4
            self.layers = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 1))

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return nn.functional.mse_loss(self.layers(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=self.lr)

        def train_dataloader(self) -> Any:
            inputs = torch.randn(100, 3)  # random numbers that a search must not use up
            targets = inputs.sum(dim=1, keepdim=True)
            return DataLoader(TensorDataset(inputs, targets), batch_size=self.batch_size, shuffle=True)

    torch.manual_seed(1)
    return Line()


def tuned(side: str, search: Any, **limits: Any) -> dict[str, Any]:
    base, trainer_class, tuner_class = SIDES[side]
    module = line(base)
    off = dict.fromkeys(("enable_checkpointing", "enable_progress_bar", "enable_model_summary", "logger"), False)
    trainer = trainer_class(accelerator="cpu", **{"max_epochs": 4, **limits}, **off)
    torch.manual_seed(2)
    found = search(tuner_class(trainer), module)
    trainer.fit(module)
    values = {name: value.tolist() for name, value in module.state_dict().items()}
    return {"found": found, "lr": module.lr, "batch_size": module.batch_size, **values}


@pytest.mark.parametrize("mode", ["exponential", "linear"])
@pytest.mark.parametrize("limits", [{}, {"max_epochs": 1}, {"max_epochs": 2, "limit_train_batches": 10}], ids=str)
def test_a_rate(mode: str, limits: dict[str, Any]) -> None:
    def search(tuner: Any, module: Any) -> Any:
        curve = tuner.lr_find(module, mode=mode, num_training=60, max_lr=0.5)
        return curve.results, curve.suggestion(), curve.suggestion(skip_begin=3, skip_end=5)

    ours, theirs = tuned("camshaft", search, **limits), tuned("lightning", search, **limits)
    assert theirs["found"][1] is not None
    assert ours == theirs


@pytest.mark.parametrize("options", [{}, {"mode": "binsearch"}, {"max_trials": 3}, {"max_trials": 0}], ids=str)
def test_a_batch_size(options: dict[str, Any]) -> None:
    def search(tuner: Any, module: Any) -> Any:
        return tuner.scale_batch_size(module, **options)

    assert tuned("camshaft", search)["found"] == tuned("lightning", search)["found"]

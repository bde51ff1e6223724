"""Cross-validation: a fit for each fold, every one with fresh weights, and what they reach on average.

Run it as `python examples/k_fold.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import mean, stdev
from typing import Any

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import StratifiedKFold
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from camshaft.trainer import Trainer, TrainingModule, seed_everything


class Digits(TrainingModule):
    def __init__(self, learning_rate: float = 3e-3) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("accuracy", (self.net(batch[0]).argmax(dim=1) == batch[1]).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.learning_rate)


def fit_fold(dataset: Dataset[Any], train: list[int], held_out: list[int]) -> float:
    """Train a new model on one part of a dataset. Returns its accuracy on the part that was held out."""
    trainer = Trainer(max_epochs=10, logger=False, enable_checkpointing=False, enable_progress_bar=False)
    batches = DataLoader(Subset(dataset, train), batch_size=32, shuffle=True)
    trainer.fit(Digits(), batches, DataLoader(Subset(dataset, held_out), batch_size=256))
    return float(trainer.callback_metrics["accuracy"])


def cross_validate(dataset: Dataset[Any], folds: Iterable[tuple[Any, Any]]) -> list[float]:
    """The accuracy of each fold, given the indices that it trains on and holds out."""
    accuracies = []
    for fold, (train, held_out) in enumerate(folds):
        seed_everything(fold)  # so that a fold can be run again by itself
        accuracies.append(fit_fold(dataset, train.tolist(), held_out.tolist()))
        print(f"fold {fold}: {accuracies[-1]:.2%} of {len(held_out)} digits")
    return accuracies


if __name__ == "__main__":
    pixels, labels = load_digits(return_X_y=True)
    digits = TensorDataset(torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels))
    found = cross_validate(digits, StratifiedKFold(5, shuffle=True, random_state=0).split(pixels, labels))
    print(f"accuracy: {mean(found):.2%} ± {stdev(found):.2%} over {len(found)} folds")

"""What the strategy examples train: a plain module on scikit-learn's digits, by the loops alone."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, TensorDataset, random_split

from camshaft.hooks_core import ModelHooks
from camshaft.hooks_core.protocols import Strategy
from camshaft.loops import FitLimits, FitLoop, OptimizationSettings, PredictLoop, Run, run_verb


class Digits(ModelHooks, nn.Module):
    """Classifies images of 8 x 8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def predict_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return self.net(batch[0]).argmax(dim=1) == batch[1]

    def configure_optimizers(self) -> Optimizer:
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def digits_loaders() -> dict[str, DataLoader]:
    """Return loaders of 1438 images for training and of 359 others for prediction."""
    torch.manual_seed(0)
    pixels, labels = load_digits(return_X_y=True)
    digits = TensorDataset(torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels))
    training, test = random_split(digits, [0.8, 0.2])
    return {"train": DataLoader(training, batch_size=32, shuffle=True), "predict": DataLoader(test, batch_size=60)}


def train(strategy: Strategy) -> str:
    """Train for 15 epochs; the loops share the images out. Returns a line with the accuracy."""
    loaders = digits_loaders()
    module, fit, predict = (
        Digits(),
        FitLoop(FitLimits(max_epochs=15), OptimizationSettings(gradient_clip_val=1.0)),
        PredictLoop(),
    )
    run_verb(Run(verb="fit", module=module, strategy=strategy, trainer=fit, loaders=loaders), fit)
    hits = run_verb(Run(verb="predict", module=module, strategy=strategy, trainer=predict, loaders=loaders), predict)
    accuracy = torch.cat([hit.cpu() for share in strategy.all_gather(hits) for hit in share]).float().mean()
    return f"test accuracy after {fit.progress.global_step} updates: {accuracy:.1%}"

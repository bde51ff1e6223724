"""Search learning rate, width and dropout of a classifier of handwritten digits with Optuna.

A trial is a fit. Trials that fall behind the median of the others are ended early. The picture has the validation
accuracy of all, and shows which were ended:

    python examples/recipes/sweep.py --output sweep.png
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import optuna
import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset, random_split
from torchmetrics.classification import MulticlassAccuracy

from camshaft.callbacks import OptunaPruning
from camshaft.trainer import Trainer, TrainingModule, seed_everything


class Digits(TrainingModule):
    def __init__(self, learning_rate: float, width: int, dropout: float) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.net = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, 10))
        self.accuracy = MulticlassAccuracy(num_classes=10, average="micro")

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.accuracy(self.net(batch[0]), batch[1])
        self.log("val_accuracy", self.accuracy)

    test_step = validation_step

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.learning_rate, momentum=0.9)


class Search:
    """Trains a model for each trial, with the same data and the same random numbers."""

    def __init__(self, max_epochs: int) -> None:
        self.max_epochs = max_epochs
        pixels, labels = load_digits(return_X_y=True)
        data = TensorDataset(torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels))
        self.train, *others = random_split(data, [0.6, 0.2, 0.2], torch.Generator().manual_seed(0))
        self.val, self.test = (DataLoader(part, batch_size=400) for part in others)

    def fit(self, parameters: dict[str, float], callbacks: list[OptunaPruning]) -> tuple[Trainer, Digits]:
        seed_everything(0)
        model = Digits(parameters["learning_rate"], int(parameters["width"]), parameters["dropout"])
        quiet: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        trainer = Trainer(max_epochs=self.max_epochs, callbacks=callbacks, num_sanity_val_steps=0, **quiet)
        trainer.fit(model, DataLoader(self.train, batch_size=64, shuffle=True), self.val)
        return trainer, model

    def __call__(self, trial: optuna.Trial) -> float:
        parameters = {
            "learning_rate": trial.suggest_float("learning_rate", 1e-4, 1.0, log=True),
            "width": trial.suggest_int("width", 8, 256, log=True),
            "dropout": trial.suggest_float("dropout", 0.0, 0.6),
        }
        trainer, _ = self.fit(parameters, [OptunaPruning(trial, "val_accuracy")])
        return float(trainer.callback_metrics["val_accuracy"])


def draw(path: Path, trials: list[optuna.trial.FrozenTrial], best: int) -> None:
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for trial in trials:
        pruned = trial.state is optuna.trial.TrialState.PRUNED
        style: dict[str, Any] = {"color": "C1" if trial.number == best else "gray", "linestyle": ":" if pruned else "-"}
        axes.plot(list(trial.intermediate_values), list(trial.intermediate_values.values()), marker="o", ms=3, **style)
    axes.set(xlabel="epoch", ylabel="validation accuracy", title="trials; those ended early are dotted")
    axes.locator_params(axis="x", integer=True)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description="Search hyperparameters of a classifier of digits with Optuna.")
    parser.add_argument("--trials", type=int, default=30, help="number of trials (default: 30)")
    parser.add_argument("--max-epochs", type=int, default=10, help="epochs of each (default: 10)")
    parser.add_argument("--output", type=Path, default=Path("sweep.png"), help="the picture")
    arguments = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    search = Search(arguments.max_epochs)
    pruner = optuna.pruners.MedianPruner(n_startup_trials=3)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0), pruner=pruner)
    study.optimize(search, n_trials=arguments.trials)

    draw(arguments.output, study.trials, study.best_trial.number)
    trainer, model = search.fit(study.best_params, [])
    [results] = trainer.test(model, search.test, verbose=False)
    pruned = sum(trial.state is optuna.trial.TrialState.PRUNED for trial in study.trials)
    print(f"picture: {arguments.output.resolve()}\nbest of {len(study.trials)} trials: {study.best_params}")
    print(f"ended early: {pruned}, test accuracy of the best: {results['val_accuracy']:.1%}")


if __name__ == "__main__":
    main()

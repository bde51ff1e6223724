"""
K-fold cross-validation
=======================

Cross-validation needs no loop of its own: it is a Python loop around ``fit``. Each fold trains a new model with a new
trainer on four fifths of the data, and is measured on the rest. scikit-learn draws the folds.
"""

from statistics import mean, stdev

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import StratifiedKFold
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

from camshaft.trainer import Trainer, TrainingModule, seed_everything

# %%
# The model
# ---------


class Digits(TrainingModule):
    def __init__(self, learning_rate):
        super().__init__()
        self.learning_rate = learning_rate
        self.net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        self.log("accuracy", (self.net(batch[0]).argmax(dim=1) == batch[1]).float().mean())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.learning_rate)


# %%
# One fold
# --------
#
# Everything that a fit changes is made anew: the weights, the optimizer (in ``configure_optimizers``) and the trainer.
# The seed is the number of the fold, so that a fold can be run again by itself.


def fit_fold(fold, learning_rate, train, held_out):
    seed_everything(fold, verbose=False)
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = Trainer(max_epochs=6, enable_model_summary=False, **options)
    batches = DataLoader(Subset(dataset, train), batch_size=32, shuffle=True)
    trainer.fit(Digits(learning_rate), batches, DataLoader(Subset(dataset, held_out), batch_size=256))
    return float(trainer.callback_metrics["accuracy"])


# %%
# All folds
# ---------
#
# Every image is held out once. Stratified folds have the same share of each digit.

pixels, labels = load_digits(return_X_y=True)
dataset = TensorDataset(torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels))
folds = list(StratifiedKFold(5, shuffle=True, random_state=0).split(pixels, labels))
assert sorted(idx for _, held_out in folds for idx in held_out) == list(range(len(labels)))


def cross_validate(learning_rate):
    accuracies = [fit_fold(fold, learning_rate, *map(list, parts)) for fold, parts in enumerate(folds)]
    shown = "  ".join(f"{accuracy:.1%}" for accuracy in accuracies)
    print(f"learning rate {learning_rate:<6}: {shown}   mean {mean(accuracies):.1%} ± {stdev(accuracies):.1%}")
    return accuracies


# %%
# What it is for: to compare settings by more than one lucky split.

results = {learning_rate: cross_validate(learning_rate) for learning_rate in (0.0003, 0.003, 0.03)}
assert all(len(set(accuracies)) > 1 for accuracies in results.values())
assert mean(results[0.003]) > mean(results[0.0003])

figure, axes = plt.subplots(figsize=(7, 3), layout="constrained")
for position, accuracies in enumerate(results.values()):
    axes.plot([position] * 5, accuracies, "o", alpha=0.6, label="fold" if position == 0 else None)
    axes.errorbar(position + 0.12, mean(accuracies), stdev(accuracies), fmt="D", color="0.5", capsize=4)
axes.set(xticks=range(3), xticklabels=results, xlabel="learning rate", ylabel="accuracy", xlim=(-0.5, 2.5))
axes.yaxis.set_major_formatter("{x:.0%}")
axes.grid(axis="y")
plt.show()

# %%
# The diamonds are the means, with one standard deviation to either side.
#
# Runs that differ in nothing but the fold are bit for bit the same when they are repeated:

again = fit_fold(2, 0.003, *map(list, folds[2]))
assert again == results[0.003][2]
print(f"fold 2 again: {again:.1%}")

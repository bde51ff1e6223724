"""
Logging and metrics
===================

``self.log`` takes a value in any step. This tutorial shows what becomes of it: which values are kept for each step and
which are reduced over an epoch, how torchmetrics' metrics are logged, and where everything is read afterwards.
"""

import csv
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split
from torchmetrics.classification import MulticlassAccuracy, MulticlassConfusionMatrix

from camshaft.callbacks import CSVLogger
from camshaft.trainer import Trainer, TrainingModule, seed_everything

# %%
# Log in the steps
# ----------------
#
# ``on_step`` keeps the value of each step, ``on_epoch`` the mean over the epoch. With both, the two get the suffixes
# ``_step`` and ``_epoch``. The defaults are ``on_step`` in training and ``on_epoch`` elsewhere. Tensors stay on their
# device until a logger writes them, so logging does not make a GPU wait.
#
# A metric of torchmetrics is an attribute of the module. Update it, and log the metric itself: the trainer computes its
# value over the whole epoch, and resets it. One metric serves one stage, so validation has a metric of its own.


class Digits(TrainingModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
        self.train_accuracy = MulticlassAccuracy(10, average="micro")
        self.val_accuracy = MulticlassAccuracy(10, average="micro")
        self.confusion = MulticlassConfusionMatrix(10)

    def training_step(self, batch, batch_idx):
        images, labels = batch
        logits = self.net(images)
        loss = nn.functional.cross_entropy(logits, labels)
        self.train_accuracy(logits, labels)
        self.log("loss", loss, on_step=True, on_epoch=True)
        self.log("train_accuracy", self.train_accuracy, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        images, labels = batch
        logits = self.net(images)
        self.val_accuracy(logits, labels)
        self.log("val_loss", nn.functional.cross_entropy(logits, labels))
        self.log("val_accuracy", self.val_accuracy)

    def test_step(self, batch, batch_idx):
        images, labels = batch
        logits = self.net(images)
        self.confusion.update(logits, labels)  # a table is no number: it is read after the test, and not logged
        self.log("test_loss", nn.functional.cross_entropy(logits, labels))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=3e-3)


seed_everything(0)
pixels, labels = load_digits(return_X_y=True)
dataset = TensorDataset(torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels))
train, validation = random_split(dataset, [0.8, 0.2])
train_loader = DataLoader(train, batch_size=64, shuffle=True)
val_loader = DataLoader(validation, batch_size=100)  # 359 images: batches of 100, 100, 100 and 59

# %%
# Write to a file
# ---------------
#
# ``CSVLogger`` writes ``metrics.csv``. Others write to TensorBoard, MLflow, Weights & Biases or Comet; pass a list to
# use several. ``log_every_n_steps`` sets how often values of steps are written.

folder = TemporaryDirectory()
logger = CSVLogger(save_dir=folder.name, name="digits")
options = {"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
model = Digits()
trainer = Trainer(max_epochs=10, logger=logger, log_every_n_steps=5, **options)
trainer.fit(model, train_loader, val_loader)

metrics = Path(logger.log_dir) / "metrics.csv"
with metrics.open(newline="") as file:
    rows = list(csv.DictReader(file))
print(f"{len(rows)} rows with the columns {', '.join(rows[0])}")

# %%
# Each row has what was logged at one step; other columns are empty. The axis is the same everywhere: ``step`` is the
# number of updates before.


def column(name):
    points = [(int(row["step"]), float(row[name])) for row in rows if row[name]]
    return zip(*points, strict=True)


figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
for name in ("loss_step", "loss_epoch", "val_loss"):
    left.plot(*column(name), label=name, alpha=0.5 if name == "loss_step" else 1)
for name in ("train_accuracy", "val_accuracy"):
    right.plot(*column(name), "o-", label=name, markersize=4)
left.set(xlabel="step", ylabel="cross-entropy", yscale="log")
right.set(xlabel="step", ylabel="accuracy")
for axes in (left, right):
    axes.grid()
    axes.legend()
plt.show()

# %%
# Read values in the program
# --------------------------
#
# ``trainer.callback_metrics`` holds the newest value of every name, as tensors. Callbacks such as ``EarlyStopping`` and
# ``ModelCheckpoint`` read them there.

val_accuracy = trainer.callback_metrics["val_accuracy"]
for name, value in sorted(trainer.callback_metrics.items()):
    print(f"{name:15} {value:.4f}")

# %%
# Means of an epoch are weighted by the number of samples in each batch. So ``val_loss`` is the loss over all 359
# images, and not the mean of what four batches of unequal size have:

with torch.no_grad():
    images, targets = validation[:]
    losses = nn.functional.cross_entropy(model.net(images), targets, reduction="none")
print(f"weighted by samples: {losses.mean():.4f}")
print(f"each batch alike:    {torch.stack([part.mean() for part in losses.split(100)]).mean():.4f}")
torch.testing.assert_close(trainer.callback_metrics["val_loss"], losses.mean())

# %%
# The batch size is read from the batch: the length of its first tensor. Where that is something else, say
# ``self.log(..., batch_size=n)``.
#
# Test
# ----
#
# ``trainer.test`` returns what was logged, one dictionary for each loader.

(result,) = trainer.test(model, val_loader, verbose=False)
print({name: round(value, 4) for name, value in result.items()})
assert set(result) == {"test_loss"}
assert abs(result["test_loss"] - float(losses.mean())) < 1e-5

# %%
# A metric that is not logged is yours: the trainer does not reset it.

table = model.confusion.compute()
assert table.sum() == 359
assert table.diagonal().sum() / table.sum() == val_accuracy > 0.9
figure, axes = plt.subplots(figsize=(4.6, 4.2), layout="constrained")
axes.imshow(table.float().log1p(), cmap="Blues")
for truth in range(10):
    for guess in range(10):
        if table[truth, guess]:
            is_dark = table[truth, guess] > 5
            axes.text(guess, truth, int(table[truth, guess]), ha="center", va="center", color="w" if is_dark else "k")
axes.set(xlabel="predicted digit", ylabel="digit", xticks=range(10), yticks=range(10))
plt.show()

"""
A callback of one's own
=======================

A callback is an object with hooks: methods that a trainer calls at known moments. It adds to training what does not
belong into the model. This one watches a network learn: it keeps a picture of its first layer after each epoch, and
counts what happens on the way.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from camshaft.hooks_core import Callback, HookFaultError
from camshaft.trainer import Trainer, TrainingModule, seed_everything

# %%
# Something to watch
# ------------------
#
# A small network that reads the digits which scikit-learn ships: images of 8 x 8 pixels.


class Digits(TrainingModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        accuracy = (self.net(batch[0]).argmax(dim=1) == batch[1]).float().mean()
        self.log("val_accuracy", accuracy)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=3e-3)


pixels, labels = load_digits(return_X_y=True)
dataset = TensorDataset(torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels))
train, validation = random_split(dataset, [0.8, 0.2], torch.Generator().manual_seed(0))

# %%
# The callback
# ------------
#
# Override the hooks that you need, with the arguments that you need: the others cost nothing. ``trainer`` and
# ``module`` come first. A callback may hold state of its own; with ``state_dict`` and ``load_state_dict`` it is part of
# every checkpoint.


class WatchFirstLayer(Callback):
    """Keeps the weights of the first layer and the accuracy after each epoch.

    Args:
        every_n_epochs: Epochs between two pictures.
    """

    def __init__(self, every_n_epochs=1):
        self.every_n_epochs = every_n_epochs
        self.num_batches = 0
        self.pictures = {}

    def on_fit_start(self, trainer, module):
        self.pictures[0] = module.net[0].weight.detach().clone()

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.num_batches += 1

    def on_train_epoch_end(self, trainer, module):
        epoch = trainer.current_epoch + 1
        if epoch % self.every_n_epochs == 0:
            self.pictures[epoch] = module.net[0].weight.detach().clone()
            print(f"epoch {epoch:2}: accuracy {trainer.callback_metrics['val_accuracy']:.1%}")

    def state_dict(self):
        return {"num_batches": self.num_batches, "pictures": self.pictures}

    def load_state_dict(self, state_dict):
        self.num_batches, self.pictures = state_dict["num_batches"], state_dict["pictures"]


# %%
# Pass it to the trainer. 1438 images in batches of 32 make 45 batches in each epoch.

seed_everything(0)
watch = WatchFirstLayer(every_n_epochs=4)
options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
trainer = Trainer(max_epochs=12, callbacks=[watch], **options)
trainer.fit(Digits(), DataLoader(train, batch_size=32, shuffle=True), DataLoader(validation, batch_size=120))
print(f"{watch.num_batches} batches")
assert watch.num_batches == 12 * 45
assert list(watch.pictures) == [0, 4, 8, 12]
assert trainer.callback_metrics["val_accuracy"] > 0.9

# %%
# What it kept: the weights of eight of the 32 units, each as an image. Noise becomes strokes.

figure, axes = plt.subplots(4, 8, figsize=(8, 4.4), layout="constrained")
for row, (epoch, weights) in zip(axes, watch.pictures.items(), strict=True):
    for column, unit in zip(row, weights, strict=False):
        column.imshow(unit.reshape(8, 8), cmap="RdBu", vmin=-0.6, vmax=0.6)
        column.set(xticks=[], yticks=[])
    row[0].set_ylabel(f"epoch {epoch}")
plt.show()

# %%
# A misspelt hook is an error
# ---------------------------
#
# A name that begins with ``on_`` and is no hook would never be called. The trainer says so before the first batch.


class Misspelt(Callback):
    def on_train_epoch_ended(self, trainer, module):
        print("never printed")


try:
    Trainer(callbacks=[Misspelt()], **options).fit(Digits(), DataLoader(train))
except HookFaultError as error:
    print(error)
    assert "Rename it to `on_train_epoch_end`" in str(error)
else:
    raise AssertionError("a misspelt hook must be refused")

# %%
# ``python -m camshaft.hooks_core list`` prints every hook with its arguments, and ``show fit`` the order in which they
# are called.

"""
Guarding against NaN and spikes
===============================

One broken sample can spoil a run: a NaN in the loss makes all weights NaN, and a huge loss throws them far off. Two
callbacks watch the losses. They name the batch, and they can leave its update out.
"""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from camshaft.callbacks import NonFiniteError, NonFiniteGuard, SpikeDetection
from camshaft.hooks_core import Callback
from camshaft.trainer import Trainer, TrainingModule, seed_everything

# %%
# Broken data
# -----------
#
# Digits, of which one image has a pixel that is NaN, and one holds values of another unit.

pixels, labels = load_digits(return_X_y=True)
images = torch.tensor(pixels / 16, dtype=torch.float32)
images[1000, 20] = torch.nan
images[1601] = 1000 * images[1601].flip(0)
dataset = TensorDataset(images, torch.tensor(labels))


class Digits(TrainingModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class NoteLosses(Callback):
    def __init__(self):
        self.losses = []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.losses.append(float(outputs["loss"]))


def train(*callbacks, max_epochs=2):
    """Train in the order of the data: image 1000 is in batch 31, image 1600 in batch 50, of 57."""
    seed_everything(0, verbose=False)
    note, model = NoteLosses(), Digits()
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = Trainer(max_epochs=max_epochs, callbacks=[note, *callbacks], enable_model_summary=False, **options)
    trainer.fit(model, DataLoader(dataset, batch_size=32))
    return model, note.losses


# %%
# Without a guard
# ---------------
#
# After the one NaN every loss is NaN. The rest of the run is wasted.

model, unguarded = train()
num_nan = sum(loss != loss for loss in unguarded)
print(f"{num_nan} of {len(unguarded)} losses are NaN")
assert num_nan == 2 * 57 - 31
assert all(parameter.isnan().any() for parameter in model.parameters())

# %%
# Find the batch
# --------------
#
# ``NonFiniteGuard`` raises, and says where and what to do. Its notes are printed under the error in a traceback.

try:
    train(NonFiniteGuard())
except NonFiniteError as error:
    print(error)
    print(*error.__notes__, sep="\n")
    assert (error.epoch, error.batch_idx) == (0, 31)
else:
    raise AssertionError("the guard must raise")

# %%
# On a GPU reading a loss waits for the device. There the guard keeps the losses of 50 batches and checks them together:
# the error still names the first bad batch, up to 50 batches later.
#
# Leave the update out
# --------------------
#
# ``action="skip"`` looks before each update. The weights stay as they are where the loss is not finite. A
# warning names each.

guard = NonFiniteGuard(action="skip")
model, guarded = train(guard)
print(f"{guard.num_bad} updates were skipped")
assert guard.num_bad == 2  # once in each epoch
assert all(parameter.isfinite().all() for parameter in model.parameters())

# %%
# A loss that is finite and wrong
# -------------------------------
#
# The second broken image passes: its loss is a number, and a very large one. ``SpikeDetection`` compares each loss with
# the mean of the good ones before. With ``rtol=2`` a spike is at least twice that mean away from it. It writes the
# batches, with the one before each, to a file.

with TemporaryDirectory() as folder:
    path = Path(folder) / "skip_batches.json"
    spikes = SpikeDetection(rtol=2.0, warmup=20, exclude_batches_path=path, action="skip")
    model, skipped = train(spikes)
    written = json.loads(path.read_text())
for each in written:
    print(each)
assert {"epoch": 0, "batch_idx": 31} in written and {"epoch": 0, "batch_idx": 50} in written

# %%
# It takes losses that are not finite for spikes, too, so it does the work of both here.

figure, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
for losses, name in ((unguarded, "unguarded"), (guarded, "NaN skipped"), (skipped, "NaN and spikes skipped")):
    axes.plot(losses, label=name, linewidth=1.5)
axes.axvline(31, color="0.5", linestyle=":")
axes.annotate("NaN", (31, 1000), xytext=(4, 0), textcoords="offset points")
axes.set(xlabel="batch", ylabel="loss", yscale="log")
axes.legend()
axes.grid()
plt.show()

# %%
# The curve of the unguarded run ends at the NaN. An update with a spike costs more than one batch:

after = slice(51, 57)
print("mean loss of the six batches after the spike:")
print(f"  {sum(guarded[after]) / 6:.2f} if its update is applied, {sum(skipped[after]) / 6:.2f} if it is skipped")
assert sum(guarded[after]) > 2 * sum(skipped[after])

# %%
# Both callbacks work with several processes: the loss is the mean over all of them, so all take the same decision.
# ``Trainer(detect_anomaly=True)`` finds the operation that made a NaN in backward, slowly; use it on the batch that
# the guard has named.

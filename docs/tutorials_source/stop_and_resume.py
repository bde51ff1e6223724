"""
Stopping and resuming to the bit
================================

A run is killed in the middle of an epoch, without any warning. A second process resumes it from its last checkpoint.
The weights at the end are those of a run that was never interrupted: not almost, but in every bit.
"""

import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from camshaft.callbacks import ModelCheckpoint
from camshaft.hooks_core import Callback
from camshaft.trainer import Trainer, TrainingModule, seed_everything

# %%
# A run with a lot of state
# -------------------------
#
# Dropout and noise draw random numbers, the order of the data is random, Adam has moments, and the learning rate
# falls with every update. All of this has to be restored.


class Digits(TrainingModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.3), nn.Linear(128, 10))

    def training_step(self, batch, batch_idx):
        images, labels = batch
        noisy = images + 0.1 * torch.randn_like(images)
        return nn.functional.cross_entropy(self.net(noisy), labels)

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=3e-3)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class NoteLosses(Callback):
    """Writes the loss of each update to a file, and kills the process at one of them.

    Args:
        path: The file; lines are appended.
        kill_at: Update at which the process dies, as if it had run out of memory; None: it does not.
    """

    def __init__(self, path, kill_at=None):
        self.path, self.kill_at = path, kill_at

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        with open(self.path, "a") as file:
            file.write(f"{trainer.global_step} {outputs['loss'].item()}\n")
        if trainer.global_step == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)  # no handler runs, nothing is flushed


# %%
# ``ModelCheckpoint`` saves every 20 updates. ``ckpt_path="last"`` resumes from the newest checkpoint, and starts from
# the beginning where there is none: the same command starts a run and goes on with it. Where updates take their time,
# ``train_time_interval=timedelta(minutes=10)`` saves by the clock.


def train(folder, kill_at=None):
    seed_everything(0)
    pixels, labels = load_digits(return_X_y=True)
    dataset = TensorDataset(torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels))
    checkpoint = ModelCheckpoint(folder, every_n_train_steps=20, save_last=True)
    trainer = Trainer(
        max_epochs=4,
        callbacks=[checkpoint, NoteLosses(folder / "losses.txt", kill_at)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Digits()
    trainer.fit(model, DataLoader(dataset, batch_size=32, shuffle=True), ckpt_path="last")
    weights = b"".join(tensor.numpy().tobytes() for tensor in model.state_dict().values())
    print(f"{trainer.global_step} updates, weights {hashlib.sha256(weights).hexdigest()[:16]}")


# %%
# Each run needs a process of its own, so the program starts itself again, with a folder as its argument:

if len(sys.argv) > 1:
    train(Path(sys.argv[1]), *map(int, sys.argv[2:]))
    sys.exit()


def run(*arguments):
    command = [sys.executable, os.path.abspath(sys.argv[0]), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


temporary = TemporaryDirectory()
whole, stopped = Path(temporary.name) / "whole", Path(temporary.name) / "stopped"
for folder in (whole, stopped):
    folder.mkdir()

# %%
# The uninterrupted run
# ---------------------

uninterrupted = run(whole)
assert uninterrupted.returncode == 0, uninterrupted.stderr
print(uninterrupted.stdout)

# %%
# Kill it
# -------
#
# An epoch has 57 batches. The process dies at update 137, within the third epoch. The last checkpoint is that of update
# 120.

killed = run(stopped, 137)
print(f"ended by signal {-killed.returncode}, having printed {killed.stdout!r}")
print("checkpoints:", *sorted(path.name for path in stopped.glob("*.ckpt")))
assert killed.returncode == -signal.SIGKILL

# %%
# Resume it
# ---------

resumed = run(stopped)
assert resumed.returncode == 0, resumed.stderr
print(resumed.stdout)
assert resumed.stdout == uninterrupted.stdout  # the same weights, bit by bit

# %%
# Updates 121 to 137 were made twice: by the process that was killed, and by the one that resumed. Their losses agree in
# every digit that Python prints.


def losses(folder):
    return [(int(step), float(loss)) for step, loss in map(str.split, (folder / "losses.txt").open())]


of_whole, of_stopped = losses(whole), losses(stopped)
before, after = of_stopped[:137], of_stopped[137:]
assert after[0][0] == 121
assert before[120:] == after[:17]
assert before[:120] + after == of_whole

figure, axes = plt.subplots(figsize=(8, 3.4), layout="constrained")
axes.plot(*zip(*of_whole, strict=True), color="C0", alpha=0.35, linewidth=6, label="uninterrupted")
axes.plot(*zip(*before, strict=True), color="C1", label="until it was killed")
axes.plot(*zip(*after, strict=True), color="C2", linestyle="--", label="resumed")
axes.axvline(120, color="C3", linestyle=":", label="checkpoint")
axes.set(xlabel="update", ylabel="loss", xlim=(80, 180), ylim=(0, 0.8))
axes.legend(ncols=2)
plt.show()

# %%
# What this takes
# ---------------
#
# - A checkpoint is written beside its target, flushed to disk and renamed, so a kill leaves the one before it whole.
# - It is taken between batches, so it never holds half a step.
# - A ``DataLoader`` is read in a way that can be resumed, whatever its samplers and workers. An iterable that has no
#   state cannot be resumed inside an epoch, and the trainer says so.
# - Bits are those of one machine. Another version of torch, another processor or another number of threads may round
#   otherwise, resumed or not.

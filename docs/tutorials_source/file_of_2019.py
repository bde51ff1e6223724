"""
Running a file of 2019
======================

Research code from 2019 to 2022 often stands on releases of Lightning that no longer install. ``camshaft-compat`` runs
it on today's PyTorch: with the hooks, the arguments and the order of its own time, and without a change to the file.
"""

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
import torch

# %%
# The file
# --------
#
# A GAN as it was written in 2019. ``training_step(batch, batch_nb, optimizer_i)`` is called once for each optimizer,
# ``optimizer_step`` lets the generator step on every second batch, steps return what to log, and ``pl.data_loader``
# marks a loader. It learns points on a circle.

OLD_FILE = """
from argparse import Namespace

import pytorch_lightning as pl
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class GAN(pl.LightningModule):
    def __init__(self, hparams):
        super(GAN, self).__init__()
        self.hparams = hparams
        self.generator = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2))
        self.discriminator = nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
        self.num_steps = [0, 0]
        self.epoch_losses = []

    def forward(self, z):
        return self.generator(z)

    def training_step(self, batch, batch_nb, optimizer_i):
        points, = batch
        z = torch.randn(len(points), 4)
        ones, zeros = torch.ones(len(points), 1), torch.zeros(len(points), 1)
        if optimizer_i == 0:
            loss = F.binary_cross_entropy_with_logits(self.discriminator(self(z)), ones)
            return {'loss': loss, 'progress_bar': {'g_loss': loss}, 'log': {'g_loss': loss}}
        if optimizer_i == 1:
            real = F.binary_cross_entropy_with_logits(self.discriminator(points), ones)
            fake = F.binary_cross_entropy_with_logits(self.discriminator(self(z).detach()), zeros)
            loss = (real + fake) / 2
            return {'loss': loss, 'progress_bar': {'d_loss': loss}, 'log': {'d_loss': loss}}

    def configure_optimizers(self):
        generator = torch.optim.Adam(self.generator.parameters(), lr=self.hparams.lr, betas=(0.5, 0.999))
        discriminator = torch.optim.Adam(self.discriminator.parameters(), lr=self.hparams.lr, betas=(0.5, 0.999))
        return [generator, discriminator], []

    def optimizer_step(self, current_epoch, batch_nb, optimizer, optimizer_i, second_order_closure=None):
        if optimizer_i == 1 or batch_nb % 2 == 0:  # the generator steps on every second batch
            self.num_steps[optimizer_i] += 1
            optimizer.step()
        optimizer.zero_grad()

    @pl.data_loader
    def train_dataloader(self):
        angles = torch.rand(3000) * 6.2832
        points = torch.stack([angles.cos(), angles.sin()], 1) + 0.05 * torch.randn(3000, 2)
        return DataLoader(TensorDataset(points), batch_size=60, shuffle=True)


torch.manual_seed(0)
model = GAN(Namespace(lr=0.002))
trainer = pl.Trainer(max_nb_epochs=30, show_progress_bar=False, logger=False, checkpoint_callback=False,
                     weights_summary=None)
trainer.fit(model)
print('steps of generator and discriminator:', *model.num_steps)
with torch.no_grad():
    torch.save(model(torch.randn(1000, 4)), 'points.pt')
"""

# %%
# Run it
# ------
#
# ``python -m camshaft.compat run`` runs a file that imports ``pytorch_lightning`` or ``lightning``. Neither needs to be
# installed: in this process the names stand for camshaft's.

temporary = TemporaryDirectory()
folder = Path(temporary.name)
(folder / "gan.py").write_text(OLD_FILE)


def run(*arguments):
    command = [sys.executable, "-m", "camshaft.compat", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


said = run("run", "gan.py")
print(said)
assert said.startswith("GAN is taken for a module of era 0.5.")
assert said.endswith("steps of generator and discriminator: 750 1500\n")

# %%
# The first lines say what the class was taken for, by its hooks, their arguments and what its steps return.
# ``hook_era`` in the class declares the release where that is not what it was written for. 30 epochs of 50 batches
# are 1500 steps of the discriminator, and half as many of the generator.
#
# What it learned:

points = torch.load(folder / "points.pt")
distances = points.norm(dim=1)
print(
    f"half of the points lie between {distances.quantile(0.25):.2f} and {distances.quantile(0.75):.2f} from the centre"
)
assert 0.7 < distances.median() < 1.3

figure, axes = plt.subplots(figsize=(4, 4), layout="constrained")
axes.add_patch(plt.Circle((0, 0), 1, fill=False, color="0.5", linewidth=1))
axes.plot(*points.T, ".", markersize=3)
axes.set(aspect="equal", xlim=(-1.6, 1.6), ylim=(-1.6, 1.6))
plt.show()

# %%
# Move it to today
# ----------------
#
# ``check`` tells how each method of a class is called, and with ``--advise`` how to write it today. It imports the
# file, so the part that trains is cut off here.

(folder / "model.py").write_text(OLD_FILE.partition("torch.manual_seed(0)")[0])
advice = run("run", "-m", "camshaft.compat", "check", "model:GAN", "--advise")
print(advice)
assert "optimizer_step" in advice and "training_step" in advice

# %%
# Both ways work for as long as you like: a class of 2019 in a file that imports ``Trainer`` and ``TrainingModule`` from
# ``camshaft.compat`` runs as well. Checkpoints of those years are read without importing any name that is in them.
# :doc:`/coming-from/earlier-lightning` has the tables of hooks, arguments and attributes, and what is refused.

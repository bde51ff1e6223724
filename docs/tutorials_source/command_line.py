"""
The command line
================

``python -m camshaft.trainer`` runs fit, validate, test and predict without a script. Every argument of the model, the
trainer and the callbacks is an option, on the line or in a file. This tutorial calls it as a shell would, and shows
what it prints.
"""

import csv
import os
import shlex
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt

# %%
# A module
# --------
#
# The file ``digits.py``. Options come from the constructors' signatures: their names, types and defaults, and the
# text of the docstring.

MODULE = '''
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from camshaft.trainer import DataModule, TrainingModule


class Digits(TrainingModule):
    """A network with one hidden layer.

    Args:
        width: Units of the hidden layer.
        learning_rate: Learning rate of Adam.
    """

    def __init__(self, width: int = 64, learning_rate: float = 1e-3):
        super().__init__()
        self.learning_rate = learning_rate
        self.net = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))

    def training_step(self, batch, batch_idx):
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_accuracy", (self.net(batch[0]).argmax(dim=1) == batch[1]).float().mean())

    def test_step(self, batch, batch_idx):
        self.log("test_accuracy", (self.net(batch[0]).argmax(dim=1) == batch[1]).float().mean())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.learning_rate)


class DigitsData(DataModule):
    """The digits of scikit-learn.

    Args:
        batch_size: Images in a training batch.
    """

    def __init__(self, batch_size: int = 32):
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage):
        pixels, labels = load_digits(return_X_y=True)
        dataset = TensorDataset(torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels))
        parts = random_split(dataset, [0.7, 0.15, 0.15], torch.Generator().manual_seed(0))
        self.train_set, self.val_set, self.test_set = parts

    def train_dataloader(self):
        return DataLoader(self.train_set, batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val_set, batch_size=300)

    def test_dataloader(self):
        return DataLoader(self.test_set, batch_size=300)
'''

# %%
# And ``run.yaml``, whose keys are the options' names. Stock callbacks and loggers go by their names alone.

CONFIGURATION = """
seed_everything: 0
model:
  class_path: digits.Digits
data:
  class_path: digits.DigitsData
trainer:
  max_epochs: 8
  enable_progress_bar: false
  enable_model_summary: false
  logger:
    class_path: CSVLogger
    init_args: {save_dir: logs}
  callbacks:
    - class_path: ModelCheckpoint
      init_args: {monitor: val_accuracy, mode: max, dirpath: checkpoints, filename: best}
"""

temporary = TemporaryDirectory()
folder = Path(temporary.name)
(folder / "digits.py").write_text(MODULE)
(folder / "run.yaml").write_text(CONFIGURATION)


def shell(line, expected_status=0):
    """Run a line as a shell in the folder would, print it and what it prints, and return that."""
    command = [sys.executable if word == "python" else word for word in shlex.split(line)]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore", "COLUMNS": "100"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == expected_status, done.stderr
    printed = done.stdout if expected_status == 0 else done.stderr
    print(f"$ {line}\n{printed}")
    return printed


# %%
# Fit
# ---
#
# Options further right override those further left, so a file holds what stays, and the line what you try. Each run
# writes the whole configuration beside its logs.

shell("python -m camshaft.trainer fit --config run.yaml --model.learning_rate 0.0003")
shell("python -m camshaft.trainer fit --config run.yaml --model.learning_rate 0.01 --trainer.callbacks.dirpath better")

written = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.suffix in (".csv", ".ckpt"))
configurations = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("config.yaml"))
print(*written, *configurations, sep="\n")
assert written[:2] == ["better/best.ckpt", "checkpoints/best.ckpt"]
assert len(configurations) == 2
assert "learning_rate: 0.01" in (folder / configurations[1]).read_text()


def column(path, name):
    with (folder / path).open(newline="") as file:
        return [float(row[name]) for row in csv.DictReader(file) if row[name]]


figure, axes = plt.subplots(figsize=(8, 3.2), layout="constrained")
for path, learning_rate in zip(written[2:], (0.0003, 0.01), strict=True):
    axes.plot(range(1, 9), column(path, "val_accuracy"), "o-", label=f"learning rate {learning_rate}")
axes.set(xlabel="epoch", ylabel="validation accuracy")
axes.yaxis.set_major_formatter("{x:.0%}")
axes.grid()
axes.legend()
plt.show()
assert column(written[3], "val_accuracy")[-1] > column(written[2], "val_accuracy")[-1] > 0.5

# %%
# Test
# ----
#
# The other verbs take the same options, and a checkpoint.

table = shell("python -m camshaft.trainer test --config run.yaml --ckpt_path better/best.ckpt")
assert "test_accuracy" in table

# %%
# A misspelt option
# -----------------
#
# An unknown name ends the command before anything is imported that trains. It suggests the closest one.

message = shell("python -m camshaft.trainer fit --config run.yaml --trainer.max_epoch 3", expected_status=2)
assert "max_epochs" in message

# %%
# ``python -m camshaft.trainer fit --help`` lists the options by topic, ``fit --trainer.callbacks.help EarlyStopping``
# those of a class, and ``--print_config`` prints a file to begin with. A script makes a command line of its own with
# ``TrainerCLI``.

"""
Two processes and sharding
==========================

One argument makes a training run on several processes. This tutorial trains a model three times: in one process, in
two that hold a copy each (DDP), and in two that hold half of it each (sharded, by PyTorch's FSDP2). The processes run
on the CPU and talk through gloo; on GPUs the same lines use NCCL.
"""

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from camshaft.strategies import read_checkpoint
from camshaft.trainer import Trainer, TrainingModule, seed_everything

# %%
# The model
# ---------
#
# Layers that are made in ``configure_sharded_model`` take no memory until each process holds its part of them. The hook
# is called in every stage, so it returns at once where the layers are there already. In one process it is a plain
# constructor.


class Digits(TrainingModule):
    def __init__(self):
        super().__init__()
        self.net = None

    def configure_sharded_model(self):
        if self.net is None:
            self.net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        is_right = (self.net(batch[0]).argmax(dim=1) == batch[1]).float()
        self.log("accuracy", is_right.mean())
        self.log("num_evaluated", float(len(is_right)), reduce_fx="sum")

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5)


# %%
# The program that trains
# -----------------------
#
# ``devices=2`` makes ``python program.py`` start a second process. Batches are those of each process: two processes
# with batches of 16 make the updates of one with batches of 32.


def train(strategy, num_processes, folder):
    seed_everything(0)
    pixels, labels = load_digits(return_X_y=True)
    dataset = TensorDataset(torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels))
    training, validation = random_split(dataset, [0.8, 0.2], torch.Generator().manual_seed(0))
    trainer = Trainer(
        accelerator="cpu",
        devices=num_processes,
        strategy=strategy,
        max_epochs=3,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    train_loader = DataLoader(training, batch_size=32 // num_processes, shuffle=True)
    model = Digits()
    trainer.fit(model, train_loader, DataLoader(validation, batch_size=40))

    def part(tensor):
        return tensor.to_local() if hasattr(tensor, "to_local") else tensor

    held = sum(part(parameter).numel() for parameter in model.parameters())
    trainer.save_checkpoint(folder / f"{strategy}.ckpt")  # every process calls it
    torch.save({"held": held, **trainer.callback_metrics}, folder / f"{strategy}-{trainer.global_rank}.pt")
    if trainer.is_global_zero:
        print(f"{strategy:8} {trainer.world_size} process(es), {trainer.global_step} updates")


# %%
# Two processes both run the whole program, with the same arguments. Here the program starts itself for that, with
# arguments that say what to train:

if len(sys.argv) > 1:
    train(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
    sys.exit()

temporary = TemporaryDirectory()
folder = Path(temporary.name)
train("auto", 1, folder)
for strategy in ("ddp", "sharded"):
    command = [sys.executable, os.path.abspath(sys.argv[0]), strategy, "2", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    print(done.stdout.strip())

# %%
# ``torchrun --nproc-per-node 2 program.py``, SLURM and Ray Train start the processes as well; then ``devices`` need
# not be given.
#
# What they evaluated
# -------------------
#
# 359 images cannot be shared out evenly. Every one is evaluated once all the same, and all processes have the same
# values.

names = [("auto", 0), ("ddp", 0), ("ddp", 1), ("sharded", 0), ("sharded", 1)]
results = {f"{strategy} {rank}": torch.load(folder / f"{strategy}-{rank}.pt") for strategy, rank in names}
for name, result in results.items():
    values = f"accuracy {result['accuracy']:.2%}, holds {result['held']:,}"
    print(f"{name:10} evaluated {result['num_evaluated']:.0f}, {values}")
    assert result["num_evaluated"] == 359 and result["accuracy"] > 0.9
assert results["ddp 0"]["accuracy"] == results["ddp 1"]["accuracy"]
assert results["sharded 0"]["held"] + results["sharded 1"]["held"] == results["auto 0"]["held"]

# %%
# The model has 64 x 256 + 256 + 256 x 10 + 10 = 19,210 parameters. With DDP each process holds all of them, sharded
# each holds its rows.

figure, axes = plt.subplots(figsize=(7, 2.6), layout="constrained")
axes.barh(list(results), [result["held"] for result in results.values()], color=["C0", "C1", "C1", "C2", "C2"])
axes.set(xlabel="parameters that a process holds", xlim=(0, 20_000))
axes.invert_yaxis()
plt.show()

# %%
# What they learned
# -----------------
#
# The three saved the same weights, up to the order in which numbers were added. ``read_checkpoint`` reads what one
# process wrote, and the folder to which each of two wrote its parts.

weights = {name: read_checkpoint(folder / f"{name}.ckpt")["state_dict"] for name in ("auto", "ddp", "sharded")}
for name in ("ddp", "sharded"):
    largest = max((weights["auto"][key] - weights[name][key]).abs().max() for key in weights["auto"])
    print(f"{name}: weights within {10.0 ** torch.ceil(torch.log10(largest)):.0e} of those of one process")
    torch.testing.assert_close(weights["auto"], weights[name], rtol=1e-4, atol=1e-4)
print("sharded.ckpt is a", "folder" if (folder / "sharded.ckpt").is_dir() else "file")

# %%
# Any number of processes resumes from any of the three: ``trainer.fit(model, loader, ckpt_path="sharded.ckpt")``.
#
# If a process fails, all of them end, and print its rank, the hook in which it was and the cause.
# :repository:`examples/sharded.py` shards a small transformer, block by block, and
# :repository:`examples/hand_written_loop.py` uses the strategies without the trainer.

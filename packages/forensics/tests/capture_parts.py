"""Modules whose training goes wrong at a step that a test chooses, and what two processes do that capture it."""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from camshaft.callbacks import NonFiniteGuard
from camshaft.forensics import StepCapture
from camshaft.trainer import Trainer, TrainingModule, seed_everything


class Explodes(nn.Module):
    """Multiplies by a number; from its own count of calls on one, by another."""

    def __init__(self, at: int, factor: float, rank: int | None) -> None:
        super().__init__()
        self.at, self.factor, self.rank = at, factor, rank
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        is_due = int(self.count) == self.at
        if is_due and self.rank is not None:
            is_due = torch.distributed.get_rank() == self.rank
        return x * self.factor if is_due else x


class Net(TrainingModule):
    """Draws random numbers of each kind, changes buffers, and reads where it is."""

    def __init__(self, at: int = 10, factor: float = float("inf"), width: int = 4, rank: int | None = None) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.body = nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width), nn.Dropout(0.3), nn.Tanh())
        self.explodes = Explodes(at, factor, rank)
        self.head = nn.Linear(width, 1)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        outputs = self.head(self.explodes(self.body(batch["x"].clone())))
        noise = torch.rand(()) + random.random() + float(numpy.random.rand())
        batch["x"].zero_()  # a step may change its batch
        return outputs.square().mean() * noise + 0.001 * (self.current_epoch + self.global_step + batch_idx)

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class Larger(Net):
    def __init__(self) -> None:
        super().__init__()
        self.further = nn.Linear(1, 1)


def net() -> Net:
    return Net(at=10)


class Rows(torch.utils.data.Dataset[Any]):
    def __init__(self, size: int) -> None:
        self.x = torch.randn(size, 3, generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, idx: int) -> Any:
        return {"x": self.x[idx]}


def train(module: Any, *callbacks: Any, num_batches: int = 25, **arguments: Any) -> Trainer:
    """Train in silence for two epochs; a guard may end it."""
    seed_everything(5)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "max_epochs": 2}
    trainer = Trainer(callbacks=list(callbacks), enable_model_summary=False, **{**quiet, **arguments})
    trainer.fit(module, DataLoader(Rows(4 * num_batches), batch_size=4, shuffle=True))
    return trainer


if __name__ == "__main__":  # torchrun --nproc-per-node 2 capture_parts.py FOLDER
    guard = NonFiniteGuard(capture=StepCapture(sys.argv[1]))
    train(Net(at=7, rank=1), guard, accelerator="cpu", devices=2, strategy="ddp")

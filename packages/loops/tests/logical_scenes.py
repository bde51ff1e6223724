"""Fits on four logical ranks, played by one, two or four processes; each tells what must be the same on all of them."""

from __future__ import annotations

import copy
import hashlib
import random
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bare_parts import BareTrainer, hooked
from launching import report
from logical_parts import LogicalStrategy
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torchmetrics import MeanSquaredError

from camshaft.loops import CombinedLoader, WeightedLoss
from camshaft.loops.metrics.log import MetricLogging
from camshaft.loops.metrics.logical_ranks import LogicalMetricLog

NUM_RANKS = 4


def flat(value: Any, path: str = "") -> dict[str, str]:
    """The leaves of a state by their paths; what tells the time, and nothing else, is left out."""
    if isinstance(value, Mapping):
        items = [(str(key), item) for key, item in value.items() if key != "elapsed_seconds"]
    elif isinstance(value, (list, tuple)):
        items = [(str(place), item) for place, item in enumerate(value)]
    elif isinstance(value, Tensor):
        data = value.detach().cpu().contiguous()
        return {path: f"{data.dtype}{list(data.shape)}{hashlib.sha256(data.numpy().tobytes()).hexdigest()}"}
    else:
        return {path: repr(value)}
    return {name: leaf for key, item in items for name, leaf in flat(item, f"{path}/{key}").items()}


class Noisy(Dataset[Any]):
    """Samples that draw from all generators of the process that reads them."""

    def __len__(self) -> int:
        return 46

    def __getitem__(self, index: int) -> Any:
        x = torch.full((6,), index / 46) + 0.1 * torch.randn(6) + random.random() * 0.1 + float(np.random.rand()) * 0.1
        return x, torch.tensor([float(index % 3)])


class Module(MetricLogging, nn.Module):
    """Dropout and batch normalisation, and values that are logged in every way."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)
        self.dropout = nn.Dropout(0.3)
        self.slow = copy.deepcopy(self.first).requires_grad_(False)
        self.train_error, self.val_error = MeanSquaredError(), MeanSquaredError()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.dropout(torch.tanh(self.norm(self.first(x)))))

    def training_step(self, batch: Any, batch_idx: int) -> WeightedLoss:
        x, y = batch
        predicted = self(x)
        loss = nn.functional.mse_loss(predicted, y) + 0.01 * random.random() * self.last.weight.sum()
        loss = loss + nn.functional.mse_loss(self.first(x), self.slow(x))
        weighted = WeightedLoss(loss, y.sum())
        self.log("loss", weighted, on_epoch=True)
        self.log("shared", loss * 2, sync_dist=True)
        self.log("noise", np.random.rand(), on_step=False, on_epoch=True, reduce_fx="max")
        self.train_error(predicted, y)
        self.log("error", self.train_error, on_step=True, on_epoch=True)
        return weighted

    def on_after_backward(self) -> None:
        self.log("steepest", self.last.weight.grad.abs().max(), on_epoch=True)
        self.last.weight.grad.clamp_(-0.1, 0.1)

    @torch.no_grad()
    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        for slow, fast in zip(self.slow.parameters(), self.first.parameters(), strict=True):
            slow.lerp_(fast, 0.1)

    def on_train_epoch_end(self) -> None:
        self.log("sum", 1.5, reduce_fx="sum")

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        predicted = self(x) + 0.01 * torch.randn(len(x), 1)
        self.val_error.update(predicted, y)
        self.log("val_loss", nn.functional.mse_loss(predicted, y))

    def on_validation_epoch_end(self) -> None:
        self.log("val_error", self.val_error.compute())
        self.val_error.reset()

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=0.01)


class Rows:
    """A logger that keeps what it gets."""

    def __init__(self) -> None:
        self.rows: list[Any] = []

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        self.rows.append((step, dict(metrics)))

    def save(self) -> None:
        pass


def scene(num_workers: int = 0, *, folder: Path, resume: bool = False, **arguments: Any) -> dict[str, Any]:
    """A fit of two epochs that saves inside of the second one, inside a window; or one that goes on from there."""
    torch.manual_seed(7 if not resume else 8)
    random.seed(3)
    np.random.seed(5)
    module, rows, drawn = Module(), Rows(), []
    train = DataLoader(Noisy(), batch_size=3, shuffle=True, num_workers=num_workers)
    val = DataLoader(Noisy(), batch_size=4, num_workers=num_workers)

    def save(trainer: BareTrainer, module: nn.Module, outputs: Any, batch: Any, batch_idx: int) -> None:
        drawn.append(round(random.random(), 12)) if trainer.strategy.global_rank == 0 else None
        if trainer.fit_loop.current_epoch == 1 and batch_idx == 1:
            trainer.save_checkpoint("inside")

    settings = {"accumulate_grad_batches": 3, "gradient_clip_val": 0.5, "max_epochs": 3}
    strategy = LogicalStrategy(NUM_RANKS)
    trainer = BareTrainer(
        module, callbacks=[hooked(on_train_batch_end=save)], strategy=strategy, **{**settings, **arguments}
    )
    trainer.metrics = LogicalMetricLog(
        loggers=[rows], log_every_n_steps=1, progress=trainer.fit_loop.progress, strategy=strategy
    )
    trainer.metrics.attach(module)
    checkpoint = torch.load(folder / "inside", weights_only=True) if resume else None
    trainer.fit(train, val, checkpoint)
    trainer.save_checkpoint("end")
    if strategy.global_rank == 0 and not resume:
        (folder / "inside").write_bytes(trainer.files["inside"])
    states = {name: trainer.load(name) for name in trainer.files}
    result = flat({"states": states, "metrics": trainer.metrics.callback_metrics, "weights": module.state_dict()})
    return result | {"rows": repr(rows.rows) if strategy.global_rank == 0 else ""}


class Recurrent(nn.Module):
    """Two optimizers that take turns in each split of a batch along time."""

    truncated_bptt_steps = 2

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.RNN(3, 4, batch_first=True), nn.RNN(3, 4, batch_first=True)

    def training_step(self, batch: Any, batch_idx: int, optimizer_idx: int, hiddens: Any) -> Any:
        network = (self.first, self.second)[optimizer_idx]
        out, hiddens = network(batch[0] + torch.rand(1), hiddens)
        return {"loss": out.square().mean(), "hiddens": hiddens}

    def configure_optimizers(self) -> Any:
        return [torch.optim.Adam(part.parameters(), lr=0.01) for part in (self.first, self.second)]


def along_time(folder: Path) -> dict[str, Any]:
    torch.manual_seed(1)
    module = Recurrent()
    data = TensorDataset(torch.randn(24, 6, 3))
    trainer = BareTrainer(module, strategy=LogicalStrategy(NUM_RANKS), max_epochs=2, accumulate_grad_batches=2)
    trainer.fit(DataLoader(data, batch_size=2, shuffle=True))
    assert trainer.global_step == 2 * 5  # of 9 splits in each epoch
    return flat(module.state_dict())


class Line(nn.Linear):
    """A line through batches of whatever loader was drawn."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return nn.functional.mse_loss(self(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def mixed(folder: Path) -> dict[str, Any]:
    torch.manual_seed(1)
    module, loaders = Line(6, 1), [DataLoader(Noisy(), 3, shuffle=True), DataLoader(Noisy(), 2, shuffle=True)]
    trainer = BareTrainer(module, strategy=LogicalStrategy(NUM_RANKS), max_epochs=2)
    trainer.fit(CombinedLoader(loaders, "weighted", weights=[1, 2], stop_criteria="first_exhausted"))
    return flat({"weights": module.state_dict(), "step": trainer.global_step})


def main() -> None:
    folder = Path(sys.argv[1])
    for name in sys.argv[2:]:
        if name == "whole":
            report(name, scene(folder=folder))
        elif name == "workers":
            report(name, scene(2, folder=folder))
        elif name == "resumed":
            report(name, scene(folder=folder, resume=True))
        elif name == "mixed":
            report(name, mixed(folder))
        elif name == "along_time":
            report(name, along_time(folder))


if __name__ == "__main__":
    main()

"""Modules and data for tests of command lines, under an import path."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from camshaft.hooks_core import Callback
from camshaft.trainer import DataModule, TrainingModule
from camshaft.trainer.cli import LRSchedulerCallable, OptimizerCallable


class Net(TrainingModule):
    """A linear module.

    Args:
        width: Number of inputs.
        lr: Learning rate.
    """

    def __init__(self, width: int = 3, lr: float = 0.1) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layer = nn.Linear(width, 1)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        inputs, targets = batch
        loss = nn.functional.mse_loss(self.layer(inputs), targets)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.training_step(batch, batch_idx))

    test_step = validation_step

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr)


class DeepNet(Net):
    """A module with more arguments."""

    def __init__(self, depth: int = 2, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.depth = depth


class ConfiguredNet(Net):
    """A module that is passed its optimizer, scheduler and activation."""

    def __init__(
        self,
        optimizer: OptimizerCallable = torch.optim.SGD,
        scheduler: LRSchedulerCallable = torch.optim.lr_scheduler.ConstantLR,
        activation: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.optimizer, self.scheduler, self.activation = optimizer, scheduler, activation

    def configure_optimizers(self) -> Any:
        optimizer = self.optimizer(self.parameters())
        return [optimizer], [self.scheduler(optimizer)]


class NamingNet(TrainingModule):
    """A module that saves what it names, one of which no option says."""

    def __init__(self, depth: int, optimizer: OptimizerCallable = torch.optim.SGD) -> None:
        super().__init__()
        self.save_hyperparameters("depth", "optimizer")
        self.optimizer = optimizer


class SmallNamingNet(NamingNet):
    """Has the depth 1."""

    def __init__(self, optimizer: OptimizerCallable = torch.optim.SGD) -> None:
        super().__init__(1, optimizer)


class Data(DataModule):
    """Data of any width."""

    def __init__(self, width: int = 3, batch_size: int = 8) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.batch_size, self.num_inputs = batch_size, width

    def train_dataloader(self) -> Any:
        inputs = torch.arange(8.0 * self.num_inputs).reshape(8, self.num_inputs) / 8
        return DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), self.batch_size)

    val_dataloader = test_dataloader = predict_dataloader = train_dataloader


class Told(Callback):
    """A callback with an argument."""

    def __init__(self, text: str = "") -> None:
        self.text = text


class Twice(Callback):
    """A callback of the same name as another."""

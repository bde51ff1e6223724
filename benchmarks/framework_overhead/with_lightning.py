"""Lightning: automatic optimization; lean runs use `Trainer(barebones=True)`."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import lightning
import lightning.pytorch as pl
import torch
from torch import Tensor

from .lightning_shape import LightningShape
from .recurrent import build_recurrent_model, loss_of_split, splits_of
from .workload import BAR_REFRESHES_PER_SECOND, Batch, build_optimizer


class RecurrentModule(pl.LightningModule):
    """Splits and optimization by hand, as Lightning 2's documentation has it since it gave up splitting batches."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.model = build_recurrent_model()

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        optimizer: Any = self.optimizers()
        hiddens: Tensor | None = None
        for inputs, classes in splits_of(batch):
            logits, hiddens = self.model(inputs, hiddens)
            loss = loss_of_split(logits, classes)
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
            hiddens = hiddens.detach()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return build_optimizer(self)


def build() -> LightningShape:
    """Return the adapter, with Lightning's hints and banners switched off."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    logging.getLogger("lightning.fabric").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    return LightningShape(
        name="lightning",
        read_version=lambda: lightning.__version__,
        trainer=pl.Trainer,
        module=pl.LightningModule,
        callback=pl.Callback,
        build_recurrent_module=RecurrentModule,
        build_csv_logger=_csv_logger,
        build_progress_bar=_progress_bar,
        trainer_arguments={"accelerator": "cpu", "devices": 1},
        everything_arguments={"enable_model_summary": False},
    )


def _csv_logger(folder: Path) -> Any:
    from lightning.pytorch.loggers import CSVLogger

    return CSVLogger(str(folder))


def _progress_bar() -> Any:
    from lightning.pytorch.callbacks import RichProgressBar

    return RichProgressBar(refresh_rate=BAR_REFRESHES_PER_SECOND)

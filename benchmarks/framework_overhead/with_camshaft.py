"""camshaft: automatic optimization; lean runs use `Trainer(barebones=True)`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from camshaft.callbacks import Callback
from camshaft.trainer import Trainer, TrainingModule

from .lightning_shape import LightningShape
from .recurrent import SPLIT_SIZE, build_recurrent_model, loss_of_split
from .workload import BAR_REFRESHES_PER_SECOND, Batch, build_optimizer


class RecurrentModule(TrainingModule):
    """The trainer splits, differentiates, steps and detaches the hidden state."""

    truncated_bptt_steps = SPLIT_SIZE

    def __init__(self) -> None:
        super().__init__()
        self.model = build_recurrent_model()

    def training_step(self, batch: Batch, batch_idx: int, hiddens: Tensor | None) -> dict[str, Tensor]:
        inputs, classes = batch
        logits, hiddens = self.model(inputs, hiddens)
        return {"loss": loss_of_split(logits, classes), "hiddens": hiddens}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return build_optimizer(self)


def build() -> LightningShape:
    """Return the adapter."""
    return LightningShape(
        name="camshaft",
        read_version=_version,
        trainer=Trainer,
        module=TrainingModule,
        callback=Callback,
        build_recurrent_module=RecurrentModule,
        build_csv_logger=_csv_logger,
        build_progress_bar=_progress_bar,
        trainer_arguments={},
        everything_arguments={},
    )


def _csv_logger(folder: Path) -> Any:
    from camshaft.callbacks import CSVLogger

    return CSVLogger(str(folder))


def _progress_bar() -> Any:
    from camshaft.callbacks import RichProgressBar

    return RichProgressBar(refresh_rate_seconds=1 / BAR_REFRESHES_PER_SECOND)


def _version() -> str:
    import importlib.metadata

    try:
        return importlib.metadata.version("camshaft-trainer")
    except importlib.metadata.PackageNotFoundError:
        return "from the source tree"

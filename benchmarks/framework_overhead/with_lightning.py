"""Lightning: automatic optimization; lean runs use `Trainer(barebones=True)`."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import lightning
import lightning.pytorch as pl

from .lightning_shape import LightningShape
from .workload import BAR_REFRESHES_PER_SECOND


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

"""camshaft: automatic optimization; lean runs use `Trainer(barebones=True)`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from camshaft.callbacks import Callback
from camshaft.trainer import Trainer, TrainingModule

from .lightning_shape import LightningShape
from .workload import BAR_REFRESHES_PER_SECOND


def build() -> LightningShape:
    """Return the adapter."""
    return LightningShape(
        name="camshaft",
        read_version=_version,
        trainer=Trainer,
        module=TrainingModule,
        callback=Callback,
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

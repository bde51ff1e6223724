"""The two frameworks under common names."""

from __future__ import annotations

import logging
from typing import Any

import attrs
import lightning.pytorch as lightning
import lightning.pytorch.callbacks as lightning_callbacks
import lightning.pytorch.loggers as lightning_loggers
from lightning.pytorch.strategies import SingleDeviceStrategy as LightningSingleDevice

import camshaft.callbacks
import camshaft.compat
import camshaft.trainer
from camshaft.compat.names.finder import counterpart_of, load
from camshaft.hooks_core import Callback
from camshaft.strategies import SingleDeviceStrategy

for _name in ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)


class MonitoringCallback(Callback):
    """A callback of camshaft that runs after the module at the end of a training epoch."""

    monitors = True


@attrs.frozen
class Framework:
    """What a run is built from.

    Args:
        quiet: Arguments with which a trainer neither prints nor writes what is not asked for.
        monitoring: The base class of callbacks that run after the module at the end of a training epoch.
    """

    name: str
    trainer: Any
    module: Any
    data: Any
    callback: Any
    monitoring: Any
    strategy: Any
    model_checkpoint: Any
    early_stopping: Any
    csv_logger: Any
    quiet: dict[str, Any]


LIGHTNING = Framework(
    name="Lightning",
    trainer=lightning.Trainer,
    module=lightning.LightningModule,
    data=lightning.LightningDataModule,
    callback=lightning_callbacks.Callback,
    monitoring=lightning_callbacks.Checkpoint,
    strategy=LightningSingleDevice,
    model_checkpoint=lightning_callbacks.ModelCheckpoint,
    early_stopping=lightning_callbacks.EarlyStopping,
    csv_logger=lightning_loggers.CSVLogger,
    quiet={
        "accelerator": "cpu",
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": True,  # it refuses callbacks that save otherwise; one that does nothing is always there
    },
)

CAMSHAFT = Framework(
    name="camshaft",
    trainer=camshaft.trainer.Trainer,
    module=camshaft.trainer.TrainingModule,
    data=camshaft.trainer.DataModule,
    callback=Callback,
    monitoring=MonitoringCallback,
    strategy=SingleDeviceStrategy,
    model_checkpoint=camshaft.callbacks.ModelCheckpoint,
    early_stopping=camshaft.callbacks.EarlyStopping,
    csv_logger=camshaft.callbacks.CSVLogger,
    quiet={"accelerator": "cpu", "enable_progress_bar": False},
)


def _named(place: str, name: str) -> Any:
    """What a name of Lightning is under the import names."""
    return load(counterpart_of(place, name) or "")


IMPORT_NAMES = attrs.evolve(
    CAMSHAFT,
    name="import names",
    trainer=camshaft.compat.Trainer,
    module=camshaft.compat.TrainingModule,
    data=camshaft.compat.DataModule,
    callback=camshaft.compat.Callback,
    strategy=_named("strategies", "SingleDeviceStrategy"),
    model_checkpoint=_named("callbacks", "ModelCheckpoint"),
    early_stopping=_named("callbacks", "EarlyStopping"),
    csv_logger=_named("loggers", "CSVLogger"),
    quiet=LIGHTNING.quiet,
)
"""Lightning's import names, as `python -m camshaft.compat run` serves them."""

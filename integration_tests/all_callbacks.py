"""Trainings with all stock callbacks and loggers at once, from their beginning or from checkpoints.

all_callbacks.py MAX_EPOCHS FOLDER [CHECKPOINT FOLDER CHECKPOINT ...]
"""

from __future__ import annotations

import sys
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from launching import report
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from camshaft.callbacks import (
    BackboneFinetuning,
    BatchSizeFinder,
    CSVLogger,
    DataWait,
    DeviceStatsMonitor,
    EarlyStopping,
    EMAWeightAveraging,
    GradientAccumulationScheduler,
    HookTimeline,
    LambdaCallback,
    LearningRateFinder,
    LearningRateMonitor,
    MLFlowLogger,
    ModelCheckpoint,
    ModelSummary,
    NonFiniteGuard,
    NPZPredictionWriter,
    OnExceptionCheckpoint,
    ParquetPredictionWriter,
    PreemptionCheckpoint,
    PyTorchProfiler,
    SpikeDetection,
    StragglerReport,
    TensorBoardLogger,
    ThroughputMonitor,
    Timer,
    TQDMProgressBar,
    WandbLogger,
)
from camshaft.forensics import RunLedger
from camshaft.trainer import Trainer, TrainingModule

NUM_SAMPLES = 96


class Net(TrainingModule):
    """Draws random numbers in training, so that only an exact resume ends with the same weights."""

    def __init__(self) -> None:
        super().__init__()
        self.lr = 0.02
        self.batch_size = 4
        self.backbone = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.Tanh(), nn.Dropout(0.2))
        self.head = nn.Linear(12, 1)
        self.example_input_array = torch.zeros(2, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.backbone(x)).squeeze(1)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = nn.functional.mse_loss(self(batch[0]), batch[1])
        self.log("loss", loss, on_epoch=True, prog_bar=True)
        return loss

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("val_loss", nn.functional.mse_loss(self(batch[0]), batch[1]), prog_bar=True)

    def predict_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return self(batch[0])

    def configure_optimizers(self) -> Any:
        trainable = [parameter for parameter in self.parameters() if parameter.requires_grad]
        optimizer = torch.optim.Adam(trainable, lr=self.lr)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.9**epoch)
        return {"optimizer": optimizer, "lr_scheduler": scheduler}

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(_data(0), self.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(_data(1), 10)

    predict_dataloader = val_dataloader


def _data(seed: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(NUM_SAMPLES, 6, generator=generator)
    return TensorDataset(x, x.sum(1).tanh())


def make_callbacks(folder: Path) -> list[Any]:
    return [
        LearningRateFinder(num_training_steps=12, max_lr=0.1, update_attr=True),
        BatchSizeFinder(max_trials=2, init_val=4, steps_per_trial=1, max_val=8),
        GradientAccumulationScheduler({0: 1, 2: 2}),
        BackboneFinetuning(unfreeze_backbone_at_epoch=1),
        EMAWeightAveraging(decay=0.9),
        EarlyStopping("val_loss", patience=50),
        ModelCheckpoint(folder / "best", monitor="val_loss", save_last=True),
        ModelCheckpoint(folder / "steps", filename="{step}", every_n_train_steps=5, save_top_k=-1),
        OnExceptionCheckpoint(folder / "rescued"),
        PreemptionCheckpoint(dirpath=folder / "preempted"),
        LearningRateMonitor(),
        DeviceStatsMonitor(),
        DataWait(),
        StragglerReport(every_n_steps=4),
        ThroughputMonitor(lambda batch: len(batch[0])),
        Timer(duration="00:01:00:00"),
        SpikeDetection(rtol=1000.0),
        NonFiniteGuard(),
        RunLedger(folder / "ledger", weights_every_n_steps=3),
        LambdaCallback(on_train_start=lambda trainer, module: None),
        HookTimeline(folder / "timeline"),
        NPZPredictionWriter(folder / "npz"),
        ParquetPredictionWriter(folder / "parquet"),
        ModelSummary(max_depth=2),
        TQDMProgressBar(),
    ]


def make_trainer(folder: Path, max_epochs: int, **arguments: Any) -> Trainer:
    loggers = [
        CSVLogger(folder, "csv"),
        TensorBoardLogger(folder, "tensorboard"),
        MLFlowLogger("all", tracking_uri=str(folder / "mlruns")),
        WandbLogger(save_dir=folder, offline=True),
    ]
    return Trainer(
        max_epochs=max_epochs,
        logger=loggers,
        callbacks=make_callbacks(folder),
        default_root_dir=folder,
        log_every_n_steps=2,
        profiler=PyTorchProfiler(folder / "profiles", record_module_names=False),
        gradient_clip_val=1.0,
        **arguments,
    )


def train(folder: Path, max_epochs: int, ckpt_path: str | None, **arguments: Any) -> tuple[int, int, Tensor, Tensor]:
    """Fit and predict. Returns updates, batch size, weights, and predictions in the order of the data."""
    torch.manual_seed(7)
    trainer, module = make_trainer(folder, max_epochs, **arguments), Net()
    trainer.fit(module, ckpt_path=ckpt_path)
    weights = torch.cat([tensor.detach().flatten().float() for tensor in module.state_dict().values()])
    predictions = torch.cat(trainer.predict(module, gather=True))
    return trainer.global_step, module.batch_size, weights, predictions


if __name__ == "__main__":
    max_epochs, *places = sys.argv[1:]
    for folder, checkpoint in zip_longest(places[::2], places[1::2]):
        pictures = None if checkpoint else Path(folder, "report")  # to draw them takes as long as to train
        report(train(Path(folder), int(max_epochs), checkpoint, accelerator="cpu", report=pictures))

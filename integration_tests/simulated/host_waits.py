"""How often the host waits for the device in 32 updates of an epoch, with each stock callback or logger."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import simulated_device
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from camshaft import callbacks as stock
from camshaft.forensics import RunLedger
from camshaft.hooks_core import Callback
from camshaft.trainer import Trainer, TrainingModule

FIRST, NUM_STEPS, LOG_EVERY = 7, 32, 8


class Net(TrainingModule):
    """A small network with what has a state: batch norm, dropout, and a logged loss if that is wanted."""

    def __init__(self, *, logs: bool) -> None:
        super().__init__()
        self.logs = logs
        self.backbone = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.Tanh(), nn.Dropout(0.2))
        self.head = nn.Linear(12, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.backbone(x)).squeeze(1)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = nn.functional.mse_loss(self(batch[0]), batch[1])
        if self.logs:
            self.log("loss", loss, prog_bar=True, on_step=True, on_epoch=True)
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam([one for one in self.parameters() if one.requires_grad])
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)}


class Window(Callback):
    """Records the events of the middle of an epoch."""

    def __init__(self) -> None:
        self._context = simulated_device.recording()
        self.recording: Any = None

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == FIRST:
            self.recording = self._context.__enter__()
        if batch_idx == FIRST + NUM_STEPS:
            self._context.__exit__(None, None, None)


CALLBACKS: dict[str, Callable[[Path], Any]] = {
    "BackboneFinetuning": lambda folder: stock.BackboneFinetuning(unfreeze_backbone_at_epoch=1),
    "DataWait": lambda folder: stock.DataWait(),
    "DeviceStatsMonitor": lambda folder: stock.DeviceStatsMonitor(),
    "EMAWeightAveraging": lambda folder: stock.EMAWeightAveraging(decay=0.9),
    "EarlyStopping": lambda folder: stock.EarlyStopping("loss_epoch", check_on_train_epoch_end=True),
    "GradientAccumulationScheduler": lambda folder: stock.GradientAccumulationScheduler({0: 2}),
    "HookTimeline": lambda folder: stock.HookTimeline(folder),
    "LambdaCallback": lambda folder: stock.LambdaCallback(on_train_batch_end=lambda *_: None),
    "LearningRateMonitor": lambda folder: stock.LearningRateMonitor(),
    "OutOfMemorySnapshot": lambda folder: stock.OutOfMemorySnapshot(folder),
    "ModelCheckpoint": lambda folder: stock.ModelCheckpoint(folder),
    "ModelPruning": lambda folder: stock.ModelPruning("l1_unstructured", amount=0.1),
    "ModelSummary": lambda folder: stock.ModelSummary(),
    "NonFiniteGuard": lambda folder: stock.NonFiniteGuard(),
    "NonFiniteGuard(check_every_n_batches=8)": lambda folder: stock.NonFiniteGuard(check_every_n_batches=8),
    "OnExceptionCheckpoint": lambda folder: stock.OnExceptionCheckpoint(folder),
    "PreemptionCheckpoint": lambda folder: stock.PreemptionCheckpoint(dirpath=folder),
    "RichModelSummary": lambda folder: stock.RichModelSummary(),
    "RichProgressBar": lambda folder: stock.RichProgressBar(),
    "RunLedger": lambda folder: RunLedger(folder / "ledger"),
    "SpikeDetection": lambda folder: stock.SpikeDetection(rtol=1000.0),
    "StragglerReport": lambda folder: stock.StragglerReport(every_n_steps=1),
    "StochasticWeightAveraging": lambda folder: stock.StochasticWeightAveraging(0.01),
    "TQDMProgressBar": lambda folder: stock.TQDMProgressBar(),
    "ThroughputMonitor": lambda folder: stock.ThroughputMonitor(lambda batch: len(batch[0])),
    "Timer": lambda folder: stock.Timer(duration="00:01:00:00"),
    "WeightAveraging": lambda folder: stock.WeightAveraging(),
}
LOGGERS: dict[str, Callable[[Path], Any]] = {
    "CSVLogger": lambda folder: stock.CSVLogger(folder),
    "CurveReport": lambda folder: stock.CurveReport(folder),
    "MLFlowLogger": lambda folder: stock.MLFlowLogger("run", tracking_uri=str(folder / "mlruns")),
    "TensorBoardLogger": lambda folder: stock.TensorBoardLogger(folder),
    "WandbLogger": lambda folder: stock.WandbLogger(save_dir=folder, offline=True),
}


def waits_of(folder: Path, *, logs: bool, **arguments: Any) -> list[simulated_device.Event]:
    """Return for what the host waited in the window of a training with these arguments of a trainer."""
    window = Window()
    arguments["callbacks"] = [*arguments.get("callbacks", ()), window]
    data = TensorDataset(torch.randn(4 * (FIRST + NUM_STEPS + 3), 6), torch.randn(4 * (FIRST + NUM_STEPS + 3)))
    settings = dict.fromkeys(["logger", "enable_progress_bar", "enable_checkpointing", "enable_model_summary"], False)
    trainer = Trainer(
        accelerator="sim",
        devices=[1],
        max_epochs=1,
        log_every_n_steps=LOG_EVERY,
        default_root_dir=folder,
        **{**settings, **arguments},
    )
    trainer.fit(Net(logs=logs), DataLoader(data, batch_size=4))
    return window.recording.host_waits()

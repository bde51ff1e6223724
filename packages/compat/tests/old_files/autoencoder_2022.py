"""A script as it was written in 2022, for release 1.6."""

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback, EarlyStopping, LearningRateMonitor, ModelCheckpoint, TQDMProgressBar
from pytorch_lightning.loggers.csv_logs import CSVLogger
from pytorch_lightning.trainer.states import RunningStage, TrainerFn
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from pytorch_lightning.utilities.seed import seed_everything
from pytorch_lightning.utilities.types import EVAL_DATALOADERS, STEP_OUTPUT, TRAIN_DATALOADERS
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Data(pl.LightningDataModule):
    def __init__(self, batch_size: int = 8) -> None:
        super().__init__()
        self.save_hyperparameters()

    def setup(self, stage=None):
        if stage == TrainerFn.FITTING:
            self.data = TensorDataset(torch.randn(32, 6))

    def train_dataloader(self) -> TRAIN_DATALOADERS:
        return DataLoader(self.data, batch_size=self.hparams.batch_size, shuffle=True)

    def val_dataloader(self) -> EVAL_DATALOADERS:
        return DataLoader(self.data, batch_size=self.hparams.batch_size)


class AutoEncoder(pl.LightningModule):
    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.save_hyperparameters()
        if width > 6:
            raise MisconfigurationException("too wide")
        self.layers = nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 6))

    def training_step(self, batch, batch_idx) -> STEP_OUTPUT:
        (x,) = batch
        loss = nn.functional.mse_loss(self.layers(x), x)
        self.log("train_loss", loss, prog_bar=True)
        return {"loss": loss}

    def training_epoch_end(self, outputs):
        self.log("mean_loss", torch.stack([o["loss"] for o in outputs]).mean())

    def validation_step(self, batch, batch_idx):
        (x,) = batch
        self.log("val_loss", nn.functional.mse_loss(self.layers(x), x))

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.02)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)}


class Stages(Callback):
    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if batch_idx == 0 and trainer.current_epoch == 0:
            print("stage", RunningStage.TRAINING, trainer.training)


if __name__ == "__main__":
    seed_everything(3, workers=True)
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=3,
        logger=CSVLogger("."),
        log_every_n_steps=1,
        callbacks=[
            EarlyStopping(monitor="val_loss", patience=5),
            ModelCheckpoint(monitor="val_loss", save_last=True),
            LearningRateMonitor("epoch"),
            TQDMProgressBar(refresh_rate=0),
            Stages(),
        ],
    )
    trainer.fit(AutoEncoder(), datamodule=Data())
    print("finished", trainer.global_step, "steps")

"""A script as it was written in 2020, for release 0.8."""

import os
from argparse import ArgumentParser

import pytorch_lightning as pl
import torch
import torch.nn as nn
import torch.nn.functional as F
from pytorch_lightning.callbacks import EarlyStopping, LearningRateLogger, ModelCheckpoint
from pytorch_lightning.core.lightning import LightningModule
from pytorch_lightning.loggers import TensorBoardLogger
from pytorch_lightning.metrics.functional import accuracy
from pytorch_lightning.utilities import rank_zero_only
from torch.utils.data import DataLoader, TensorDataset


def make_data(seed):
    inputs = torch.randn(64, 8, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(inputs, (inputs.sum(dim=1) > 0).long())


class Classifier(LightningModule):
    def __init__(self, hparams):
        super().__init__()
        self.hparams = hparams
        self.net = nn.Sequential(nn.Linear(8, hparams.hidden), nn.ReLU(), nn.Linear(hparams.hidden, 2))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_nb):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        return {"loss": loss, "log": {"train_loss": loss}}

    def validation_step(self, batch, batch_nb):
        x, y = batch
        logits = self(x)
        return {"val_loss": F.cross_entropy(logits, y), "val_acc": accuracy(logits.argmax(dim=1), y, num_classes=2)}

    def validation_epoch_end(self, outputs):
        loss = torch.stack([o["val_loss"] for o in outputs]).mean()
        acc = torch.stack([o["val_acc"] for o in outputs]).mean()
        self.announce(acc)
        return {"val_loss": loss, "log": {"val_loss": loss, "val_acc": acc}, "progress_bar": {"val_acc": acc}}

    @rank_zero_only
    def announce(self, acc):
        print("val_acc", float(acc))

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=self.hparams.lr)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

    @pl.data_loader
    def train_dataloader(self):
        return DataLoader(make_data(0), batch_size=16, shuffle=True)

    @pl.data_loader
    def val_dataloader(self):
        return DataLoader(make_data(1), batch_size=16)

    @staticmethod
    def add_model_specific_args(parent_parser):
        parser = ArgumentParser(parents=[parent_parser], add_help=False)
        parser.add_argument("--hidden", type=int, default=16)
        parser.add_argument("--lr", type=float, default=0.05)
        return parser


def main(args):
    pl.seed_everything(7)
    model = Classifier(args)
    checkpoint = ModelCheckpoint(
        filepath=os.path.join(args.out, "{epoch}-{val_loss:.2f}"),
        monitor="val_loss",
        mode="auto",
        save_top_k=2,
        period=1,
    )
    trainer = pl.Trainer.from_argparse_args(
        args,
        gpus=0,
        max_epochs=2,
        logger=TensorBoardLogger(args.out, name="tb"),
        checkpoint_callback=checkpoint,
        early_stop_callback=EarlyStopping("val_loss", patience=3, verbose=0, mode="auto"),
        callbacks=[LearningRateLogger()],
        row_log_interval=1,
        progress_bar_refresh_rate=0,
        weights_summary=None,
    )
    trainer.fit(model)
    assert isinstance(model, pl.LightningModule)
    assert checkpoint.best_model_path, "nothing was saved"
    print("steps", trainer.global_step, "best", os.path.basename(checkpoint.best_model_path))


if __name__ == "__main__":
    parser = ArgumentParser()
    parser.add_argument("--out", default=".")
    parser = Classifier.add_model_specific_args(parser)
    parser = pl.Trainer.add_argparse_args(parser)
    main(parser.parse_args())

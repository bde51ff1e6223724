"""A variational autoencoder of early 2020: hyperparameters as a Namespace, dictionaries from every step."""

from argparse import ArgumentParser

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint
from pytorch_lightning.loggers import TensorBoardLogger
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class VAE(pl.LightningModule):

    def __init__(self, hparams):
        super().__init__()
        self.hparams = hparams
        self.encoder = nn.Sequential(nn.Linear(64, hparams.hidden_dim), nn.ReLU())
        self.fc_mu = nn.Linear(hparams.hidden_dim, hparams.latent_dim)
        self.fc_var = nn.Linear(hparams.hidden_dim, hparams.latent_dim)
        self.decoder = nn.Sequential(nn.Linear(hparams.latent_dim, hparams.hidden_dim), nn.ReLU(),
                                     nn.Linear(hparams.hidden_dim, 64), nn.Sigmoid())
        self.epochs_of_validation = []

    def prepare_data(self):
        load_digits()

    def forward(self, x):
        h = self.encoder(x)
        mu, log_var = self.fc_mu(h), self.fc_var(h)
        z = mu + torch.exp(0.5 * log_var) * torch.randn_like(mu)
        return self.decoder(z), mu, log_var

    def _losses(self, batch):
        x, _ = batch
        x_hat, mu, log_var = self(x)
        recons = F.mse_loss(x_hat, x, reduction='sum') / x.size(0)
        kld = torch.mean(-0.5 * torch.sum(1 + log_var - mu ** 2 - log_var.exp(), dim=1))
        return recons, kld

    def training_step(self, batch, batch_idx):
        recons, kld = self._losses(batch)
        loss = recons + self.hparams.kld_weight * kld
        tensorboard_logs = {'train_loss': loss, 'recons': recons, 'kld': kld}
        return {'loss': loss, 'log': tensorboard_logs, 'progress_bar': {'recons': recons}}

    def validation_step(self, batch, batch_idx):
        recons, kld = self._losses(batch)
        return {'val_loss': recons + self.hparams.kld_weight * kld, 'batch_size': len(batch[0])}

    def validation_epoch_end(self, outputs):
        avg_loss = torch.stack([x['val_loss'] for x in outputs]).mean()
        self.epochs_of_validation.append((self.current_epoch, len(outputs), avg_loss.item()))
        tensorboard_logs = {'avg_val_loss': avg_loss}
        return {'val_loss': avg_loss, 'log': tensorboard_logs}

    def on_epoch_start(self):
        self.started_at = self.trainer.global_step

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=self.hparams.learning_rate)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.95)
        return [optimizer], [scheduler]

    def _loader(self, part, shuffle):
        data = load_digits()
        x = torch.tensor(data.data / 16.0, dtype=torch.float32)[part]
        y = torch.tensor(data.target)[part]
        return DataLoader(TensorDataset(x, y), batch_size=self.hparams.batch_size, shuffle=shuffle)

    def train_dataloader(self):
        return self._loader(slice(0, 1200), True)

    def val_dataloader(self):
        return self._loader(slice(1200, None), False)

    @staticmethod
    def add_model_specific_args(parent_parser):
        parser = ArgumentParser(parents=[parent_parser], add_help=False)
        parser.add_argument('--hidden_dim', type=int, default=64)
        parser.add_argument('--latent_dim', type=int, default=8)
        parser.add_argument('--kld_weight', type=float, default=0.1)
        parser.add_argument('--learning_rate', type=float, default=3e-3)
        parser.add_argument('--batch_size', type=int, default=64)
        return parser


def main(root):
    parser = VAE.add_model_specific_args(ArgumentParser(add_help=False))
    hparams = parser.parse_args([])
    model = VAE(hparams)
    trainer = pl.Trainer(
        logger=TensorBoardLogger(save_dir=root, name='vae'),
        checkpoint_callback=ModelCheckpoint(filepath=root + '/{epoch}-{val_loss:.2f}', monitor='val_loss', mode='min'),
        early_stop_callback=EarlyStopping(monitor='val_loss', patience=5, mode='min'),
        max_epochs=8,
        min_epochs=2,
        gpus=0,
        weights_summary=None,
        progress_bar_refresh_rate=0,
        nb_sanity_val_steps=2,
    )
    trainer.fit(model)
    return trainer, model

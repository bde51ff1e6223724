"""A VQ-GAN in small, of 2021: an autoencoder and its discriminator as two optimizers."""

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from pytorch_lightning.callbacks import Callback, LearningRateMonitor
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class VectorQuantizer(nn.Module):
    def __init__(self, n_e, e_dim, beta=0.25):
        super().__init__()
        self.beta = beta
        self.embedding = nn.Embedding(n_e, e_dim)
        self.embedding.weight.data.uniform_(-1.0 / n_e, 1.0 / n_e)

    def forward(self, z):
        d = torch.cdist(z, self.embedding.weight)
        indices = d.argmin(1)
        z_q = self.embedding(indices)
        loss = F.mse_loss(z_q.detach(), z) * self.beta + F.mse_loss(z_q, z.detach())
        return z + (z_q - z).detach(), loss, indices


class VQModel(pl.LightningModule):
    def __init__(self, n_embed=32, embed_dim=8, image_key=0, disc_start=10, learning_rate=4e-3):
        super().__init__()
        self.image_key, self.disc_start, self.learning_rate = image_key, disc_start, learning_rate
        self.encoder = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, embed_dim))
        self.decoder = nn.Sequential(nn.Linear(embed_dim, 64), nn.ReLU(), nn.Linear(64, 64))
        self.quantize = VectorQuantizer(n_embed, embed_dim)
        self.discriminator = nn.Sequential(nn.Linear(64, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
        self.optimizer_idxs = []

    def forward(self, x):
        quant, diff, _ = self.quantize(self.encoder(x))
        return self.decoder(quant), diff

    def get_last_layer(self):
        return self.decoder[-1].weight

    def training_step(self, batch, batch_idx, optimizer_idx):
        x = batch[self.image_key]
        xrec, qloss = self(x)
        self.optimizer_idxs.append(optimizer_idx)
        factor = 0.0 if self.global_step < self.disc_start else 0.05
        if optimizer_idx == 0:
            aeloss = F.mse_loss(xrec, x) + qloss - factor * self.discriminator(xrec).mean()
            self.log("train/aeloss", aeloss, prog_bar=True, logger=True, on_step=True, on_epoch=True)
            self.log_dict({"train/rec_loss": F.mse_loss(xrec, x).detach()}, prog_bar=False, logger=True, on_step=True, on_epoch=True)
            return aeloss
        if optimizer_idx == 1:
            real, fake = self.discriminator(x), self.discriminator(xrec.detach())
            discloss = 0.5 * (F.relu(1.0 - real).mean() + F.relu(1.0 + fake).mean())
            self.log("train/discloss", discloss, prog_bar=True, logger=True, on_step=True, on_epoch=True)
            return discloss

    def validation_step(self, batch, batch_idx):
        x = batch[self.image_key]
        xrec, qloss = self(x)
        rec_loss = F.mse_loss(xrec, x)
        self.log("val/rec_loss", rec_loss, prog_bar=True, logger=True, on_step=False, on_epoch=True, sync_dist=True)
        return self.log_dict

    def configure_optimizers(self):
        lr = self.learning_rate
        opt_ae = torch.optim.Adam(list(self.encoder.parameters()) + list(self.decoder.parameters())
                                  + list(self.quantize.parameters()), lr=lr, betas=(0.5, 0.9))
        opt_disc = torch.optim.Adam(self.discriminator.parameters(), lr=lr, betas=(0.5, 0.9))
        return [opt_ae, opt_disc], []


class ImageLogger(Callback):
    def __init__(self, batch_frequency):
        super().__init__()
        self.batch_freq = batch_frequency
        self.logged = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx):
        if batch_idx % self.batch_freq == 0:
            was_training = pl_module.training
            pl_module.eval()
            with torch.no_grad():
                xrec, _ = pl_module(batch[0])
            if was_training:
                pl_module.train()
            self.logged.append((trainer.current_epoch, batch_idx, dataloader_idx, tuple(xrec.shape)))

    def on_validation_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx):
        pass

    def on_pretrain_routine_start(self, trainer, pl_module):
        self.prepared = trainer.global_rank == 0


def main(root):
    data = load_digits()
    x = torch.tensor(data.data / 16.0, dtype=torch.float32)
    train = DataLoader(TensorDataset(x[:1200], torch.tensor(data.target[:1200])), batch_size=64, shuffle=True)
    val = DataLoader(TensorDataset(x[1200:], torch.tensor(data.target[1200:])), batch_size=64)
    model = VQModel()
    images = ImageLogger(batch_frequency=5)
    trainer = pl.Trainer(default_root_dir=root, gpus=0, max_epochs=6, callbacks=[images, LearningRateMonitor()],
                         progress_bar_refresh_rate=0, weights_summary=None, log_every_n_steps=10)
    trainer.fit(model, train, val)
    model.image_logger = images
    return trainer, model

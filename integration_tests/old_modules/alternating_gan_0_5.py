"""A GAN of 2019 whose optimizers step in turn, by an overridden `optimizer_step`."""

import math
from argparse import Namespace
from collections import OrderedDict

import pytorch_lightning as pl
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class Generator(nn.Module):
    def __init__(self, latent_dim):
        super(Generator, self).__init__()
        self.model = nn.Sequential(nn.Linear(latent_dim, 32), nn.ReLU(inplace=True), nn.Linear(32, 2))

    def forward(self, z):
        return self.model(z)


class Discriminator(nn.Module):
    def __init__(self):
        super(Discriminator, self).__init__()
        self.model = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2, inplace=True), nn.Linear(32, 1), nn.Sigmoid())

    def forward(self, points):
        return self.model(points)


class GAN(pl.LightningModule):
    def __init__(self, hparams):
        super(GAN, self).__init__()
        self.hparams = hparams
        self.generator = Generator(hparams.latent_dim)
        self.discriminator = Discriminator()
        self.num_discriminator_steps = 0
        self.num_generator_steps = 0
        self.gradient_norms = []

    def forward(self, z):
        return self.generator(z)

    def adversarial_loss(self, y_hat, y):
        return F.binary_cross_entropy(y_hat, y)

    def training_step(self, batch, batch_nb, optimizer_i):
        points, = batch
        z = torch.randn(points.shape[0], self.hparams.latent_dim).type_as(points)
        if optimizer_i == 0:
            valid = torch.ones(points.size(0), 1)
            g_loss = self.adversarial_loss(self.discriminator(self(z)), valid)
            tqdm_dict = {'g_loss': g_loss}
            return OrderedDict({'loss': g_loss, 'progress_bar': tqdm_dict, 'log': tqdm_dict})
        if optimizer_i == 1:
            valid = torch.ones(points.size(0), 1)
            fake = torch.zeros(points.size(0), 1)
            real_loss = self.adversarial_loss(self.discriminator(points), valid)
            fake_loss = self.adversarial_loss(self.discriminator(self(z).detach()), fake)
            d_loss = (real_loss + fake_loss) / 2
            tqdm_dict = {'d_loss': d_loss}
            return OrderedDict({'loss': d_loss, 'progress_bar': tqdm_dict, 'log': tqdm_dict})

    def configure_optimizers(self):
        lr, b1 = self.hparams.lr, self.hparams.b1
        opt_g = torch.optim.Adam(self.generator.parameters(), lr=lr, betas=(b1, 0.999))
        opt_d = torch.optim.Adam(self.discriminator.parameters(), lr=lr, betas=(b1, 0.999))
        return [opt_g, opt_d], []

    def optimizer_step(self, current_epoch, batch_nb, optimizer, optimizer_i, second_order_closure=None):
        # update generator opt every 2 steps
        if optimizer_i == 0:
            if batch_nb % 2 == 0:
                self.num_generator_steps += 1
                optimizer.step()
                optimizer.zero_grad()

        # update discriminator opt every step
        if optimizer_i == 1:
            self.num_discriminator_steps += 1
            optimizer.step()
            optimizer.zero_grad()

    def on_after_backward(self):
        if self.trainer.global_step % 25 == 0:
            norms = [p.grad.norm() for p in self.generator.parameters() if p.grad is not None]
            self.gradient_norms.append(float(sum(norms)))

    @pl.data_loader
    def train_dataloader(self):
        angles = torch.rand(512) * 2 * math.pi
        points = torch.stack([angles.cos(), angles.sin()], 1) + 0.02 * torch.randn(512, 2) + 3.0
        return DataLoader(TensorDataset(points), batch_size=self.hparams.batch_size, shuffle=True)


def main(root):
    hparams = Namespace(latent_dim=4, lr=2e-3, b1=0.5, batch_size=32)
    model = GAN(hparams)
    trainer = pl.Trainer(default_save_path=root, max_nb_epochs=12, gpus=None, show_progress_bar=False,
                         checkpoint_callback=False, early_stop_callback=False, row_log_interval=4)
    trainer.fit(model)
    return trainer, model

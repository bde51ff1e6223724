"""A GAN of late 2020 under manual optimization."""

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class ManualGAN(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.G = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
        self.D = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))

    @property
    def automatic_optimization(self):
        return False

    def sample(self, n):
        return self.G(torch.randn(n, 4))

    def training_step(self, batch, batch_idx):
        g_opt, d_opt = self.optimizers()
        x, = batch
        real, fake = torch.ones(len(x), 1), torch.zeros(len(x), 1)
        g_fake = self.sample(len(x))
        d_loss = (F.binary_cross_entropy_with_logits(self.D(x), real)
                  + F.binary_cross_entropy_with_logits(self.D(g_fake.detach()), fake))
        d_opt.zero_grad()
        self.manual_backward(d_loss, d_opt)
        d_opt.step()
        g_loss = F.binary_cross_entropy_with_logits(self.D(g_fake), real)
        g_opt.zero_grad()
        self.manual_backward(g_loss, g_opt)
        g_opt.step()
        self.log_dict({'g_loss': g_loss, 'd_loss': d_loss}, prog_bar=True)

    def training_epoch_end(self, outputs):
        self.num_outputs = len(outputs)

    def configure_optimizers(self):
        return torch.optim.Adam(self.G.parameters(), lr=2e-3), torch.optim.Adam(self.D.parameters(), lr=2e-3)


def main(root):
    pl.seed_everything(2)
    points = torch.randn(512, 2) * 0.1 + torch.tensor([3.0, -2.0])
    model = ManualGAN()
    trainer = pl.Trainer(default_root_dir=root, max_epochs=15, progress_bar_refresh_rate=0, weights_summary=None,
                         checkpoint_callback=False, logger=False)
    trainer.fit(model, DataLoader(TensorDataset(points), batch_size=32, shuffle=True))
    return trainer, model

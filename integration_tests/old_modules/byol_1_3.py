"""Self-supervision of 2021 with a target network that a callback moves after each update, and a warm-up by hand."""

import copy
import math

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class BYOLMAWeightUpdate(pl.Callback):
    def __init__(self, initial_tau=0.99):
        super().__init__()
        self.initial_tau = initial_tau
        self.current_tau = initial_tau
        self.num_updates = 0

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx):
        self.update_weights(pl_module.online_network, pl_module.target_network)
        self.current_tau = self.update_tau(pl_module, trainer)
        self.num_updates += 1

    def update_tau(self, pl_module, trainer):
        max_steps = len(trainer.train_dataloader) * trainer.max_epochs
        return 1 - (1 - self.initial_tau) * (math.cos(math.pi * pl_module.global_step / max_steps) + 1) / 2

    def update_weights(self, online_net, target_net):
        for (name, online_p), (_, target_p) in zip(online_net.named_parameters(), target_net.named_parameters()):
            target_p.data = self.current_tau * target_p.data + (1 - self.current_tau) * online_p.data


class BYOL(pl.LightningModule):
    def __init__(self, learning_rate=0.05, warmup_steps=10):
        super().__init__()
        self.save_hyperparameters()
        self.online_network = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 16))
        self.target_network = copy.deepcopy(self.online_network)
        for p in self.target_network.parameters():
            p.requires_grad = False
        self.predictor = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
        self.weight_callback = BYOLMAWeightUpdate()
        self.lrs = []

    def on_train_batch_end(self, outputs, batch, batch_idx, dataloader_idx):
        # Add callback for user automatically since it's key to BYOL weight update
        self.weight_callback.on_train_batch_end(self.trainer, self, outputs, batch, batch_idx, dataloader_idx)

    def cosine_similarity(self, a, b):
        return (F.normalize(a, dim=-1) * F.normalize(b, dim=-1)).sum(dim=-1).mean()

    def shared_step(self, batch, batch_idx):
        x, _ = batch
        img_1, img_2 = x + 0.1 * torch.randn_like(x), x + 0.1 * torch.randn_like(x)
        with torch.no_grad():
            z2 = self.target_network(img_2)
        return 1 - self.cosine_similarity(self.predictor(self.online_network(img_1)), z2)

    def training_step(self, batch, batch_idx):
        loss = self.shared_step(batch, batch_idx)
        self.log_dict({'1_2_loss': loss, 'train_loss': loss})
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.hparams.learning_rate, momentum=0.9)

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_idx, optimizer_closure,
                       on_tpu=False, using_native_amp=False, using_lbfgs=False):
        # warm up lr
        if self.trainer.global_step < self.hparams.warmup_steps:
            lr_scale = min(1.0, float(self.trainer.global_step + 1) / self.hparams.warmup_steps)
            for pg in optimizer.param_groups:
                pg['lr'] = lr_scale * self.hparams.learning_rate
        self.lrs.append(optimizer.param_groups[0]['lr'])
        optimizer.step(closure=optimizer_closure)


def main(root):
    x = torch.tensor(load_digits().data / 16.0, dtype=torch.float32)
    loader = DataLoader(TensorDataset(x, torch.zeros(len(x))), batch_size=64, shuffle=True)
    model = BYOL()
    trainer = pl.Trainer(default_root_dir=root, max_epochs=4, progress_bar_refresh_rate=0, weights_summary=None,
                         checkpoint_callback=False, log_every_n_steps=10)
    trainer.fit(model, loader)
    return trainer, model

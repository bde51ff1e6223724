"""Transfer learning of 2021: a finetuning callback with the era's signature, and a learning-rate milestone of the module."""

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from pytorch_lightning.callbacks.finetuning import BaseFinetuning
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class MilestonesFinetuning(BaseFinetuning):
    def __init__(self, milestones=(2, 4)):
        super().__init__()
        self.milestones = milestones
        self.trainable = []

    def freeze_before_training(self, pl_module):
        self.freeze(modules=pl_module.feature_extractor)

    def finetune_function(self, pl_module, epoch, optimizer, opt_idx):
        if epoch == self.milestones[0]:
            self.unfreeze_and_add_param_group(modules=pl_module.feature_extractor[-2:], optimizer=optimizer)
        elif epoch == self.milestones[1]:
            self.unfreeze_and_add_param_group(modules=pl_module.feature_extractor[:-2], optimizer=optimizer)

    def on_train_epoch_end(self, trainer, pl_module, outputs):
        number = sum(p.requires_grad for p in pl_module.feature_extractor.parameters())
        self.trainable.append((trainer.current_epoch, number, len(outputs)))

    def on_epoch_end(self, trainer, pl_module):
        pass


class TransferLearningModel(pl.LightningModule):
    def __init__(self, lr=1e-2):
        super().__init__()
        self.save_hyperparameters()
        self.feature_extractor = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
        self.fc = nn.Linear(32, 10)
        self.train_acc = pl.metrics.Accuracy()

    def forward(self, x):
        return self.fc(self.feature_extractor(x))

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        self.train_acc(logits.softmax(-1), y)
        self.log('train_acc', self.train_acc, prog_bar=True, on_epoch=True, on_step=False)
        return F.cross_entropy(logits, y)

    def validation_step(self, batch, batch_idx):
        x, y = batch
        return {'correct': (self(x).argmax(1) == y).float().mean()}

    def validation_epoch_end(self, outputs):
        self.log('val_acc', torch.stack([x['correct'] for x in outputs]).mean())

    def configure_optimizers(self):
        parameters = filter(lambda p: p.requires_grad, self.parameters())
        optimizer = torch.optim.Adam(parameters, lr=self.hparams.lr)
        scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[4], gamma=0.5)
        return [optimizer], [{'scheduler': scheduler, 'interval': 'epoch'}]


class DigitsDataModule(pl.LightningDataModule):
    def __init__(self, batch_size=64):
        super().__init__()
        self.batch_size = batch_size

    def prepare_data(self):
        load_digits()

    def setup(self, stage=None):
        data = load_digits()
        self.x = torch.tensor(data.data / 16.0, dtype=torch.float32)
        self.y = torch.tensor(data.target)

    def train_dataloader(self):
        return DataLoader(TensorDataset(self.x[:1200], self.y[:1200]), batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self):
        return DataLoader(TensorDataset(self.x[1200:], self.y[1200:]), batch_size=self.batch_size)


def main(root):
    pl.seed_everything(1)
    model, finetuning = TransferLearningModel(), MilestonesFinetuning()
    trainer = pl.Trainer(default_root_dir=root, gpus=None, max_epochs=6, callbacks=[finetuning], progress_bar_refresh_rate=0,
                         weights_summary=None, num_sanity_val_steps=0, logger=False, checkpoint_callback=False)
    trainer.fit(model, datamodule=DigitsDataModule())
    model.finetuning = finetuning
    return trainer, model

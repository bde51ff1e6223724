"""A classifier of mid 2020: everything from `hparams`, dictionaries at epochs' ends, layers made in `setup`."""

import os

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class LitClassifier(pl.LightningModule):
    def __init__(self, hidden_dim=64, learning_rate=1e-2, batch_size=32):
        super().__init__()
        self.save_hyperparameters()
        self.l1 = None
        self.called = []

    def setup(self, stage):
        if self.l1 is None:
            data = load_digits()
            num_classes = len(data.target_names)
            self.l1 = nn.Sequential(nn.Linear(64, self.hparams.hidden_dim), nn.ReLU(),
                                    nn.Linear(self.hparams.hidden_dim, num_classes))
        self.called.append('setup ' + stage)

    def teardown(self, stage):
        self.called.append('teardown ' + stage)

    def forward(self, x):
        return self.l1(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        return {'loss': loss, 'log': {'train_loss': loss}}

    def training_epoch_end(self, outputs):
        mean = torch.stack([x['loss'] for x in outputs]).mean()
        self.called.append('training_epoch_end of %d' % len(outputs))
        return {'log': {'train_epoch_loss': mean}}

    def validation_step(self, batch, batch_idx):
        x, y = batch
        y_hat = self(x)
        return {'val_loss': F.cross_entropy(y_hat, y), 'n_correct_pred': torch.sum(y == y_hat.argmax(1)).item(), 'n_pred': len(y)}

    def validation_epoch_end(self, outputs):
        avg_loss = torch.stack([x['val_loss'] for x in outputs]).mean()
        val_acc = sum([x['n_correct_pred'] for x in outputs]) / sum(x['n_pred'] for x in outputs)
        return {'val_loss': avg_loss, 'progress_bar': {'val_acc': val_acc}, 'log': {'val_loss': avg_loss, 'val_acc': val_acc}}

    def test_step(self, batch, batch_idx):
        x, y = batch
        return {'n_correct_pred': torch.sum(y == self(x).argmax(1)).item(), 'n_pred': len(y)}

    def test_epoch_end(self, outputs):
        test_acc = sum([x['n_correct_pred'] for x in outputs]) / sum(x['n_pred'] for x in outputs)
        return {'log': {'test_acc': test_acc}, 'progress_bar': {'test_acc': test_acc}}

    def on_batch_start(self, batch):
        # skip training for the rest of the second epoch
        if self.current_epoch == 1 and len(batch) and self.trainer.batch_idx == 3:
            return -1

    def on_pre_performance_check(self):
        self.called.append('pre')

    def on_post_performance_check(self):
        self.called.append('post')

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.hparams.learning_rate, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
        return {'optimizer': optimizer, 'lr_scheduler': scheduler, 'monitor': 'val_loss'}

    def _loader(self, part, shuffle=False):
        data = load_digits()
        x = torch.tensor(data.data / 16.0, dtype=torch.float32)[part]
        return DataLoader(TensorDataset(x, torch.tensor(data.target)[part]), batch_size=self.hparams.batch_size, shuffle=shuffle)

    def train_dataloader(self):
        return self._loader(slice(0, 1000), True)

    def val_dataloader(self):
        return self._loader(slice(1000, 1400))

    def test_dataloader(self):
        return self._loader(slice(1400, None))


def main(root):
    model = LitClassifier()
    trainer = pl.Trainer(
        default_root_dir=root,
        max_epochs=6,
        checkpoint_callback=ModelCheckpoint(filepath=os.path.join(root, 'best'), monitor='val_loss', save_top_k=1),
        early_stop_callback=EarlyStopping('val_loss', patience=3),
        progress_bar_refresh_rate=0,
        weights_summary='top',
        num_sanity_val_steps=1,
        row_log_interval=5,
    )
    trainer.fit(model)
    trainer.test(model)
    return trainer, model

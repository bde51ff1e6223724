"""A recurrent language model of late 2020, trained with truncated backpropagation through time."""

import pydoc_data.topics

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Sequences(Dataset):
    def __init__(self, length=64, number=96):
        text = ''.join(pydoc_data.topics.topics.values()).encode('ascii', 'replace')
        self.data = torch.tensor(list(text[:length * number + 1])) % 128
        self.length, self.number = length, number

    def __len__(self):
        return self.number

    def __getitem__(self, i):
        start = i * self.length
        return self.data[start:start + self.length], self.data[start + 1:start + self.length + 1]


class CharLSTM(pl.LightningModule):
    def __init__(self, hidden_size=48, lr=1e-2):
        super().__init__()
        self.save_hyperparameters()
        self.embedding = nn.Embedding(128, 24)
        self.lstm = nn.LSTM(24, self.hparams.hidden_size, batch_first=True)
        self.head = nn.Linear(self.hparams.hidden_size, 128)
        self.seen = []
        self.epoch_losses = []

    def training_step(self, batch, batch_idx, hiddens):
        x, y = batch
        self.seen.append((batch_idx, x.shape[1], hiddens is None, self.global_step))
        out, hiddens = self.lstm(self.embedding(x), hiddens)
        loss = F.cross_entropy(self.head(out).reshape(-1, 128), y.reshape(-1))
        self.log('train_loss', loss, prog_bar=True)
        return {'loss': loss, 'hiddens': hiddens}

    def training_epoch_end(self, training_step_outputs):
        losses = [x['loss'] for x in _flat(training_step_outputs)]
        self.epoch_losses.append((len(losses), torch.stack(losses).mean().item()))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)

    def train_dataloader(self):
        return DataLoader(Sequences(), batch_size=16, shuffle=False)


def _flat(outputs):
    for one in outputs:
        if isinstance(one, list):
            yield from _flat(one)
        else:
            yield one


def main(root):
    pl.seed_everything(3)
    model = CharLSTM()
    trainer = pl.Trainer(default_root_dir=root, max_epochs=3, truncated_bptt_steps=16, progress_bar_refresh_rate=0,
                         weights_summary=None, checkpoint_callback=False, gradient_clip_val=1.0, log_every_n_steps=5)
    trainer.fit(model)
    return trainer, model

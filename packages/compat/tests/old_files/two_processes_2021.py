"""A script as it was written in 2021, for release 1.5, on two processes."""

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.plugins import DDPPlugin
from pytorch_lightning.utilities.distributed import rank_zero_only
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        return self.layer(batch[0]).pow(2).mean()

    def on_train_end(self):
        print(f"rank {rank_zero_only.rank} of {self.trainer.world_size}", flush=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


if __name__ == "__main__":
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        max_epochs=1,
        strategy=DDPPlugin(find_unused_parameters=False),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Net(), DataLoader(TensorDataset(torch.randn(16, 4)), batch_size=4))

"""A script for several ranks: trains with its files below a path or URL, and reports the weights.

python s3_ranks.py ROOT MAX_EPOCHS [--ckpt_path=last] [--strategy=ddp]
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from launching import report
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader

from camshaft.callbacks import CSVLogger, ModelCheckpoint
from camshaft.hooks_core.support.remote_files import join
from camshaft.trainer import Trainer, TrainingModule


class Net(TrainingModule):
    def __init__(self) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 2))

    def training_step(self, batch: Tensor, batch_idx: int) -> Any:
        loss = (self.layers(batch) - torch.rand(1)).pow(2).mean()
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        self.log("score", float((self.current_epoch * 7) % 5), sync_dist=True)

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), 0.05)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("root")
    parser.add_argument("max_epochs", type=int)
    parser.add_argument("--ckpt_path")
    parser.add_argument("--strategy", default="auto")
    options = parser.parse_args()
    torch.manual_seed(1)
    loader = DataLoader(torch.arange(64.0).reshape(16, 4) / 64, batch_size=2, shuffle=True)
    saving = ModelCheckpoint(join(options.root, "checkpoints"), monitor="score", save_top_k=2, save_last=True)
    trainer = Trainer(
        accelerator="cpu",
        strategy=options.strategy,
        max_epochs=options.max_epochs,
        default_root_dir=options.root,
        logger=CSVLogger(options.root, version=options.max_epochs),
        callbacks=[saving],
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module = Net()
    trainer.fit(module, loader, loader, ckpt_path=options.ckpt_path)
    state = {
        name: value.full_tensor() if isinstance(value, DTensor) else value
        for name, value in module.state_dict().items()
    }
    report({name: value.tolist() for name, value in state.items()})


if __name__ == "__main__":
    main()

"""Train a classifier of handwritten digits from a configuration of Hydra, once or for each of several values.

Options are checked against the classes below. Logs, curves and checkpoints lie in the job's folder:

    python examples/recipes/hydra_jobs.py optimizer.learning_rate=0.05
    python examples/recipes/hydra_jobs.py --multirun width=8,32,128 optimizer.name=sgd,adamw
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hydra
import torch
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset, random_split
from torchmetrics.classification import MulticlassAccuracy

from camshaft.callbacks import ModelCheckpoint
from camshaft.trainer import Trainer, TrainingModule, seed_everything


@dataclass
class OptimizerConfig:
    name: str = "adamw"
    learning_rate: float = 3e-3


@dataclass
class Config:
    width: int = 64
    seed: int = 0
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    trainer: dict[str, Any] = field(default_factory=lambda: {"max_epochs": 10, "enable_model_summary": False})


ConfigStore.instance().store(name="digits", node=Config)
OPTIMIZERS = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}


class Digits(TrainingModule):
    def __init__(self, width: int, optimizer: str, learning_rate: float) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))
        self.accuracy = MulticlassAccuracy(num_classes=10, average="micro")

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.accuracy(self.net(batch[0]), batch[1])
        self.log("val_accuracy", self.accuracy)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return OPTIMIZERS[self.hparams.optimizer](self.parameters(), lr=self.hparams.learning_rate)


@hydra.main(version_base="1.3", config_path=None, config_name="digits")
def main(config: Any) -> float:
    folder = Path(HydraConfig.get().runtime.output_dir)
    seed_everything(config.seed)
    pixels, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels))
    train, val = random_split(data, [0.8, 0.2], torch.Generator().manual_seed(0))
    trainer = Trainer(
        callbacks=[ModelCheckpoint(folder / "checkpoints", monitor="val_accuracy", mode="max")],
        default_root_dir=folder,
        report=folder / "report",  # curves of all that is logged
        **OmegaConf.to_container(config.trainer),  # type: ignore[arg-type]
    )
    model = Digits(config.width, config.optimizer.name, config.optimizer.learning_rate)
    trainer.fit(model, DataLoader(train, batch_size=64, shuffle=True), DataLoader(val, batch_size=360))
    [results] = trainer.validate(model, DataLoader(val, batch_size=360), ckpt_path="best", verbose=False)
    print(f"{folder}: validation accuracy {results['val_accuracy']:.1%}")
    return float(results["val_accuracy"])  # what a sweeper that searches maximizes


if __name__ == "__main__":
    main()

"""Train a small convolutional network to read handwritten digits, and report how well it does.

The 1797 digits (8 x 8 pixels) come with scikit-learn, so nothing is downloaded. From the root of the repository:

    python examples/digits.py --output digits_output

The folder then holds the metrics of every epoch (``logs/metrics.csv``), the best model (``best.ckpt``) and a
picture of the run (``report.png``). The command fails when the test accuracy is under ``--min-accuracy``.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassAccuracy

from camshaft.callbacks import CSVLogger, EarlyStopping, ModelCheckpoint, RichProgressBar
from camshaft.trainer import DataModule, Trainer, TrainingModule
from digits_report import write_report

NUM_CLASSES = 10
SPLIT_SEED = 0  # Fixed, so that every --seed is tested on the same digits.

Batch = list[Tensor]  # [images (batch, 1, 8, 8), labels (batch,)]


class DigitsData(DataModule):
    """The digits in three parts with the same share of each digit: 70% train, 10% validation, 20% test."""

    def __init__(self, batch_size: int = 64) -> None:
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage: str) -> None:
        pixels, digits = load_digits(return_X_y=True)
        indices = range(len(digits))
        rest, test = train_test_split(indices, test_size=0.2, stratify=digits, random_state=SPLIT_SEED)
        train, validation = train_test_split(rest, test_size=0.125, stratify=digits[rest], random_state=SPLIT_SEED)
        images = torch.tensor(pixels / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)
        labels = torch.tensor(digits)
        self.train_set = TensorDataset(images[train], labels[train])
        self.validation_set = TensorDataset(images[validation], labels[validation])
        self.test_set = TensorDataset(images[test], labels[test])

    def train_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        return DataLoader(self.train_set, batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        return DataLoader(self.validation_set, batch_size=256)

    def test_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        return DataLoader(self.test_set, batch_size=256)

    def predict_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        return self.test_dataloader()


def randomly_moved(images: Tensor, max_degrees: float = 12.0, max_shift: float = 0.125) -> Tensor:
    """Rotate and shift each image by its own random amount.

    Args:
        images: float images of shape (batch, 1, height, width), with a background of 0.
        max_degrees: largest rotation to either side.
        max_shift: largest shift along each axis, as a share of the image's size (0.125 is one pixel of eight).
    """

    def uniform(limit: float) -> Tensor:
        return (torch.rand(len(images), device=images.device) * 2 - 1) * limit

    angle = uniform(math.radians(max_degrees))
    # affine_grid measures in half images: its coordinates run from -1 to 1.
    shift_x, shift_y = uniform(2 * max_shift), uniform(2 * max_shift)
    row_x = torch.stack([angle.cos(), -angle.sin(), shift_x], dim=1)
    row_y = torch.stack([angle.sin(), angle.cos(), shift_y], dim=1)
    grid = nn.functional.affine_grid(torch.stack([row_x, row_y], dim=1), list(images.shape), align_corners=False)
    return nn.functional.grid_sample(images, grid, align_corners=False)


def convolution(in_channels: int, out_channels: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, kernel_size=3, padding=1, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(),
    )


class DigitClassifier(TrainingModule):
    """Three convolutions and a linear layer, trained with AdamW on a one-cycle learning rate.

    Args:
        max_learning_rate: the peak of the learning rate, which rises and falls once over the whole run.
    """

    def __init__(self, max_learning_rate: float = 3e-3) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.max_learning_rate = max_learning_rate
        self.network = nn.Sequential(
            convolution(1, 16),
            convolution(16, 32),
            nn.MaxPool2d(2),
            convolution(32, 64),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(0.2),
            nn.Linear(64 * 2 * 2, NUM_CLASSES),
        )
        self.train_accuracy = MulticlassAccuracy(NUM_CLASSES, average="micro")
        self.val_accuracy = MulticlassAccuracy(NUM_CLASSES, average="micro")
        self.test_accuracy = MulticlassAccuracy(NUM_CLASSES, average="micro")

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.network(images)
        return logits

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        images, labels = batch
        logits = self(randomly_moved(images))
        loss = nn.functional.cross_entropy(logits, labels)
        self.train_accuracy(logits, labels)
        self.log("train_loss", loss, on_step=True, on_epoch=True, prog_bar=True)
        self.log("train_accuracy", self.train_accuracy, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        images, labels = batch
        logits = self(images)
        self.val_accuracy(logits, labels)
        self.log("val_loss", nn.functional.cross_entropy(logits, labels), prog_bar=True)
        self.log("val_accuracy", self.val_accuracy, prog_bar=True)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        images, labels = batch
        self.test_accuracy(self(images), labels)
        self.log("test_accuracy", self.test_accuracy)

    def predict_step(self, batch: Batch, batch_idx: int) -> Tensor:
        images, _ = batch
        probabilities: Tensor = self(images).softmax(dim=1)
        return probabilities

    def configure_optimizers(self) -> dict[str, Any]:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.max_learning_rate, weight_decay=1e-2)
        num_steps = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, self.max_learning_rate, total_steps=num_steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def run(seed: int, max_epochs: int, output: Path) -> float:
    """Train, test the best model, predict, write the report; return the test accuracy (0 to 1)."""
    torch.manual_seed(seed)
    data = DigitsData()
    model = DigitClassifier()
    checkpoint = ModelCheckpoint(dirpath=output, filename="best", monitor="val_loss", mode="min", save_top_k=1)
    logger = CSVLogger(save_dir=output, name="", version="logs")
    trainer = Trainer(
        max_epochs=max_epochs,
        callbacks=[checkpoint, EarlyStopping(monitor="val_loss", mode="min", patience=20), RichProgressBar()],
        logger=logger,
        default_root_dir=output,
        log_every_n_steps=10,
    )
    trainer.fit(model, datamodule=data)
    test_accuracy = float(trainer.test(model, datamodule=data, ckpt_path="best")[0]["test_accuracy"])
    probabilities = torch.cat(trainer.predict(model, datamodule=data, ckpt_path="best"))

    images, labels = data.test_set.tensors
    metrics_path, report_path = Path(logger.log_dir) / "metrics.csv", output / "report.png"
    write_report(report_path, metrics_path, images.squeeze(1), labels, probabilities)

    print(
        f"\nTrained {trainer.current_epoch} of at most {max_epochs} epochs; tested and predicted with the best model."
    )
    print(f"  test accuracy  {test_accuracy:.2%} of {len(labels)} digits")
    print(f"  best model     {checkpoint.best_model_path}")
    print(f"  metrics        {metrics_path}")
    print(f"  picture        {report_path}")
    print("See every hook of the run you just made:  python -m camshaft.hooks_core show fit")
    return test_accuracy


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small network on handwritten digits.")
    parser.add_argument("--seed", type=int, default=0, help="of the weights, order and augmentation (default: 0)")
    parser.add_argument("--max-epochs", type=int, default=60, help="epochs to train at most (default: 60)")
    parser.add_argument("--output", type=Path, default=Path("digits_output"), help="folder for the results")
    parser.add_argument(
        "--min-accuracy", type=float, default=0.98, help="fail under this test accuracy (default: 0.98)"
    )
    arguments = parser.parse_args()
    if arguments.max_epochs < 1:
        parser.error(f"--max-epochs must be 1 or more, but got {arguments.max_epochs}")
    output = arguments.output.resolve()
    for leftover in ("best.ckpt", "report.png", "logs/metrics.csv"):  # The folder describes one run only.
        (output / leftover).unlink(missing_ok=True)
    output.mkdir(parents=True, exist_ok=True)

    torch.set_num_threads(1)  # So small a network gains nothing from more, and loses much when other programs are busy.
    started = time.perf_counter()
    test_accuracy = run(arguments.seed, arguments.max_epochs, output)
    print(f"It took {time.perf_counter() - started:.1f} s.")
    if test_accuracy < arguments.min_accuracy:
        sys.exit(
            f"error: the test accuracy must be at least {arguments.min_accuracy:.2%}, but got {test_accuracy:.2%}. "
            "Train longer with --max-epochs, or lower --min-accuracy for a short run."
        )


if __name__ == "__main__":
    main()

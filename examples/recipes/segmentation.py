"""Train a small U-Net that finds discs and squares in noisy pictures, and measure it by torchmetrics.

The pictures are made. The best weights, by the mean overlap of prediction and truth, are kept and tested:

    python examples/recipes/segmentation.py --output segmentation_output
"""

from __future__ import annotations

import argparse
from itertools import chain
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import ConfusionMatrix, JaccardIndex

from camshaft.callbacks import ModelCheckpoint
from camshaft.trainer import Trainer, TrainingModule, seed_everything

CLASSES = ("background", "disc", "square")


def make_pictures(number: int, size: int = 32) -> TensorDataset:
    """Return pictures (number, 1, size, size) and the class of each pixel (number, size, size)."""
    rows, columns = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    classes = torch.zeros(number, size, size, dtype=torch.long)
    for label in (1, 2):  # a disc, and a square that may lie over it
        radius, (row, column) = torch.randint(4, 8, (number, 1, 1)), torch.randint(6, size - 6, (2, number, 1, 1))
        down, right = (rows - row).abs(), (columns - column).abs()
        inside = down**2 + right**2 <= radius**2 if label == 1 else torch.maximum(down, right) <= radius
        classes[inside] = label
    return TensorDataset(0.8 * (classes > 0).unsqueeze(1) + 0.4 * torch.randn(number, 1, size, size), classes)


def convolutions(inputs: int, outputs: int) -> nn.Sequential:
    pairs = ((nn.Conv2d(size, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()) for size in (inputs, outputs))
    return nn.Sequential(*chain.from_iterable(pairs))


class UNet(TrainingModule):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        sizes = [width, 2 * width, 4 * width]
        self.down = nn.ModuleList(map(convolutions, [1, *sizes], sizes))
        self.up = nn.ModuleList(convolutions(one + other, one) for one, other in ((sizes[1], sizes[2]), sizes[:2]))
        self.head = nn.Conv2d(width, len(CLASSES), 1)
        self.val_overlap = JaccardIndex(task="multiclass", num_classes=len(CLASSES))
        self.test_overlap = self.val_overlap.clone()
        self.confusion = ConfusionMatrix(task="multiclass", num_classes=len(CLASSES), normalize="true")

    def forward(self, pictures: Tensor) -> Tensor:
        fine = self.down[0](pictures)
        middle = self.down[1](nn.functional.max_pool2d(fine, 2))
        coarse = self.down[2](nn.functional.max_pool2d(middle, 2))
        for layer, skipped in zip(self.up, (middle, fine), strict=True):
            coarse = layer(torch.cat([skipped, nn.functional.interpolate(coarse, scale_factor=2)], dim=1))
        return self.head(coarse)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.val_overlap(self(batch[0]), batch[1])
        self.log("val_overlap", self.val_overlap, prog_bar=True)

    def test_step(self, batch: list[Tensor], batch_idx: int) -> None:
        for metric in (self.test_overlap, self.confusion):
            metric.update(self(batch[0]), batch[1])
        self.log("test_overlap", self.test_overlap)  # a matrix cannot be logged

    def on_test_epoch_end(self) -> None:
        shares = zip(CLASSES, self.confusion.compute().diag(), strict=True)
        self.log_dict({f"test_found_{name}": share for name, share in shares})
        self.confusion.reset()

    def predict_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return self(batch[0]).argmax(dim=1)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def draw(path: Path, rows: dict[str, Tensor]) -> None:
    figure = Figure(figsize=(9, 4.8), layout="constrained")
    grid = figure.subplots(len(rows), 6)
    for line, (name, pictures) in zip(grid, rows.items(), strict=True):
        for axes, picture in zip(line, pictures, strict=False):
            axes.imshow(picture.numpy(), cmap="viridis")
            axes.set(xticks=[], yticks=[])
        line[0].set_ylabel(name)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small U-Net that finds discs and squares.")
    parser.add_argument("--max-epochs", type=int, default=8, help="epochs to train (default: 8)")
    parser.add_argument("--output", type=Path, default=Path("segmentation_output"), help="folder of the run")
    arguments = parser.parse_args()
    seed_everything(0)
    train = DataLoader(make_pictures(1000), batch_size=32, shuffle=True)
    val, test = DataLoader(make_pictures(200), batch_size=50), DataLoader(make_pictures(200), batch_size=50)
    best = ModelCheckpoint(arguments.output / "checkpoints", monitor="val_overlap", mode="max")
    trainer = Trainer(max_epochs=arguments.max_epochs, callbacks=[best], default_root_dir=arguments.output)
    model = UNet()
    trainer.fit(model, train, val)
    results = trainer.test(model, test, ckpt_path="best")
    found = trainer.predict(model, test, ckpt_path="best")[0]
    pictures, truth = next(iter(test))
    draw(arguments.output / "pictures.png", {"picture": pictures[:, 0], "truth": truth, "found": found})
    print(f"picture: {(arguments.output / 'pictures.png').resolve()}")
    print(f"mean overlap with the truth: {results[0]['test_overlap']:.1%}")


if __name__ == "__main__":
    main()

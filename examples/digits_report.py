"""Draw the picture of a run of ``digits.py``: learning curves, confusion matrix, hardest digits."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import SubFigure

NUM_CLASSES = 10
NUM_HARDEST_SHOWN = 8


def write_report(path: Path, metrics_path: Path, images: Tensor, labels: Tensor, probabilities: Tensor) -> None:
    """Write one PNG about a finished run.

    Args:
        path: the PNG to write.
        metrics_path: the CSV logger's file of the run.
        images: the test images, of shape (num_images, height, width).
        labels: the digit that each image shows, of shape (num_images,).
        probabilities: the model's probability of each digit, of shape (num_images, 10).
    """
    import matplotlib

    matplotlib.use("Agg")  # Draws without a screen.
    import matplotlib.pyplot as plt

    predicted = probabilities.argmax(dim=1)
    num_right = int((predicted == labels).sum())

    figure = plt.figure(figsize=(12, 9), layout="constrained")
    figure.suptitle(f"Handwritten digits: {num_right} of {len(labels)} test digits read correctly", fontsize=15)
    (top,), (bottom,) = figure.subfigures(2, 1, squeeze=False, height_ratios=[2.7, 1], hspace=0.04)
    left, right = top.subfigures(1, 2, width_ratios=[1, 1.1], wspace=0.03)
    draw_curves(left, metrics_path)
    draw_confusion(right.subplots(), labels, predicted)
    draw_hardest(bottom, images, labels, probabilities)
    figure.savefig(path, dpi=110, bbox_inches="tight", pad_inches=0.2)
    plt.close(figure)


def read_epochs(metrics_path: Path, column: str) -> tuple[list[int], list[float]]:
    """Return the epochs, counted from 1, in which a column of the metrics file has a value, and the values."""
    with metrics_path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row.get(column)]
    return [int(row["epoch"]) + 1 for row in rows], [float(row[column]) for row in rows]


def draw_curves(figure: SubFigure, metrics_path: Path) -> None:
    """Draw loss and accuracy over the epochs, and mark the epoch whose model was kept."""
    epochs, losses = read_epochs(metrics_path, "val_loss")
    best_epoch = epochs[losses.index(min(losses))]
    loss_axes, accuracy_axes = figure.subplots(2, 1, sharex=True)
    for axes, label, train_column, validation_column, least_range in (
        (loss_axes, "loss", "train_loss_epoch", "val_loss", (0.01, 3.0)),
        (accuracy_axes, "accuracy", "train_accuracy", "val_accuracy", (0.0, 1.0)),
    ):
        axes.plot(*read_epochs(metrics_path, train_column), ".-", label="train (moved digits)")
        axes.plot(*read_epochs(metrics_path, validation_column), ".-", label="validation")
        axes.axvline(best_epoch, color="gray", linestyle="--", linewidth=1, label=f"best model (epoch {best_epoch})")
        axes.update_datalim([(0, value) for value in least_range])  # Readable after a single epoch, too.
        axes.autoscale_view()
        axes.set_ylabel(label)
        axes.locator_params(axis="x", integer=True)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    loss_axes.set_yscale("log")
    loss_axes.set_title("Learning curves")
    accuracy_axes.legend(loc="best")
    accuracy_axes.set_xlabel("epoch")


def draw_confusion(axes: Axes, labels: Tensor, predicted: Tensor) -> None:
    """Draw how often each digit was read as which; zeros are left blank."""
    cells = labels * NUM_CLASSES + predicted
    counts = torch.bincount(cells, minlength=NUM_CLASSES**2).reshape(NUM_CLASSES, NUM_CLASSES)
    axes.imshow(counts.numpy(), cmap="Blues")
    for true_digit, read_digit in counts.nonzero().tolist():
        count = int(counts[true_digit, read_digit])
        color = "white" if count > counts.max() / 2 else "black"
        axes.text(read_digit, true_digit, str(count), ha="center", va="center", color=color)
    axes.set_xticks(range(NUM_CLASSES))
    axes.set_yticks(range(NUM_CLASSES))
    axes.set_xlabel("predicted digit")
    axes.set_ylabel("true digit")
    axes.set_title("Confusion matrix of the test digits")


def draw_hardest(figure: SubFigure, images: Tensor, labels: Tensor, probabilities: Tensor) -> None:
    """Draw the digits to whose true label the model gave the least probability, misread ones first."""
    predicted = probabilities.argmax(dim=1)
    misread = predicted != labels
    of_true_label = probabilities.gather(1, labels[:, None]).flatten()
    hardest = (of_true_label - misread.float()).argsort()[:NUM_HARDEST_SHOWN].tolist()
    figure.suptitle(f"The hardest test digits (misread, in red: {int(misread.sum())} of {len(labels)})")
    for axes, image_idx in zip(figure.subplots(1, len(hardest)), hardest, strict=True):
        axes.imshow(images[image_idx].numpy(), cmap="gray_r")
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines[:].set_color("lightgray")
        read, sureness = predicted[image_idx], probabilities[image_idx].max()
        axes.set_title(
            f"true {labels[image_idx]}, read {read}", color="C3" if misread[image_idx] else "black", fontsize=11
        )
        axes.set_xlabel(f"{sureness:.0%} sure")

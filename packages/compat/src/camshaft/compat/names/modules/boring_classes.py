"""The smallest modules, data modules and datasets, which tests and reports of faults are written with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from camshaft.compat.data_module import DataModule
from camshaft.compat.module import TrainingModule

_WIDTH = 32
_LENGTH = 64


class RandomDataset(Dataset[Tensor]):
    """Vectors of normally distributed numbers.

    Args:
        size: The length of each vector.
        length: The number of vectors.
    """

    def __init__(self, size: int, length: int) -> None:
        self.len = length
        self.data = torch.randn(length, size)

    def __getitem__(self, index: int) -> Tensor:
        """Return a vector."""
        return self.data[index]

    def __len__(self) -> int:
        return self.len


class RandomIterableDataset(IterableDataset[Tensor]):
    """Random vectors, made as they are read, in a dataset without a length.

    Args:
        size: The length of each vector.
        count: The number of vectors.
    """

    def __init__(self, size: int, count: int) -> None:
        self.count = count
        self.size = size

    def __iter__(self) -> Iterator[Tensor]:
        return (torch.randn(self.size) for _ in range(self.count))


class BoringModel(TrainingModule):
    """A linear layer from 32 to 2 numbers, with all steps and loaders."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(_WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output."""
        output: Tensor = self.layer(x)
        return output

    def loss(self, preds: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return the mean squared error, from ones by default."""
        return nn.functional.mse_loss(preds, torch.ones_like(preds) if labels is None else labels)

    def step(self, batch: Any) -> Tensor:
        """Return the loss of a batch."""
        return self.loss(self(batch))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Return the loss as "loss"."""
        return {"loss": self.step(batch)}

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        """Return the loss as "x"."""
        return {"x": self.step(batch)}

    def test_step(self, batch: Any, batch_idx: int) -> Any:
        """Return the loss as "y"."""
        return {"y": self.step(batch)}

    def configure_optimizers(self) -> Any:
        """Return SGD, whose learning rate is a tenth after each epoch."""
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        return [optimizer], [StepLR(optimizer, step_size=1)]

    def train_dataloader(self) -> Any:
        """Return 64 batches of one sample; likewise the loaders of the other stages."""
        return DataLoader(RandomDataset(_WIDTH, _LENGTH))

    val_dataloader = test_dataloader = predict_dataloader = train_dataloader


class ManualOptimBoringModel(BoringModel):
    """`BoringModel` with manual optimization."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Make a step, and return the loss."""
        optimizer: Any = self.optimizers()
        loss = self.step(batch)
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        return loss


class DemoModel(TrainingModule):
    """A linear layer whose outputs' sum is the loss.

    Args:
        out_dim: The number of outputs.
        learning_rate: That of Adam.
    """

    def __init__(self, out_dim: int = 10, learning_rate: float = 0.02) -> None:
        super().__init__()
        self.l1 = nn.Linear(_WIDTH, out_dim)
        self.learning_rate = learning_rate

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs, those below 0 as 0."""
        return torch.relu(self.l1(x.view(x.size(0), -1)))

    def training_step(self, batch: Any, batch_nb: int) -> Any:
        """Return the sum of the outputs."""
        return self(batch).sum()

    def configure_optimizers(self) -> Any:
        """Return Adam."""
        return torch.optim.Adam(self.parameters(), lr=self.learning_rate)


def _loader_of(part: str) -> Callable[[Any], Any]:
    def dataloader(self: Any) -> Any:
        return DataLoader(getattr(self, f"random_{part}"))

    dataloader.__doc__ = f"Return a loader of `random_{part}`."
    return dataloader


class BoringDataModule(DataModule):
    """64 random vectors of 32 numbers for each of training, validation, test and prediction."""

    def __init__(self) -> None:
        super().__init__()
        self.random_full = RandomDataset(_WIDTH, 4 * _LENGTH)

    def setup(self, stage: str | None = None) -> None:
        """Divide the vectors."""
        for part, name in enumerate(("train", "val", "test", "predict")):
            setattr(self, f"random_{name}", Subset(self.random_full, range(part * _LENGTH, (part + 1) * _LENGTH)))

    train_dataloader = _loader_of("train")
    val_dataloader = _loader_of("val")
    test_dataloader = _loader_of("test")
    predict_dataloader = _loader_of("predict")

"""The smallest modules, data modules and datasets, which tests and reports of faults are written with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
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


class RandomDictDataset(Dataset[dict[str, Tensor]]):
    """Two vectors for each sample: "a" is random, "b" is "a" plus 2.

    Args:
        size: The length of each vector.
        length: The number of samples.
    """

    def __init__(self, size: int, length: int) -> None:
        self.len = length
        self.data = torch.randn(length, size)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """Return the two vectors."""
        return {"a": self.data[index], "b": self.data[index] + 2}

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


class RandomIterableDatasetWithLen(RandomIterableDataset):
    """Random vectors, made as they are read, in a dataset with a length."""

    def __len__(self) -> int:
        return self.count


def _loader() -> DataLoader[Tensor]:
    return DataLoader(RandomDataset(_WIDTH, _LENGTH))


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
        """Return 64 batches of one sample."""
        return _loader()

    def val_dataloader(self) -> Any:
        """Return 64 batches of one sample."""
        return _loader()

    def test_dataloader(self) -> Any:
        """Return 64 batches of one sample."""
        return _loader()

    def predict_dataloader(self) -> Any:
        """Return 64 batches of one sample."""
        return _loader()


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


class _Stages(DataModule):
    """Base of the data modules: a loader, or several, of the data that `setup` made for a stage."""

    def __init__(self) -> None:
        super().__init__()
        self._data: dict[str, Any] = {}

    def _take(self, data: Mapping[str, Any], stage: str | None) -> None:
        wanted = {None: tuple(data), "fit": ("train", "val"), "validate": ("val",)}.get(stage, (stage,))
        for name in wanted:
            self._data[str(name)] = data[str(name)]
            setattr(self, f"random_{name}", data[str(name)])

    def _load(self, name: str) -> Any:
        data = self._data[name]
        return [DataLoader(one) for one in data] if isinstance(data, list) else DataLoader(data)

    def train_dataloader(self) -> Any:
        """Return a loader of the training data."""
        return self._load("train")

    def val_dataloader(self) -> Any:
        """Return a loader of the validation data."""
        return self._load("val")

    def test_dataloader(self) -> Any:
        """Return a loader of the test data."""
        return self._load("test")

    def predict_dataloader(self) -> Any:
        """Return a loader of the data to predict on."""
        return self._load("predict")


class BoringDataModule(_Stages):
    """64 random vectors of 32 numbers for each of training, validation, test and prediction."""

    def __init__(self) -> None:
        super().__init__()
        self.random_full = RandomDataset(_WIDTH, 4 * _LENGTH)

    def setup(self, stage: str | None = None) -> None:
        """Divide the vectors."""
        parts = {
            name: Subset(self.random_full, range(part * _LENGTH, (part + 1) * _LENGTH))
            for part, name in enumerate(("train", "val", "test", "predict"))
        }
        self._take(parts, stage)


class BoringDataModuleNoLen(_Stages):
    """Random vectors of 32 numbers in datasets without a length."""

    def setup(self, stage: str | None = None) -> None:
        """Make the datasets."""
        counts = {"train": 512, "val": 128, "test": 256, "predict": 64}
        self._take({name: RandomIterableDataset(_WIDTH, count) for name, count in counts.items()}, stage)


class IterableBoringDataModule(_Stages):
    """Two loaders for each stage, of vectors of 4 numbers: a dataset with a length, and one without."""

    def setup(self, stage: str | None = None) -> None:
        """Make the datasets."""
        counts = {"train": 16, "val": 32, "test": 64, "predict": 128}
        data = {name: [RandomDataset(4, count), RandomIterableDataset(4, count)] for name, count in counts.items()}
        self._take(data, stage)

    def train_dataloader(self) -> Iterable[Any]:
        """Return the two loaders."""
        loaders: Iterable[Any] = self._load("train")
        return loaders

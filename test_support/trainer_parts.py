"""A small regression, as a user would write it, and trainers that write where a test says."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from camshaft.trainer import DataModule, Trainer, TrainingModule

NO_VALIDATION = "ignore:There is a `validation_step` but no validation loader"
"""For `pytest.mark.filterwarnings`: that fit leaves validation out is meant where no loader is passed for it."""


def dataset(num_samples: int = 16) -> TensorDataset:
    """At most 64 samples, always the same ones."""
    inputs = torch.randn(64, 3, generator=torch.Generator().manual_seed(7))[:num_samples]
    return TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))


def loader(num_batches: int = 4, *, shuffle: bool = False) -> DataLoader[Any]:
    """Batches of four samples."""
    return DataLoader(dataset(4 * num_batches), batch_size=4, shuffle=shuffle)


class Regression(TrainingModule):
    """A line with dropout, so that its training draws random numbers."""

    def __init__(self, learning_rate: float = 0.1, dropout: float = 0.0) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.dropout = nn.Dropout(dropout)
        self.layer = nn.Linear(3, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(self.dropout(inputs))
        return outputs

    def loss(self, batch: list[Tensor]) -> Tensor:
        inputs, targets = batch
        return nn.functional.mse_loss(self(inputs), targets)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch), prog_bar=True)

    def test_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("test_loss", self.loss(batch))

    def predict_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        outputs: Tensor = self(batch[0])
        return outputs

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.hparams.learning_rate)


class NormedRegression(Regression):
    """Has batch normalisation and dropout: training changes buffers and draws random numbers."""

    def __init__(self) -> None:
        super().__init__(dropout=0.2)
        self.norm = nn.BatchNorm1d(3)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(self.dropout(self.norm(inputs)))
        return outputs


class Twins(TrainingModule):
    """Two layers, an optimizer each."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 1), nn.Linear(3, 1)

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in (self.first, self.second)]

    def loss(self, batch: list[Tensor]) -> Tensor:
        inputs, targets = batch
        return nn.functional.mse_loss(self.first(inputs) + self.second(inputs), targets)


class RegressionData(DataModule):
    """Four loaders for it, and a list of what was called."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def prepare_data(self) -> None:
        self.calls.append("prepare_data")

    def setup(self, stage: str) -> None:
        self.calls.append(f"setup {stage}")

    def teardown(self, stage: str) -> None:
        self.calls.append(f"teardown {stage}")

    def train_dataloader(self) -> Any:
        return loader(4)

    def val_dataloader(self) -> Any:
        return loader(2)

    def test_dataloader(self) -> Any:
        return loader(3)

    def predict_dataloader(self) -> Any:
        return loader(1)


class ListLogger:
    """A logger of somebody else's: it shares no class with camshaft, and keeps what it is told."""

    name = "list"
    version = 0
    save_dir = None
    log_dir = None
    experiment = None

    def __init__(self) -> None:
        self.rows: list[tuple[int | None, dict[str, float]]] = []
        self.hparams: list[dict[str, Any]] = []
        self.statuses: list[str] = []
        self.num_saves = 0

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.rows.append((step, dict(metrics)))

    def log_hyperparams(self, params: dict[str, Any]) -> None:
        self.hparams.append(dict(params))

    def save(self) -> None:
        self.num_saves += 1

    def finalize(self, status: str) -> None:
        self.statuses.append(status)


def quiet_trainer(root: Path | str, **arguments: Any) -> Trainer:
    """A trainer without logger, checkpoints and progress bar, unless they are asked for."""
    defaults = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "max_epochs": 1}
    return Trainer(default_root_dir=root, **{**defaults, **arguments})


def weights(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def assert_same(actual: Any, expected: Any, where: str = "") -> None:
    """Equal to the bit, in any nesting."""
    if isinstance(expected, Tensor):
        assert isinstance(actual, Tensor) and torch.equal(actual, expected), where
    elif isinstance(expected, dict):
        assert actual.keys() == expected.keys(), where
        for key in expected:
            assert_same(actual[key], expected[key], f"{where}[{key!r}]")
    elif isinstance(expected, list | tuple):
        assert len(actual) == len(expected), where
        for idx, item in enumerate(expected):
            assert_same(actual[idx], item, f"{where}[{idx}]")
    else:
        assert actual == expected, where


def own_frames() -> list[str]:
    """The functions of camshaft on the caller's stack, the innermost first."""
    names = []
    frame = sys._getframe(1)
    while frame is not None:
        filename = frame.f_code.co_filename
        if filename.startswith("<camshaft") or "/camshaft/" in filename.replace("\\", "/"):
            names.append(f"{Path(filename).name}:{frame.f_code.co_name}")
        frame = frame.f_back  # type: ignore[assignment]
    return names


def files_below(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())

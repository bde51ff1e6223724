"""Adapt a trained network to turned pictures by LoRA: train, save and load two thin matrices for each of its layers.

The network learns handwritten digits that are upright. Then all of its weights are frozen, and each weight matrix gets
a product of two thin ones added, by torch's parametrizations; only these are trained, on digits that lie on their side.

    python examples/recipes/lora.py --output lora_output
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization
from torch.utils.data import DataLoader, TensorDataset, random_split
from torchmetrics.classification import MulticlassAccuracy

from camshaft.callbacks import ModelCheckpoint
from camshaft.trainer import Trainer, TrainingModule, seed_everything


class Digits(TrainingModule):
    def __init__(self, lr: float = 3e-3) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.lr = lr
        self.net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
        self.accuracy = MulticlassAccuracy(num_classes=10, average="micro")

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def test_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.accuracy(self.net(batch[0]), batch[1])
        self.log("accuracy", self.accuracy)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        trained = [parameter for parameter in self.parameters() if parameter.requires_grad]
        return torch.optim.Adam(trained, lr=self.lr)


class Added(nn.Module):
    """A weight matrix with a product of two thin ones added, which is zero at first."""

    def __init__(self, weight: Tensor, rank: int) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.randn(rank, weight.shape[1]) / rank)
        self.up = nn.Parameter(torch.zeros(weight.shape[0], rank))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.up @ self.down


class Adapted(Digits):
    """The digits' network with frozen weights and adapters.

    Args:
        base: The checkpoint of the network; this module's own hold the adapters alone.
        rank: The rank of what is added to each weight matrix.
    """

    def __init__(self, base: str, rank: int = 4, lr: float = 1e-2) -> None:
        super().__init__(lr)
        self.save_hyperparameters()
        self.strict_loading = False  # a checkpoint of adapters lacks the frozen weights
        self.load_state_dict(Digits.load_from_checkpoint(base).state_dict())
        self.requires_grad_(False)
        for layer in self.net:
            if isinstance(layer, nn.Linear):
                register_parametrization(layer, "weight", Added(layer.weight, rank))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        trained = {name for name, parameter in self.named_parameters() if parameter.requires_grad}
        checkpoint["state_dict"] = {key: one for key, one in checkpoint["state_dict"].items() if key in trained}


def main() -> None:
    parser = argparse.ArgumentParser(description="Adapt a trained network to turned pictures by LoRA.")
    parser.add_argument("--max-epochs", type=int, default=20, help="epochs to train and to adapt (default: 20)")
    parser.add_argument("--output", type=Path, default=Path("lora_output"), help="folder of the checkpoints")
    arguments = parser.parse_args()
    seed_everything(0)
    pixels, labels = load_digits(return_X_y=True)
    upright, labels = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels)
    turned = upright.view(-1, 8, 8).rot90(dims=(1, 2)).flatten(1)

    def split(pictures: Tensor) -> list[DataLoader[Any]]:
        parts = random_split(TensorDataset(pictures, labels), [0.8, 0.2], torch.Generator().manual_seed(0))
        return [DataLoader(part, batch_size=32, shuffle=idx == 0) for idx, part in enumerate(parts)]

    def fit(model: TrainingModule, loader: DataLoader[Any], name: str) -> str:
        saving = ModelCheckpoint(arguments.output / name, save_weights_only=True)
        Trainer(max_epochs=arguments.max_epochs, callbacks=[saving], logger=False).fit(model, loader)
        return saving.best_model_path

    (upright_train, upright_test), (turned_train, turned_test) = split(upright), split(turned)
    base = fit(Digits(), upright_train, "base")
    adapter = fit(Adapted(base), turned_train, "adapter")

    models = {"base": Digits.load_from_checkpoint(base), "adapted": Adapted.load_from_checkpoint(adapter)}
    tester = Trainer(logger=False, enable_progress_bar=False)
    results = {
        f"{name}, {kind}": tester.test(model, loader, verbose=False)[0]["accuracy"]
        for name, model in models.items()
        for kind, loader in (("upright", upright_test), ("turned", turned_test))
    }
    for name, accuracy in results.items():
        print(f"accuracy, {name}: {accuracy:.1%}")
    sizes = [Path(path).stat().st_size for path in (base, adapter)]
    print(f"the adapter's file has {sizes[1] / sizes[0]:.0%} of the bytes of the base's")


if __name__ == "__main__":
    main()

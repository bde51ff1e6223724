"""Adapt a trained network to turned pictures by LoRA of peft: train, save, load and merge thin matrices of its layers.

The network learns handwritten digits that are upright. Then peft freezes its weights and adds a product of two thin
matrices to each; only these are trained, on digits that lie on their side, and only these are in checkpoints.

    python examples/recipes/lora.py --output lora_output
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from sklearn.datasets import load_digits
from torch import Tensor, nn
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


class Adapted(Digits):
    """The digits' network with frozen weights and adapters.

    Args:
        base: The checkpoint of the network; this module's own hold the adapters alone.
        rank: The rank of what is added to each weight matrix.
    """

    def __init__(self, base: str, rank: int = 4, lr: float = 1e-2) -> None:
        super().__init__(lr)
        self.save_hyperparameters()
        self.load_state_dict(Digits.load_from_checkpoint(base).state_dict())
        layers = [name for name, layer in self.net.named_modules() if isinstance(layer, nn.Linear)]
        self.net = get_peft_model(self.net, LoraConfig(r=rank, target_modules=layers))

    def merged(self) -> Digits:
        """Return the network with what was added to its weights, which needs peft no longer."""
        plain = Digits()
        plain.net = self.net.merge_and_unload()  # type: ignore[operator]
        return plain


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
        trainer = Trainer(
            max_epochs=arguments.max_epochs,
            callbacks=saving,
            logger=False,
            save_only="trainable",  # of the base all, of the adapted network the adapters
        )
        trainer.fit(model, loader)
        return saving.best_model_path

    (upright_train, upright_test), (turned_train, turned_test) = split(upright), split(turned)
    base = fit(Digits(), upright_train, "base")
    adapter = fit(Adapted(base), turned_train, "adapter")

    models = {"base": Digits.load_from_checkpoint(base), "adapted": Adapted.load_from_checkpoint(adapter)}
    models["merged"] = Adapted.load_from_checkpoint(adapter).merged()
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

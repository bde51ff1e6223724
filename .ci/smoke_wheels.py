"""Checks installed wheels from outside the source tree: python -I smoke_wheels.py camshaft.hooks_core ..."""

from __future__ import annotations

import importlib
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path


def check_installed(module_names: list[str]) -> None:
    """Every package is imported from site-packages, typed, licensed, and none of them owns the namespace."""
    for name in module_names:
        module = importlib.import_module(name)
        folder = Path(str(module.__file__)).parent
        assert "site-packages" in folder.parts, f"{name} was imported from {folder}."
        assert (folder / "py.typed").is_file(), f"{name} ships no py.typed."
        metadata = distribution(name.replace(".", "-").replace("_", "-")).metadata
        assert metadata["License-Expression"] == "Apache-2.0", f"{name} declares no licence."
    namespace = importlib.import_module("camshaft")
    assert getattr(namespace, "__file__", None) is None, f"{namespace.__file__} hides the other packages."


def check_command_line() -> None:
    command = [sys.executable, "-I", "-m", "camshaft.hooks_core", "list"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "on_train_batch_start" in listed, f"`list` does not name on_train_batch_start:\n{listed}"


def check_fit() -> None:
    """One epoch of a linear regression changes the weights and lowers the loss."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    from camshaft.trainer import Trainer, TrainingModule

    class Regression(TrainingModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3, 1)

        def training_step(self, batch, batch_idx):  # type: ignore[no-untyped-def]
            inputs, targets = batch
            return torch.nn.functional.mse_loss(self.layer(inputs), targets)

        def configure_optimizers(self):  # type: ignore[no-untyped-def]
            return torch.optim.SGD(self.parameters(), lr=0.1)

    torch.manual_seed(0)
    inputs = torch.randn(64, 3)
    data = TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))
    module = Regression()
    loss_before = module.training_step(data[:], 0).item()
    Trainer(max_epochs=1, barebones=True).fit(module, DataLoader(data, batch_size=8))
    loss_after = module.training_step(data[:], 0).item()
    assert loss_after < loss_before / 2, f"The loss went from {loss_before} to {loss_after}."


if __name__ == "__main__":
    check_installed(sys.argv[1:])
    check_command_line()
    check_fit()
    print(f"{len(sys.argv) - 1} installed packages work together.")

"""Fits without an optimizer: under the import names batches are differentiated, counted and saved as in Lightning."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

lightning = pytest.importorskip("lightning.pytorch", reason="compares with Lightning")
compat = pytest.importorskip("camshaft.compat")

from camshaft.compat.names.finder import counterpart_of, load  # noqa: E402


def named(framework: Any, place: str, name: str) -> Any:
    if framework is lightning:
        return getattr(getattr(lightning, place), name)
    return load(counterpart_of(place, name) or "")


def run(framework: Any, directory: Path, has_loss: bool, **settings: Any) -> Any:
    """The order of a fit's hooks with the count of steps, its files and rows, and the gradient that is left."""
    base: Any = getattr(framework, "LightningModule", None) or framework.TrainingModule
    calls: list[tuple[str, int]] = []

    class Module(base):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = self.layer(batch).mean()
            self.log("loss", loss)
            return loss if has_loss else None

        def on_after_backward(self) -> None:
            calls.append(("backward", self.global_step))

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            calls.append(("batch", self.global_step))

        def optimizer_step(self, *arguments: Any, **keywords: Any) -> None:
            calls.append(("step", self.global_step))
            super().optimizer_step(*arguments, **keywords)

        def configure_optimizers(self) -> None:
            return None

    torch.manual_seed(0)
    saving = named(framework, "callbacks", "ModelCheckpoint")(
        directory / "saved", every_n_train_steps=2, save_top_k=-1, filename="{step}"
    )
    trainer = framework.Trainer(
        accelerator="cpu",
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[saving],
        logger=named(framework, "loggers", "CSVLogger")(directory, name="", version="rows"),
        log_every_n_steps=2,
        **settings,
    )
    module = Module()
    trainer.fit(module, DataLoader(torch.arange(6.0)[:, None]))
    with (directory / "rows" / "metrics.csv").open() as file:
        rows = [(row["step"], row["loss"]) for row in csv.DictReader(file)]
    files = sorted(path.name for path in (directory / "saved").iterdir())
    return calls, trainer.global_step, files, rows, module.layer.bias.grad


@pytest.mark.parametrize("has_loss", [True, False])
@pytest.mark.parametrize(
    "settings",
    [{"max_epochs": 2}, {"max_steps": 7, "max_epochs": -1}, {"max_epochs": 2, "accumulate_grad_batches": 2}],
    ids=str,
)
@pytest.mark.filterwarnings("ignore")
def test_batches_are_counted_and_saved(settings: dict[str, Any], has_loss: bool, tmp_path: Path) -> None:
    own, theirs = (
        run(framework, tmp_path / framework.__name__, has_loss, **settings) for framework in (compat, lightning)
    )
    assert own == theirs
    assert own[1] >= 6 and len(own[2]) == own[1] // 2

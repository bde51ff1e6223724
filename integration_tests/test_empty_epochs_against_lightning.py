"""Epochs in which a stream gives no batch, as an agent without a finished episode: as in Lightning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

lightning = pytest.importorskip("lightning.pytorch", reason="compares with Lightning")
compat = pytest.importorskip("camshaft.compat")

QUIET = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}


class Stream(IterableDataset[torch.Tensor]):
    def __init__(self, counts: list[int]) -> None:
        self.counts = iter(counts)

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(torch.ones(next(self.counts), 1))


def run(framework: Any, counts: list[int], **limits: Any) -> Any:
    """The order of a fit's hooks, its counters, learning rate and weight."""
    base: Any = getattr(framework, "LightningModule", None) or framework.TrainingModule
    calls: list[tuple[str, int, int]] = []

    class Module(base):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.layer(batch).mean()

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("loss", self.layer(batch).mean())

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), 1.0)
            stepped = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max", 0.3, patience=0)
            return [optimizer], [stepped, {"scheduler": plateau, "monitor": "loss", "strict": False}]

    def noted(name: str) -> Any:
        return lambda self: calls.append((name, self.current_epoch, self.global_step))

    for name in ("on_train_epoch_start", "on_train_epoch_end", "on_validation_start", "on_train_end"):
        setattr(Module, name, noted(name))
    torch.manual_seed(0)
    module, trainer = Module(), framework.Trainer(accelerator="cpu", **QUIET, **limits)
    trainer.fit(module, DataLoader(Stream(counts)), DataLoader(torch.ones(1, 1)))
    rate = trainer.optimizers[0].param_groups[0]["lr"]
    return calls, trainer.current_epoch, trainer.global_step, rate, module.layer.weight.item()


@pytest.mark.parametrize("counts", [[2, 0, 2], [0, 2, 2], [2, 2, 0], [0, 0, 0]])
@pytest.mark.filterwarnings("ignore")
def test_an_empty_epoch_is_that_of_lightning(counts: list[int]) -> None:
    assert run(compat, counts, max_epochs=3) == run(lightning, counts, max_epochs=3)


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
def test_an_empty_epoch_is_a_warning_and_an_error_where_none_need_be_the_last() -> None:
    with pytest.warns(UserWarning, match=r"The training loader \(DataLoader\) gave no batches in epoch 1"):
        run(compat, [1, 0], max_epochs=2)
    with pytest.raises(RuntimeError, match="`train loader` must give batches in every epoch, but got none in epoch 1"):
        run(compat, [1, 0], max_steps=9)

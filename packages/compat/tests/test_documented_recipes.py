"""The recipes of the document of 0.8, as it has them but for what it leaves out ("...") and two slips of the pen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from compat_parts import Regression, quiet_trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader
from trainer_parts import ListLogger, assert_same, dataset, loader, weights

from camshaft.compat import TrainingModule


class CustomBatch:
    def __init__(self, rows: list[tuple[Tensor, Tensor]]) -> None:
        self.samples = torch.stack([sample for sample, _ in rows])
        self.targets = torch.stack([target for _, target in rows])


class WithCustomBatches(Regression):
    hook_era = "0.8"

    def __init__(self) -> None:
        super().__init__()
        self.transferred: list[tuple[type, torch.device]] = []

    def transfer_batch_to_device(self, batch: Any, device: Any) -> Any:  # type: ignore[override]
        self.transferred.append((type(batch), device))
        if isinstance(batch, CustomBatch):
            # move all tensors in your custom data structure to the device
            batch.samples = batch.samples.to(device)
            batch.targets = batch.targets.to(device)
        else:
            batch = super().transfer_batch_to_device(batch, device)
        return batch

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        assert isinstance(batch, CustomBatch)
        return {"loss": nn.functional.mse_loss(self(batch.samples), batch.targets)}


def test_batches_of_a_structure_of_ones_own_are_transferred_by_the_module(tmp_path: Path) -> None:
    module, plain = WithCustomBatches(), Regression()
    plain.load_state_dict(module.state_dict())
    batches = DataLoader(dataset(16), batch_size=4, collate_fn=CustomBatch)
    quiet_trainer(tmp_path, num_sanity_val_steps=0).fit(module, batches, loader(1))
    quiet_trainer(tmp_path, num_sanity_val_steps=0).fit(plain, loader(4), loader(1))
    cpu = torch.device("cpu")
    assert module.transferred == [(CustomBatch, cpu)] * 4 + [(list, cpu)]
    assert_same(weights(module), weights(plain))


class LitModel(TrainingModule):
    hook_era = "0.8"

    def __init__(self, logger_of_test: ListLogger) -> None:
        super().__init__()
        self.l1: Any = None
        self.calls: list[str] = []
        self.logger_of_test = logger_of_test

    def prepare_data(self) -> None:
        self.calls.append("prepare_data")

    def setup(self, stage: str) -> None:
        self.calls.append(f"setup {stage}")
        num_classes = dataset()[0][1].numel()
        self.l1 = nn.Linear(3, num_classes)

    def teardown(self, stage: str) -> None:
        self.calls.append(f"teardown {stage}")

    def on_sanity_check_start(self) -> None:
        self.calls.append("on_sanity_check_start")

    def on_train_start(self) -> None:
        self.calls.append("on_train_start")

    def on_train_end(self) -> None:
        self.calls.append(f"on_train_end, logger {self.logger_of_test.statuses or 'open'}")

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        inputs, targets = batch
        return {"loss": nn.functional.mse_loss(self.l1(inputs), targets)}

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        return {"val_loss": self.training_step(batch, batch_idx)["loss"]}

    test_step = validation_step

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_a_model_is_built_in_setup_from_its_data(tmp_path: Path) -> None:
    logger = ListLogger()
    module = LitModel(logger)
    trainer = quiet_trainer(tmp_path, logger=logger, max_epochs=3)
    trainer.fit(module, loader(4), loader(1))
    assert module.calls == [
        "prepare_data",
        "setup fit",
        "on_train_start",
        "on_sanity_check_start",
        "on_train_end, logger open",
        "teardown fit",
    ]
    assert logger.statuses and module.l1.out_features == 1
    expected, module.calls = (dataset(16).tensors[1] ** 2).mean(), []
    with torch.no_grad():
        inputs, targets = dataset(16).tensors
        assert nn.functional.mse_loss(module.l1(inputs), targets) < expected / 2
    trainer.test(module, loader(1))
    assert module.calls == ["prepare_data", "setup test", "teardown test"]

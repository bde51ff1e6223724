"""Metrics of torchmetrics that are logged through a trainer equal those computed by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from trainer_parts import ListLogger, quiet_trainer

torchmetrics = pytest.importorskip("torchmetrics")
classification = pytest.importorskip("torchmetrics.classification")

from camshaft.trainer import TrainingModule  # noqa: E402


def samples(seed: int, num_samples: int = 22) -> DataLoader[Any]:
    """Batches of 5, 5, 5, 5 and 2 samples."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(num_samples, 4, generator=generator)
    return DataLoader(TensorDataset(inputs, torch.randint(3, (num_samples,), generator=generator)), batch_size=5)


class Classifier(TrainingModule):
    """Logs an accuracy, and a collection, in each stage; the learning rate of 0 keeps its outputs as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.accuracy = nn.ModuleDict(
            {stage: classification.MulticlassAccuracy(3, average="micro") for stage in ("fit", "val", "test")}
        )
        recall_and_f1 = [classification.MulticlassRecall(3), classification.MulticlassF1Score(3)]
        self.collection = torchmetrics.MetricCollection(recall_and_f1, prefix="val_")

    def step(self, stage: str, batch: Any) -> Tensor:
        logits: Tensor = self.layer(batch[0])
        self.accuracy[stage](logits, batch[1])
        in_fit = stage == "fit"
        self.log(f"{stage}_accuracy", self.accuracy[stage], on_step=in_fit, on_epoch=True)
        return logits

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return nn.functional.cross_entropy(self.step("fit", batch), batch[1])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.collection.update(self.step("val", batch), batch[1])
        self.log_dict(self.collection)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.step("test", batch)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.0)


def by_hand(module: Classifier, metric: Any, batches: DataLoader[Any]) -> float:
    metric.reset()
    with torch.no_grad():
        for inputs, labels in batches:
            metric.update(module.layer(inputs), labels)
    return float(metric.compute())


def accuracy() -> Any:
    return classification.MulticlassAccuracy(3, average="micro")


def test_in_training_validation_and_test_they_equal_those_by_hand(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, logger = Classifier(), ListLogger()
    trainer = quiet_trainer(tmp_path, max_epochs=2, logger=logger, log_every_n_steps=1)
    trainer.fit(module, samples(1), samples(2))

    metrics = trainer.callback_metrics
    assert float(metrics["fit_accuracy_epoch"]) == by_hand(module, accuracy(), samples(1))
    assert float(metrics["val_accuracy"]) == by_hand(module, accuracy(), samples(2))
    recall, f1 = classification.MulticlassRecall(3), classification.MulticlassF1Score(3)
    assert float(metrics["val_MulticlassRecall"]) == by_hand(module, recall, samples(2))
    assert float(metrics["val_MulticlassF1Score"]) == by_hand(module, f1, samples(2))
    of_steps = [row["fit_accuracy_step"] for _, row in logger.rows if "fit_accuracy_step" in row]
    with torch.no_grad():
        expected = [float(accuracy()(module.layer(inputs), labels)) for inputs, labels in samples(1)]
    assert of_steps == 2 * expected

    assert trainer.test(module, samples(3)) == [{"test_accuracy": by_hand(module, accuracy(), samples(3))}]


def test_they_are_reset_after_the_sanity_check_and_each_epoch(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, logger = Classifier(), ListLogger()
    trainer = quiet_trainer(tmp_path, max_epochs=3, logger=logger)
    trainer.fit(module, samples(1), samples(2))
    of_epochs = [row["val_accuracy"] for _, row in logger.rows if "val_accuracy" in row]
    assert of_epochs == 3 * [by_hand(module, accuracy(), samples(2))]
    assert module.accuracy["val"].update_count == 0


def test_one_per_loader_is_told_apart(tmp_path: Path) -> None:
    class PerLoader(Classifier):
        def __init__(self) -> None:
            super().__init__()
            self.each = nn.ModuleList([accuracy(), accuracy()])

        def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int) -> None:  # type: ignore[override]
            self.each[dataloader_idx](self.layer(batch[0]), batch[1])
            self.log("accuracy", self.each[dataloader_idx])

    module = PerLoader()
    results = quiet_trainer(tmp_path).test(module, [samples(1), samples(2)])
    assert results == [
        {"accuracy/dataloader_idx_0": by_hand(module, accuracy(), samples(1))},
        {"accuracy/dataloader_idx_1": by_hand(module, accuracy(), samples(2))},
    ]

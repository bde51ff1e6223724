"""Batches and outputs in containers as those of transformers, through a trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from hugging_face_parts import BatchEncoding, Prediction
from torch import nn
from trainer_parts import quiet_trainer

from camshaft.trainer import TrainingModule


class Classifier(TrainingModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, batch: Any) -> Prediction:
        logits = self.layer(batch.x)
        return Prediction(loss=logits.mean(), logits=logits)

    def training_step(self, batch: Any, batch_idx: int) -> Prediction:
        outputs = self(batch)
        assert outputs.logits.dtype == batch.x.dtype == self.layer.weight.dtype
        self.log("size", float(batch.x.size(0)), on_step=False, on_epoch=True)
        return outputs

    def predict_step(self, batch: Any, batch_idx: int) -> Prediction:
        return self(batch)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def encodings() -> list[BatchEncoding]:
    return [BatchEncoding({"x": torch.ones(size, 3)}, encoding=["text"]) for size in (1, 3)]


class Loader:
    def __iter__(self) -> Any:
        return iter(encodings())

    def __len__(self) -> int:
        return 2


def test_the_mean_of_an_epoch_is_weighted_by_the_sizes_of_such_batches(tmp_path: Path) -> None:
    trainer = quiet_trainer(tmp_path)
    trainer.fit(Classifier(), Loader())
    assert trainer.callback_metrics["size"] == (1 * 1 + 3 * 3) / 4
    assert trainer.global_step == 2


def test_a_precision_of_its_own_reaches_into_such_batches(tmp_path: Path) -> None:
    trainer = quiet_trainer(tmp_path, precision="64-true", accelerator="cpu")
    trainer.fit(Classifier(), Loader())
    assert [one.logits.dtype for one in trainer.predict(Classifier(), Loader())] == [torch.float64] * 2

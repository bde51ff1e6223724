"""Outputs and batches in containers of a class of their own, as those of transformers."""

from __future__ import annotations

from collections import UserDict
from typing import Any

import pytest
import torch
from bare_parts import BareTrainer, Net, Sized, hooked, make_batches
from hugging_face_parts import BatchEncoding, Prediction

from camshaft.loops import PredictLoop
from camshaft.loops.optimization.update import detached


class OutputNet(Net):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, _ = batch["x"], batch["y"]
        return Prediction(loss=self.loss((batch["x"], batch["y"])), logits=self(x))

    def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
        return Prediction(logits=self(batch["x"]))


def encodings(num_batches: int) -> Sized:
    return Sized([BatchEncoding({"x": x, "y": y}) for x, y in make_batches(num_batches)])


def test_a_step_may_return_an_output_with_a_loss() -> None:
    seen: list[Any] = []

    def look(trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        seen.append(outputs)

    trainer = BareTrainer(OutputNet(), max_epochs=1, callbacks=[hooked(on_train_batch_end=look)]).fit(encodings(2))
    assert trainer.global_step == 2
    assert type(seen[0]["loss"]) is torch.Tensor and not seen[0]["loss"].requires_grad and "logits" in seen[0]


def test_a_step_may_return_a_mapping_that_is_no_dictionary() -> None:
    class MappingNet(OutputNet):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return UserDict(loss=self.loss((batch["x"], batch["y"])))

    assert BareTrainer(MappingNet(), max_epochs=1).fit(encodings(2)).global_step == 2


def test_predictions_come_back_in_the_output_s_class() -> None:
    predictions = BareTrainer(OutputNet()).verb("predict", PredictLoop(), encodings(2))
    assert [type(one) for one in predictions] == [Prediction, Prediction]
    assert predictions[0].logits is predictions[0]["logits"]


@pytest.mark.parametrize("make", [lambda x: Prediction(logits=x), lambda x: BatchEncoding({"logits": x})])
def test_an_output_is_detached_in_its_class(make: Any) -> None:
    value = make(torch.ones(2, requires_grad=True) * 2)
    assert type(detached(value)) is type(value) and not detached(value).logits.requires_grad
    assert value.logits.requires_grad

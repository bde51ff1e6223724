"""What hooks get of a training batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from bare_parts import BareTrainer, Net, Sized, hooked, make_batches, seeded, sgd

pytestmark = pytest.mark.filterwarnings("ignore:There is a `validation_step`")


def outputs_of(module: Net) -> Any:
    """What `on_train_batch_end` gets of the first batch."""
    seen: list[Any] = []
    callback = hooked(on_train_batch_end=lambda trainer, module, outputs, *_: seen.append(outputs))
    BareTrainer(module, callbacks=[callback], max_epochs=1).fit(Sized(make_batches(1)))
    return seen[0]


class Returning(Net):
    """Returns its loss, and whatever else it is told, with its graph."""

    def __init__(self, more: Any = None, configure: Any = None) -> None:
        super().__init__(configure)
        self.more = more

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        return loss if self.more is None else {"loss": loss, self.more: self(batch[0])}


class PerOptimizer(Returning):
    def training_step(self, batch: Any, batch_idx: int, optimizer_idx: int) -> Any:
        return super().training_step(batch, batch_idx) if optimizer_idx != 1 else None


def two(module: Net) -> list[Any]:
    return [sgd(module.layer), torch.optim.SGD(module.head.parameters(), lr=0.1)]


def three(module: Net) -> list[Any]:
    return [*two(module), torch.optim.SGD(module.parameters(), lr=0.1)]


def test_a_loss_becomes_a_dictionary_with_it_and_without_its_graph() -> None:
    outputs = outputs_of(seeded(Returning))
    assert list(outputs) == ["loss"] and not outputs["loss"].requires_grad


def test_further_tensors_of_a_dictionary_are_as_they_were() -> None:
    outputs = outputs_of(seeded(Returning, "logits"))
    assert not outputs["loss"].requires_grad and outputs["logits"].requires_grad


def test_optimizers_in_turn_give_a_list_of_such_dictionaries() -> None:
    outputs = outputs_of(seeded(PerOptimizer, "logits", three))
    assert [sorted(item) for item in outputs] == [["logits", "loss"]] * 2, "the second optimizer had no loss"
    assert not any(item["loss"].requires_grad for item in outputs)


def test_a_batch_without_a_loss_gives_none() -> None:
    module = seeded(Returning)
    object.__setattr__(module, "training_step", lambda batch, batch_idx: None)
    assert outputs_of(module) is None

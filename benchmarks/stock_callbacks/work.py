"""The modules that are trained with and without a callback."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from framework_overhead.workload import BATCH_SIZE, LEARNING_RATE, NUM_FEATURES, Batch, build_model, build_optimizer

WATCHED = "watched"
"""What the module logs at the end of an epoch, for callbacks that watch something."""


def build_module(base: Any, build_loader: Callable[[int], Any], *, has_backbone: bool) -> Any:
    """Return a user module of a framework.

    Args:
        base: the framework's base class.
        build_loader: takes the batch size that the module has at that moment.
        has_backbone: True to put a frozen layer, which the optimizer does not have, before the model.
    """

    class Module(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.batch_size = BATCH_SIZE
            self.lr = LEARNING_RATE
            self.model = build_model()
            self.has_backbone = has_backbone
            if has_backbone:
                self.backbone = _frozen_layer()
            # A plain list: assigning a tensor to a module at each step would be timed too.
            self.outputs: list[Tensor | None] = [None]

        def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
            inputs, classes = batch
            if self.has_backbone:
                inputs = self.backbone(inputs)
            return cross_entropy(self.model(inputs), classes)

        def on_train_epoch_end(self) -> None:
            self.log(WATCHED, 1.0)

        def predict_step(self, batch: Batch, batch_idx: int) -> Tensor:
            inputs, _classes = batch
            logits: Tensor = self.model(inputs)
            self.outputs[0] = logits
            return logits

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return build_optimizer(self.model)

        def train_dataloader(self) -> Any:
            return build_loader(self.batch_size)

        def predict_dataloader(self) -> Any:
            return build_loader(self.batch_size)

    return Module()


def _frozen_layer() -> nn.Linear:
    return nn.Linear(NUM_FEATURES, NUM_FEATURES).requires_grad_(False)

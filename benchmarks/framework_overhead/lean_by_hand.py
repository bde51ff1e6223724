"""The hand-written loop without what two of torch's functions cost beside their work.

Nobody writes that by hand. camshaft saves the same, so this tells how much of its figures that is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import torch
from torch import Tensor
from torch.optim import Optimizer

from .by_hand import ByHand
from .frameworks import NO_CALLBACKS, CallbackLoad, Evidence
from .timed_loaders import Loader


def drop_gradients(optimizer: Optimizer) -> None:
    """Stand in for `Optimizer.zero_grad`, without its label for profilers."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


def clip(parameters: list[Tensor], max_norm: float) -> None:
    """Stand in for `clip_grad_norm_`, for gradients of one device and type."""
    gradients: list[Tensor] = [gradient for parameter in parameters if (gradient := parameter.grad) is not None]
    total_norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients, 2.0)), 2.0)
    torch._foreach_mul_(gradients, (max_norm / (total_norm + 1e-6)).clamp_(max=1.0))


@contextmanager
def lean_torch() -> Iterator[None]:
    """Let the loop call these in place of torch's."""
    with patch.object(Optimizer, "zero_grad", drop_gradients), patch.object(torch.nn.utils, "clip_grad_norm_", clip):
        yield


class LeanByHand(ByHand):
    """The loop itself, zeroing and clipping leanly."""

    name = "lean"

    def train(self, batches: Loader, load: CallbackLoad = NO_CALLBACKS) -> Evidence:
        with lean_torch():
            return super().train(batches, load)

    def train_with_everything(self, batches: Loader, folder: Path) -> Evidence:
        with lean_torch():
            return super().train_with_everything(batches, folder)

    def accumulate(self, batches: Loader) -> Evidence:
        with lean_torch():
            return super().accumulate(batches)

    def tbptt(self, batches: Loader) -> Evidence:
        with lean_torch():
            return super().tbptt(batches)


def build() -> LeanByHand:
    """Return that loop."""
    return LeanByHand()

"""Losses of several batches, read from the device together and the same in all processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from camshaft.hooks_core.protocols import TrainerProtocol


class BatchValues(NamedTuple):
    """What a batch gave, as means over all processes: not finite if it is not in any of them.

    Attributes:
        epoch: Zero-based epoch.
        batch_idx: Zero-based index in the epoch.
        loss: The loss; None if no process had one.
        gradient_norm: The 2-norm of the gradients of its update; zero if there was none.
    """

    epoch: int
    batch_idx: int
    loss: float | None
    gradient_norm: float


class LossWindow:
    """Keeps values of batches on their device until they are read.

    Args:
        size: Number of batches that are held at most.
        device: The device.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        # double precision holds any dtype's values exactly; mps has none
        dtype = torch.float32 if device.type == "mps" else torch.float64
        self._size = size
        self._values = torch.zeros(2, size, dtype=dtype, device=device)
        self._losses, self._norms = (list(row.unbind()) for row in self._values)
        self._batches: list[tuple[int, int]] = []
        self._has_loss: list[bool] = []

    @property
    def is_full(self) -> bool:
        """Whether no further batch has room."""
        return len(self._batches) == self._size

    def add(self, epoch: int, batch_idx: int, loss: Tensor | None, gradient_norm: Tensor | None = None) -> None:
        """Take in a batch's scalars. They are copied: what computed them may use their memory again.

        A batch that has none of them is taken in as well, since it may have some in other processes.
        """
        idx = len(self._batches)
        if loss is not None:
            self._losses[idx].copy_(loss.detach())
        if gradient_norm is not None:
            self._norms[idx].copy_(gradient_norm)
        self._batches.append((epoch, batch_idx))
        self._has_loss.append(loss is not None)

    def take(self, trainer: TrainerProtocol) -> list[BatchValues]:
        """What was added since the last time, in its order. Waits for the device. Collective if there is anything."""
        batches, has_loss = self._batches, self._has_loss
        if not batches:
            return []
        self._batches, self._has_loss = [], []
        if trainer.strategy.world_size > 1:
            shares = torch.tensor(has_loss, dtype=self._values.dtype, device=self._values.device)
            mine = torch.cat([self._values[:, : len(batches)], shares[None]])
            losses, norms, weights = trainer.strategy.reduce(mine, "mean").tolist()
        else:
            losses, norms = self._values[:, : len(batches)].tolist()
            weights = has_loss
        self._values.zero_()
        return [
            BatchValues(*batch, loss / weight if weight else None, norm)
            for batch, loss, norm, weight in zip(batches, losses, norms, weights, strict=True)
        ]

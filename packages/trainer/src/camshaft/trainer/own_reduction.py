"""Reducing the values of an epoch by a function of one's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from camshaft.hooks_core.messages import must_be
from camshaft.trainer.metric_values import Value, as_tensor
from camshaft.trainer.parts import Part
from camshaft.trainer.reduce_functions import UNKNOWN_FUNCTION
from camshaft.trainer.saved_tensors import load_tensor, load_tensors, save_tensor, save_tensors

BLOCK_SIZE = 128
"""Tensors are kept one by one up to this number, then folded into one by a single operation on their device."""


class OwnReduction:
    """Any function of all values: the one reduction that keeps them all, in blocks on their device."""

    is_weighted = False

    def __init__(
        self, inspect: Callable[[Sequence[Tensor]], None], reduce_fx: Callable[[Tensor], Any], name: str
    ) -> None:
        self._inspect = inspect
        self._reduce_fx = reduce_fx
        self._name = name
        self._tensors: list[Tensor] = []
        self._blocks: list[Tensor] = []

    def add(self, value: Value, weight: float) -> None:
        self._tensors.append(as_tensor(value))
        if len(self._tensors) == BLOCK_SIZE:
            self.fold()

    def fold(self) -> None:
        """Put the tensors that are kept one by one into a block."""
        if self._tensors:
            self._inspect(self._tensors)
            device = self._tensors[-1].device
            self._blocks.append(torch.stack([tensor.to(device) for tensor in self._tensors]))
            self._tensors = []

    def result(self) -> Value | None:
        values = self._values()
        return None if values is None or self._reduce_fx is UNKNOWN_FUNCTION else self.reduce(values)

    def part(self) -> Part | None:
        values = self._values()
        return None if values is None else Part(values.cpu())

    def reduce(self, values: Tensor) -> Value:
        """Apply the function to values, on the device of those that were taken here.

        Raises:
            ValueError: If it does not return one number.
        """
        reduced = self._reduce_fx(values.to(self._blocks[-1].device) if self._blocks else values)
        if isinstance(reduced, Tensor) and reduced.numel() == 1:
            return reduced.detach().reshape(())
        if isinstance(reduced, (int, float)):
            return float(reduced)
        rule = "a function that returns one number"
        action = "Return a tensor with one element."
        raise ValueError(must_be("reduce_fx", rule, reduced, f"log({self._name!r})", action))

    def _values(self) -> Tensor | None:
        self.fold()
        if not self._blocks:
            return None
        device = self._blocks[-1].device
        return torch.cat([block.to(device) for block in self._blocks])

    def state_dict(self) -> dict[str, Any]:
        return {"tensors": save_tensors(self._tensors), "blocks": [save_tensor(block) for block in self._blocks]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._tensors = load_tensors(state["tensors"])
        self._blocks = [load_tensor(block) for block in state["blocks"]]

"""Reducing the values of an epoch to one, in memory that does not grow with their number."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from camshaft.hooks_core.messages import must_be
from camshaft.trainer.metric_values import Value, widest_float
from camshaft.trainer.own_reduction import BLOCK_SIZE, OwnReduction
from camshaft.trainer.parts import Part, result_dtype
from camshaft.trainer.reduce_functions import reduction_name
from camshaft.trainer.saved_tensors import load_tensor, load_tensors, save_number, save_tensor, save_tensors


class Reduction(Protocol):
    """Takes the values of an epoch one by one.

    Attributes:
        is_weighted: Whether the weights of values matter.
    """

    is_weighted: bool

    def add(self, value: Value, weight: float) -> None:
        """Take a value; never waits for its device."""

    def result(self) -> Value | None:
        """The reduced value, on the device of the values; None if there were none. More may be added afterwards."""

    def part(self) -> Part | None:
        """What this process contributes to a reduction over several; None if there was no value."""

    def state_dict(self) -> dict[str, Any]:
        """Everything that was taken, as copies of tensors and plain values; nothing is folded for it."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state; values that are added later are folded together with those they would have been."""


def reduction_for(
    reduce_fx: str | Callable[[Tensor], Any], name: str, inspect: Callable[[Sequence[Tensor]], None]
) -> Reduction:
    """A new reduction.

    Args:
        reduce_fx: "mean", "sum", "max", "min", the function of torch or Python of that name, or any function of a
            one-dimensional tensor with all values of the epoch, which is called once at its end.
        name: Name of the logged value, for messages.
        inspect: Called with the tensors of a block before they are folded.

    Raises:
        ValueError: If it is a text that names no reduction.
        TypeError: If it is neither a text nor callable.
    """
    reduction = reduction_name(reduce_fx)
    if reduction in ("mean", "sum"):
        return _Total(inspect, divides=reduction == "mean")
    if reduction in ("max", "min"):
        return _Extreme(inspect, largest=reduction == "max")
    if callable(reduce_fx):
        return OwnReduction(inspect, reduce_fx, name)
    error = ValueError if isinstance(reduce_fx, str) else TypeError
    rule = "'mean', 'sum', 'max', 'min' or a function of a tensor"
    raise error(must_be("reduce_fx", rule, reduce_fx, f"log({name!r})", "Pass one of these."))


class _InBlocks:
    """Keeps tensors until there is a block of them, and folds them into one running tensor per device.

    Results have double precision if any tensor had it or held integers, else single precision; the running tensors
    have the widest precision of their device.
    """

    def __init__(self, inspect: Callable[[Sequence[Tensor]], None]) -> None:
        self._inspect = inspect
        self._tensors: list[Tensor] = []
        self._weights: list[float] = []
        self._running: dict[torch.device, Tensor] = {}
        self._dtype = torch.float32

    def fold(self) -> None:
        """Fold the tensors that are kept one by one."""
        if not self._tensors:
            return
        self._inspect(self._tensors)
        tensors, weights = self._tensors, self._weights
        self._tensors, self._weights = [], []
        devices = {tensor.device for tensor in tensors}
        for device in devices:
            here = [position for position, tensor in enumerate(tensors) if tensor.device == device]
            block = torch.stack(tensors if len(devices) == 1 else [tensors[position] for position in here])
            if result_dtype(block.dtype) == torch.float64:
                self._dtype = torch.float64
            folded = self.fold_block(block.to(widest_float(device)), [weights[position] for position in here])
            running = self._running.get(device)
            self._running[device] = folded if running is None else self.combine(running, folded)

    def on_devices(self) -> Tensor | None:
        """The running tensors as one, on the device of the first."""
        self.fold()
        combined: Tensor | None = None
        for running in self._running.values():
            combined = running if combined is None else self.combine(combined, running.to(combined.device))
        return combined

    def as_result(self, tensor: Tensor) -> Tensor:
        return tensor if tensor.device.type == "mps" else tensor.to(self._dtype)

    def state_dict(self) -> dict[str, Any]:
        return {
            "tensors": save_tensors(self._tensors),
            "weights": [save_number(weight) for weight in self._weights],
            "running": [save_tensor(running) for running in self._running.values()],
            "dtype": self._dtype,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._tensors = load_tensors(state["tensors"])
        self._weights = list(state["weights"])
        self._dtype = state["dtype"]
        self._running = {}
        for running in map(load_tensor, state["running"]):
            other = self._running.get(running.device)  # two of its devices may be one here
            self._running[running.device] = running if other is None else self.combine(other, running)

    def fold_block(self, block: Tensor, weights: Sequence[float]) -> Tensor:
        raise NotImplementedError

    def combine(self, first: Tensor, second: Tensor) -> Tensor:
        raise NotImplementedError


class _Total(_InBlocks):
    """The sum, or the mean weighted by batch size."""

    def __init__(self, inspect: Callable[[Sequence[Tensor]], None], *, divides: bool) -> None:
        super().__init__(inspect)
        self.is_weighted = divides
        self._of_numbers: float | None = None
        self._weight: float = 0

    def add(self, value: Value, weight: float) -> None:
        if not self.is_weighted:
            weight = 1
        if isinstance(value, Tensor):
            self._tensors.append(value)
            self._weights.append(weight)
            if len(self._weights) == BLOCK_SIZE:
                self.fold()
        else:
            self._of_numbers = value * weight + (self._of_numbers or 0)
            self._weight += weight

    def fold_block(self, block: Tensor, weights: Sequence[float]) -> Tensor:
        self._weight += sum(weights)
        if weights.count(weights[0]) == len(weights):
            return block.sum() if weights[0] == 1 else block.sum() * weights[0]
        return torch.dot(block, _sent(weights, block))

    def combine(self, first: Tensor, second: Tensor) -> Tensor:
        return first + second

    def result(self) -> Value | None:
        part = self.part()
        if part is None:
            return None
        if isinstance(part.value, Tensor):
            return self.as_result(part.value / part.weight if self.is_weighted else part.value)
        if not self.is_weighted:
            return part.value
        return part.value / part.weight if part.weight else math.nan

    def part(self) -> Part | None:
        of_tensors, of_numbers = self.on_devices(), self._of_numbers
        if of_tensors is None:
            return None if of_numbers is None else Part(of_numbers, self._weight)
        return Part(of_tensors if of_numbers is None else of_tensors + of_numbers, self._weight, self._dtype)

    def state_dict(self) -> dict[str, Any]:
        numbers = None if self._of_numbers is None else save_number(self._of_numbers)
        return super().state_dict() | {"of_numbers": numbers, "weight": save_number(self._weight)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._of_numbers, self._weight = state["of_numbers"], state["weight"]


class _Extreme(_InBlocks):
    """The largest or smallest value; NaN if there is any."""

    is_weighted = False

    def __init__(self, inspect: Callable[[Sequence[Tensor]], None], *, largest: bool) -> None:
        super().__init__(inspect)
        self._largest = largest
        self._of_numbers: float | None = None

    def add(self, value: Value, weight: float) -> None:
        if isinstance(value, Tensor):
            self._tensors.append(value)
            self._weights.append(weight)
            if len(self._weights) == BLOCK_SIZE:
                self.fold()
            return
        best = self._of_numbers
        if best is None or math.isnan(value) or (value > best if self._largest else value < best):
            self._of_numbers = value

    def fold_block(self, block: Tensor, weights: Sequence[float]) -> Tensor:
        return block.max() if self._largest else block.min()

    def combine(self, first: Tensor, second: Tensor) -> Tensor:
        return torch.maximum(first, second) if self._largest else torch.minimum(first, second)

    def result(self) -> Value | None:
        part = self.part()
        return None if part is None else self.as_result(part.value) if isinstance(part.value, Tensor) else part.value

    def part(self) -> Part | None:
        of_tensors, of_numbers = self.on_devices(), self._of_numbers
        if of_tensors is None:
            return None if of_numbers is None else Part(of_numbers)
        if of_numbers is not None:
            of_tensors = self.combine(of_tensors, torch.full_like(of_tensors, of_numbers))
        return Part(of_tensors, 1.0, self._dtype)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"of_numbers": self._of_numbers}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._of_numbers = state["of_numbers"]


def _sent(weights: Sequence[float], block: Tensor) -> Tensor:
    """Weights on the device of a block, without waiting for what the device still has to do."""
    on_host = torch.tensor(weights, dtype=block.dtype, pin_memory=block.device.type == "cuda")
    return on_host.to(block.device, non_blocking=True)

"""Reduce the values of an epoch to one, in memory that does not grow with their number."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from camshaft.hooks_core.messages import must_be
from camshaft.loops.metrics.values import (
    Value,
    as_single_value,
    as_tensor,
    load_tensor,
    load_tensors,
    result_dtype,
    save_number,
    save_tensor,
    save_tensors,
    widest_float,
)

ReduceFx = str | Callable[[Tensor], Any]
Inspect = Callable[[Sequence[Tensor]], None]

BLOCK_SIZE = 128
"""Number of tensors that are kept one by one before a single operation on their device folds them."""


@attrs.frozen(eq=False)
class Part:
    """The contribution of one process to a value that is reduced over processes.

    Attributes:
        value: The sum of weighted values, or the extreme; for a user's function all values, of shape (n,).
        weight: The sum of the weights.
        dtype: Type of the reduced tensor; None if only numbers were logged, so that the result is a number.
    """

    value: Value
    weight: float = 1.0
    dtype: torch.dtype | None = None


class Reduction:
    """Collects the values of an epoch; `add` and `result` never wait for a device. See `reduction_for`.

    Attributes:
        is_weighted: Whether the weights of values matter.
    """

    is_weighted = False

    def add(self, value: Value, weight: float) -> None:
        """Collect a value."""
        raise NotImplementedError

    def result(self) -> Value | None:
        """Return the reduced value, on the device of the values; None if there were none. More may be added."""
        raise NotImplementedError

    def part(self) -> Part | None:
        """Return this process's contribution to a reduction over several; None if there was no value."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Return all that was collected, as copies of tensors and plain values; folds nothing."""
        raise NotImplementedError

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state; later values are folded in the same blocks as without the interruption."""
        raise NotImplementedError


def reduction_for(reduce_fx: ReduceFx, name: str, inspect: Inspect) -> Reduction:
    """Return a new reduction.

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
    if reduction is not None:
        return FoldedReduction(reduction, inspect)
    if callable(reduce_fx):
        return FunctionReduction(reduce_fx, name, inspect)
    error = ValueError if isinstance(reduce_fx, str) else TypeError
    rule = "'mean', 'sum', 'max', 'min' or a function of a tensor"
    raise error(must_be("reduce_fx", rule, reduce_fx, f"log({name!r})", "Pass one of these."))


Fold = tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor], Callable[[float, float], float]]

FOLDS: dict[str, Fold] = {
    "mean": (torch.sum, torch.add, operator.add),
    "sum": (torch.sum, torch.add, operator.add),
    "max": (torch.max, torch.maximum, max),
    "min": (torch.min, torch.minimum, min),
}
"""Per reduction: how a block of tensors, two tensors and two numbers (neither of them NaN) become one."""


class FoldedReduction(Reduction):
    """The mean weighted by batch size, sum, maximum or minimum: one running tensor per device and one number.

    Results have double precision if any tensor had it or held integers, else single precision; the running tensors
    have the widest precision of their device.

    Args:
        name: A key of `FOLDS`.
        inspect: See `reduction_for`.
    """

    def __init__(self, name: str, inspect: Inspect) -> None:
        self.is_weighted = name == "mean"
        self._fold_block, self._fold_tensors, _ = FOLDS[name]
        self._largest = {"max": True, "min": False}.get(name)  # comparing costs less per call than built-in `max`
        self._inspect = inspect
        self._tensors: list[Tensor] = []
        self._weights: list[float] = []
        self._running: dict[torch.device, Tensor] = {}
        self._dtype = torch.float32
        self._number: float | None = None
        self._weight: float = 0

    def add(self, value: Value, weight: float) -> None:
        if isinstance(value, Tensor):
            self._tensors.append(value)
            self._weights.append(weight)
            if len(self._weights) == BLOCK_SIZE:
                self._fold()
            return
        number = self._number
        if self.is_weighted:
            self._weight += weight
            self._number = value * weight + (number or 0)
        elif (largest := self._largest) is None:
            self._number = value + (number or 0)
        elif number is None or (value > number if largest else value < number) or value != value:  # NaN stays
            self._number = value

    def result(self) -> Value | None:
        part = self.part()
        if part is None:
            return None
        value = part.value
        if not isinstance(value, Tensor):
            if not self.is_weighted:
                return value
            return value / part.weight if part.weight else math.nan
        if self.is_weighted:
            value = value / part.weight
        return value if value.device.type == "mps" else value.to(self._dtype)

    def part(self) -> Part | None:
        self._fold()
        total: Tensor | None = None
        for running in self._running.values():
            total = running if total is None else self._fold_tensors(total, running.to(total.device))
        if total is None:
            return None if self._number is None else Part(self._number, self._weight)
        if self._number is not None:
            total = self._fold_tensors(total, torch.full_like(total, self._number))
        return Part(total, self._weight, self._dtype)

    def state_dict(self) -> dict[str, Any]:
        return {
            "tensors": save_tensors(self._tensors),
            "weights": [save_number(weight) for weight in self._weights],
            "running": [save_tensor(running) for running in self._running.values()],
            "dtype": self._dtype,
            "of_numbers": None if self._number is None else save_number(self._number),
            "weight": save_number(self._weight),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._tensors, self._weights = load_tensors(state["tensors"]), list(state["weights"])
        self._dtype = state["dtype"]
        self._number, self._weight = state["of_numbers"], state.get("weight", 0)
        self._running = {}
        for running in map(load_tensor, state["running"]):
            other = self._running.get(running.device)  # two devices of the saved run may be one here
            self._running[running.device] = running if other is None else self._fold_tensors(other, running)

    def _fold(self) -> None:
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
            block = block.to(widest_float(device))
            folded = self._weigh(block, [weights[position] for position in here]) if self.is_weighted else None
            folded = self._fold_block(block) if folded is None else folded
            running = self._running.get(device)
            self._running[device] = folded if running is None else self._fold_tensors(running, folded)

    def _weigh(self, block: Tensor, weights: Sequence[float]) -> Tensor | None:
        """Return the weighted sum of a block; None if all weights are 1."""
        self._weight += sum(weights)
        if weights.count(weights[0]) == len(weights):
            return None if weights[0] == 1 else block.sum() * weights[0]
        # pinned memory: the copy does not wait for what the device still has to do
        on_host = torch.tensor(weights, dtype=block.dtype, pin_memory=block.device.type == "cuda")
        return torch.dot(block, on_host.to(block.device, non_blocking=True))


class FunctionReduction(Reduction):
    """A function of all values: the one reduction that keeps them all, in blocks on their device.

    Attributes:
        function: The function; `UNKNOWN_FUNCTION` after a resume until it is passed to `log` again.
    """

    def __init__(self, function: Callable[[Tensor], Any], name: str, inspect: Inspect) -> None:
        self.function = function
        self._name = name
        self._inspect = inspect
        self._tensors: list[Tensor] = []
        self._blocks: list[Tensor] = []

    def add(self, value: Value, weight: float) -> None:
        self._tensors.append(as_tensor(value))
        if len(self._tensors) == BLOCK_SIZE:
            self._fold()

    def result(self) -> Value | None:
        values = self._values()
        return None if values is None or self.function is UNKNOWN_FUNCTION else self.apply(values)

    def part(self) -> Part | None:
        values = self._values()
        return None if values is None else Part(values.cpu())

    def apply(self, values: Tensor) -> Value:
        """Apply the function to values, on the device of those collected here.

        Raises:
            ValueError: If it does not return one number.
        """
        reduced = self.function(values.to(self._blocks[-1].device) if self._blocks else values)
        value = as_single_value(reduced)
        if value is None:
            rule = "a function that returns one number"
            action = "Return a tensor with one element."
            raise ValueError(must_be("reduce_fx", rule, reduced, f"log({self._name!r})", action))
        return value

    def state_dict(self) -> dict[str, Any]:
        return {"tensors": save_tensors(self._tensors), "blocks": [save_tensor(block) for block in self._blocks]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._tensors, self._blocks = load_tensors(state["tensors"]), [load_tensor(block) for block in state["blocks"]]

    def _fold(self) -> None:
        if self._tensors:
            self._inspect(self._tensors)
            device = self._tensors[-1].device
            self._blocks.append(torch.stack([tensor.to(device) for tensor in self._tensors]))
            self._tensors = []

    def _values(self) -> Tensor | None:
        self._fold()
        device = self._blocks[-1].device if self._blocks else None
        return torch.cat([block.to(device) for block in self._blocks]) if self._blocks else None


# names of reductions


class UnknownFunction:
    """Stands for a user's function, which a checkpoint cannot hold, until it is passed to `log` again."""

    def __call__(self, values: Tensor) -> Any:
        raise RuntimeError("UnknownFunction must not be called.")

    def __repr__(self) -> str:
        return "<a user's function>"


UNKNOWN_FUNCTION = UnknownFunction()

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "torch.mean": torch.mean,
    "torch.sum": torch.sum,
    "builtins.sum": sum,
    "torch.max": torch.max,
    "builtins.max": max,
    "torch.min": torch.min,
    "builtins.min": min,
}

_NAMES: dict[Any, str] = {name: name for name in FOLDS} | {"avg": "mean"}
_NAMES |= {function: path.rpartition(".")[2] for path, function in _FUNCTIONS.items()}


def reduction_name(reduce_fx: object) -> str | None:
    """Return "mean", "sum", "max" or "min"; None for anything else, such as a user's function."""
    return _NAMES.get(reduce_fx) if reduce_fx.__hash__ is not None else None


def is_user_function(reduce_fx: object) -> bool:
    """Return whether it is a function that has no name here."""
    return callable(reduce_fx) and reduction_name(reduce_fx) is None


def save_function(reduce_fx: object) -> str | None:
    """Return a text that a checkpoint can hold; None for a user's function."""
    if isinstance(reduce_fx, str):
        return "".join([reduce_fx])  # of `str` itself, not of a subclass
    return next((path for path, function in _FUNCTIONS.items() if function is reduce_fx), None)


def load_function(saved: str | None) -> ReduceFx:
    """Return what `save_function` was given; `UNKNOWN_FUNCTION` for a user's. Nothing is imported by name."""
    return UNKNOWN_FUNCTION if saved is None else _FUNCTIONS.get(saved, saved)

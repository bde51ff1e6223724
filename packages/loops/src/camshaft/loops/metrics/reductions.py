"""Reducing the values of an epoch to one, in memory that does not grow with their number."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any, Protocol, TypeVar

import attrs
import torch
from torch import Tensor

from camshaft.hooks_core.messages import must_be
from camshaft.hooks_core.protocols import Strategy
from camshaft.loops.metrics.values import Value, as_tensor, to_floats, widest_float


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


_NAMES: dict[Any, str] = {
    "mean": "mean",
    "avg": "mean",
    torch.mean: "mean",
    "sum": "sum",
    torch.sum: "sum",
    sum: "sum",
    "max": "max",
    torch.max: "max",
    max: "max",
    "min": "min",
    torch.min: "min",
    min: "min",
}

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "torch.mean": torch.mean,
    "torch.sum": torch.sum,
    "builtins.sum": sum,
    "torch.max": torch.max,
    "builtins.max": max,
    "torch.min": torch.min,
    "builtins.min": min,
}


class UnknownFunction:
    """Stands for a function of one's own, which a checkpoint cannot hold, until it is passed again."""

    def __call__(self, values: Tensor) -> Any:
        raise RuntimeError("UnknownFunction must not be called.")

    def __repr__(self) -> str:
        return "<a function of one's own>"


UNKNOWN_FUNCTION = UnknownFunction()


def reduction_name(reduce_fx: object) -> str | None:
    """The reduction that is asked for: "mean", "sum", "max" or "min"; None if it has no name."""
    return _NAMES.get(reduce_fx) if reduce_fx.__hash__ is not None else None


def is_own(reduce_fx: object) -> bool:
    """Whether it is a function that has no name."""
    return callable(reduce_fx) and reduction_name(reduce_fx) is None


def label_of(reduce_fx: object) -> str | None:
    """What a function of one's own is called; None for anything else, and where it is not known."""
    if not is_own(reduce_fx) or reduce_fx is UNKNOWN_FUNCTION:
        return None
    name = getattr(reduce_fx, "__qualname__", None) or type(reduce_fx).__qualname__
    return f"{getattr(reduce_fx, '__module__', '')}.{name}"


def save_function(reduce_fx: object) -> str | None:
    """What a checkpoint holds of it: a text; None for a function of one's own."""
    if isinstance(reduce_fx, str):
        return "".join([reduce_fx])  # of `str` itself, not of a subclass
    return next((name for name, function in _FUNCTIONS.items() if function is reduce_fx), None)


def load_function(saved: str | None) -> str | Callable[[Tensor], Any]:
    """What `save_function` was given; `UNKNOWN_FUNCTION` for a function of one's own. Nothing is imported by name."""
    return UNKNOWN_FUNCTION if saved is None else _FUNCTIONS.get(saved, saved)


def save_tensor(tensor: Tensor) -> dict[str, Any]:
    """A tensor's copy, without its graph, and its device. Does not wait for the device."""
    return _with_device(tensor.detach().clone())


def load_tensor(saved: dict[str, Any]) -> Tensor:
    """A copy of a saved tensor on its device.

    Where this process lacks the device it is on the current one of its type, or else on the CPU.
    """
    tensor: Tensor = saved["tensor"]
    return tensor.to(_present(torch.device(saved["device"])), copy=True)


def save_tensors(tensors: Iterable[Tensor]) -> list[dict[str, Any]]:
    """Many tensors of shape () as few: one for neighbours of the same type and device. Does not wait for a device."""
    blocks = groupby(tensors, key=lambda tensor: (tensor.dtype, tensor.device))
    return [_with_device(torch.stack(list(block))) for _, block in blocks]


def load_tensors(saved: Iterable[dict[str, Any]]) -> list[Tensor]:
    """The tensors that `save_tensors` was given, in their order."""
    return [tensor for block in saved for tensor in load_tensor(block).unbind()]


def save_value(value: Value | None) -> Any:
    """A logged value as a checkpoint holds it. Does not wait for its device."""
    return save_tensor(value) if isinstance(value, Tensor) else value


def load_value(saved: Any) -> Value | None:
    """The value that `save_value` was given."""
    return load_tensor(saved) if isinstance(saved, dict) else saved


def save_number(number: float) -> float:
    """A number, such as NumPy's, as one of Python's own."""
    return int(number) if isinstance(number, int) else float(number)


def _with_device(tensor: Tensor) -> dict[str, Any]:
    if type(tensor) is not Tensor and not hasattr(tensor, "__tensor_flatten__"):
        tensor = tensor.as_subclass(Tensor)  # a checkpoint's reader refuses types that it does not know
    return {"tensor": tensor, "device": str(tensor.device)}


def _present(device: torch.device) -> torch.device:
    if device.type in ("cpu", "meta"):
        return device
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is None or accelerator.type != device.type:
        return torch.device("cpu")
    if device.index is not None and device.index < torch.accelerator.device_count():
        return device
    return torch.device(device.type, torch.accelerator.current_device_index())


T = TypeVar("T")


@attrs.frozen(eq=False)
class Part:
    """What one process has of a value.

    Attributes:
        value: The sum of weighted values, or the largest or smallest; for a function of one's own, all values as a
            one-dimensional tensor.
        weight: The sum of their weights.
        dtype: Type of the reduced tensor; None if only numbers were logged, so that the result is a number.
    """

    value: Value
    weight: float = 1.0
    dtype: torch.dtype | None = None


def gather_data(strategy: Strategy, value: T) -> list[tuple[T, bool]]:
    """The values of all processes, each with whether it counts: of processes with the same data the first. Collective.

    Args:
        strategy: Connects the processes.
        value: This one's.
    """
    gathered = strategy.all_gather((strategy.data_rank, value))
    data_ranks = [data_rank for data_rank, _ in gathered]
    return [(each, data_ranks.index(data_rank) == rank) for rank, (data_rank, each) in enumerate(gathered)]


def part_of_step(value: Value, *, is_own: bool) -> Part:
    """The part of a process that logged one value; `is_own` says whether a function of one's own reduces it."""
    if is_own:
        return Part(as_tensor(value).reshape(1).cpu())
    return Part(value, 1.0, result_dtype(value.dtype) if isinstance(value, Tensor) else None)


def result_dtype(dtype: torch.dtype) -> torch.dtype:
    """Double precision for what has it or holds integers, else single precision."""
    return (
        torch.float32 if (dtype.is_floating_point and dtype != torch.float64) or dtype == torch.bool else torch.float64
    )


def on_host(parts: Sequence[Part | None]) -> list[Part | None]:
    """The same parts with numbers for tensors of shape (), in one transfer from each device. Waits for the devices."""
    scalars = [part.value for part in parts if part is not None and _is_scalar(part.value)]
    numbers = iter(to_floats(scalars))
    return [
        attrs.evolve(part, value=next(numbers)) if part is not None and _is_scalar(part.value) else part
        for part in parts
    ]


def merge(reduction: str, parts: Sequence[Part]) -> Value:
    """The value of all processes, the same to the bit wherever it is computed.

    Args:
        reduction: "mean", "sum", "max" or "min".
        parts: One or more, with numbers, in the order of the processes.

    Returns:
        A tensor on the CPU; a number if only numbers were logged.
    """
    numbers = [float(part.value) for part in parts]
    if reduction in ("max", "min"):
        value = math.nan if any(map(math.isnan, numbers)) else (max if reduction == "max" else min)(numbers)
    else:
        value = sum(numbers)
        if reduction == "mean":
            weight = sum(part.weight for part in parts)
            value = value / weight if weight else math.nan
    return as_value(value, _widest(part.dtype for part in parts))


def all_values(parts: Sequence[Part]) -> Tensor:
    """What a function of one's own reduces: the values of all processes, in the order of the processes."""
    tensors = [part.value for part in parts if isinstance(part.value, Tensor)]
    return torch.cat(tensors)


def as_value(number: float, dtype: torch.dtype | None) -> Value:
    """A number as a tensor of a type on the CPU; as it is if there is no type."""
    return number if dtype is None else torch.tensor(number, dtype=dtype)


def _widest(dtypes: Iterable[torch.dtype | None]) -> torch.dtype | None:
    present = [dtype for dtype in dtypes if dtype is not None]
    return None if not present else torch.float64 if torch.float64 in present else torch.float32


def _is_scalar(value: Value) -> bool:
    return not isinstance(value, Tensor) or value.ndim == 0

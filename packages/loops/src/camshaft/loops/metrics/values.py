"""Logged values and sizes of batches: checked, kept unchanged, read as numbers, saved, and reduced over an epoch."""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from numbers import Real
from typing import Any

import attrs
import torch
from torch import Tensor

from camshaft.hooks_core.messages import must_be, warn_user
from camshaft.hooks_core.transfer import parts_of

Value = Tensor | float
"""A kept value: a detached tensor of shape () on its device, or a Python number."""

_ALLOWED = "a number, a tensor with one element or a torchmetrics metric"


def is_metric(value: object, kind: str = "Metric") -> bool:
    """Return whether a value is a `torchmetrics.Metric`, or a "MetricCollection"; does not import torchmetrics."""
    torchmetrics = sys.modules.get("torchmetrics")
    return torchmetrics is not None and isinstance(value, getattr(torchmetrics, kind))


def check_number(name: str, value: Any) -> float:
    """Return a logged number as a Python number.

    Raises:
        TypeError: If it is no real number.
    """
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, Mapping) or is_metric(value, "MetricCollection"):
        action = "Log each of its values with `log_dict`."
    else:
        action = "Convert it to a number."
    raise TypeError(must_be("value", _ALLOWED, value, f"log({name!r})", action))


def check_tensor(name: str, value: Tensor) -> Tensor:
    """Return a logged tensor without its graph, of shape (); not a copy. Does not wait for the device.

    Raises:
        ValueError: If it has no element or several.
        TypeError: If it is complex.
    """
    if value.numel() != 1:
        raise ValueError(
            f"`value` must be {_ALLOWED}, but got shape {tuple(value.shape)} ({type(value).__name__}) in "
            f"log({name!r}). Reduce it first, for example with `.mean()`."
        )
    if value.is_complex():
        raise TypeError(
            f"`value` must be a real tensor, but got {value.dtype} ({type(value).__name__}) in log({name!r}). "
            "Log its real part or its absolute value."
        )
    return value.detach().reshape(())


def check_batch_size(name: str, batch_size: Any) -> float:
    """Return a batch size as a number. Waits for the device of a tensor.

    Raises:
        TypeError: If it is neither a number nor a tensor with one element.
        ValueError: If it is negative.
    """
    if isinstance(batch_size, (int, float)) and batch_size >= 0:
        return batch_size
    if isinstance(batch_size, Tensor) and batch_size.numel() == 1 and not batch_size.is_complex():
        return check_batch_size(name, batch_size.item())
    if isinstance(batch_size, Real) and not isinstance(batch_size, (int, float)):  # of NumPy, say
        return check_batch_size(name, float(batch_size))
    error = ValueError if isinstance(batch_size, (int, float)) else TypeError
    rule = "a number, 0 or more"
    raise error(must_be("batch_size", rule, batch_size, f"log({name!r})", "Pass the number of samples in the batch."))


class MeasuredBatch:
    """Replaces a batch on the metric log when something is logged for it, and remembers its size.

    Attributes:
        batch: The batch; None once its size is known, so that it is not kept alive.
        size: Number of samples; 0 until it is measured.
    """

    __slots__ = ("batch", "size")

    def __init__(self, batch: Any) -> None:
        self.batch = batch
        self.size = 0

    def measure(self) -> int:
        """Return dimension 0 of the first tensor in the batch; 1 for a tensor of shape () and where there is no batch.

        Raises:
            ValueError: If there is no tensor in it.
        """
        if self.batch is None:
            return self.size or 1
        first = next(_tensors_in(self.batch), None)
        if first is None:
            raise ValueError(
                "`batch` must contain a tensor to weigh an epoch's mean by its size, but got none "
                f"({type(self.batch).__name__}) in log. Pass `batch_size`."
            )
        self.size = first.size(0) if first.ndim else 1
        self.batch = None
        return self.size


def _tensors_in(batch: Any) -> Iterator[Tensor]:
    if isinstance(batch, Tensor):
        yield batch
        return
    for part in parts_of(batch) or ():
        yield from _tensors_in(part)


NUM_WATCHED = 16
"""Number of tensors of one name that are copied and watched before the next ones are kept without a copy."""


class KeptTensors:
    """Keeps the tensors that are logged under one name, without a copy where that is safe.

    A tensor that its owner changes later (a running total, a buffer, a parameter, a loss that is scaled in place) must
    be copied when it is logged; a fresh result of each step need not be, and a copy would be one more operation on the
    device. So the first tensors are copied and watched. If they have memory of their own and stay unchanged, later ones
    are kept as they are.

    Args:
        name: The name under which they are logged, for messages.

    Attributes:
        borrows: Whether tensors are kept without a copy.
    """

    __slots__ = ("_name", "_num_watched", "_previous", "borrows")

    def __init__(self, name: str) -> None:
        self.borrows = False
        self._name = name
        self._num_watched = 0
        self._previous: Tensor | None = None

    def keep(self, value: object) -> Value:
        """Return a detached tensor of shape (), or a Python number, that later changes of `value` do not reach.

        Raises:
            TypeError, ValueError: If the value is not one that can be logged.
        """
        if not isinstance(value, Tensor):
            return check_number(self._name, value)
        detached = check_tensor(self._name, value)
        if detached.is_inference():
            self._copy_always()  # its changes are not counted
        elif not self.borrows and self._num_watched >= 0:
            self._watch(value)
        return detached.clone()

    def inspect(self, tensors: Iterable[Tensor]) -> None:
        """Warn if a tensor that was kept without a copy was changed since, and copy from then on."""
        if not self.borrows or not any(tensor._version for tensor in tensors):
            return
        self._copy_always()
        warn_user(
            f"`value` must stay as it is after it was logged, but got a change in place (Tensor) in "
            f"log({self._name!r}): its values of up to the last 128 steps may be wrong. Log `value.clone()`.",
            RuntimeWarning,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the result of watching, as plain values."""
        return {"num_watched": self._num_watched, "borrows": self.borrows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state."""
        self._num_watched, self.borrows, self._previous = state["num_watched"], state["borrows"], None

    def _watch(self, value: Tensor) -> None:
        previous = self._previous
        if (
            type(value) is not Tensor
            or value._version
            or value.untyped_storage().nbytes() != value.element_size()  # keeping it would keep something larger alive
            or (previous is not None and (previous._version or _same_memory(previous, value)))
        ):
            self._copy_always()
            return
        self._previous = value.detach()  # keeps its memory in use, so that an equal address means the same tensor
        self._num_watched += 1
        if self._num_watched == NUM_WATCHED:
            self._previous, self.borrows = None, True

    def _copy_always(self) -> None:
        self._previous, self._num_watched, self.borrows = None, -1, False


def _same_memory(first: Tensor, second: Tensor) -> bool:
    try:
        return first.data_ptr() == second.data_ptr()
    except RuntimeError:  # memory of a CUDA graph that its next replay has taken back
        return True


def as_tensor(value: Value) -> Tensor:
    """Return a value as a tensor; a Python number in double precision."""
    return value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)


def as_handed_out(value: Value) -> Tensor:
    """Return a value as users get it: in single or double precision, those that have neither in torch's default type.

    So it compares and prints as in a module's own computations, whatever precision it was added up in.
    """
    kept = (torch.float32, torch.float64)
    if isinstance(value, Tensor) and value.dtype in kept:
        return value
    default = torch.get_default_dtype()
    dtype = default if default in kept else torch.float32
    return value.to(dtype) if isinstance(value, Tensor) else torch.tensor(value, dtype=dtype)


def as_single_value(result: object) -> Value | None:
    """Return the result of a function or metric as a value; None if it is not one number."""
    if isinstance(result, Tensor) and result.numel() == 1:
        return result.detach().reshape(())
    return float(result) if isinstance(result, (int, float)) else None


def to_floats(values: Sequence[Value]) -> list[float]:
    """Return values as Python numbers, in one transfer from each device. Waits for these devices."""
    numbers: list[float] = [0.0] * len(values)
    on_devices: dict[torch.device, dict[int, Tensor]] = {}
    for position, value in enumerate(values):
        if isinstance(value, Tensor):
            on_devices.setdefault(value.device, {})[position] = value
        else:
            numbers[position] = float(value)
    for device, tensors in on_devices.items():
        wide = widest_float(device)
        # promotion keeps single precision's values; integers and half precision are widened first
        stacked = torch.stack([t if t.dtype in (torch.float32, wide) else t.to(wide) for t in tensors.values()])
        for position, number in zip(tensors, stacked.tolist(), strict=True):
            numbers[position] = number
    return numbers


def widest_float(device: torch.device) -> torch.dtype:
    """Return the most accurate type in which a device can add."""
    return torch.float32 if device.type == "mps" else torch.float64


def result_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return double precision for double precision and integers, else single precision."""
    is_narrow = (dtype.is_floating_point and dtype != torch.float64) or dtype == torch.bool
    return torch.float32 if is_narrow else torch.float64


def save_tensor(tensor: Tensor) -> dict[str, Any]:
    """Return a copy of a tensor, without its graph, with its device. Does not wait for the device."""
    return _with_device(tensor.detach().clone())


def load_tensor(saved: dict[str, Any]) -> Tensor:
    """Return a copy of a saved tensor on its device; if that is missing, on the current one of its type, or the CPU."""
    tensor: Tensor = saved["tensor"]
    return tensor.to(_present(torch.device(saved["device"])), copy=True)


def save_tensors(tensors: Iterable[Tensor]) -> list[dict[str, Any]]:
    """Return many tensors of shape () as few: one for neighbors of the same type and device. Waits for no device."""
    blocks = groupby(tensors, key=lambda tensor: (tensor.dtype, tensor.device))
    return [_with_device(torch.stack(list(block))) for _, block in blocks]


def load_tensors(saved: Iterable[dict[str, Any]]) -> list[Tensor]:
    """Return the tensors that `save_tensors` was given, in their order."""
    return [tensor for block in saved for tensor in load_tensor(block).unbind()]


def save_value(value: Value | None) -> Any:
    """Return a value as a checkpoint holds it. Does not wait for its device."""
    return save_tensor(value) if isinstance(value, Tensor) else value


def load_value(saved: Any) -> Value | None:
    """Return the value that `save_value` was given."""
    return load_tensor(saved) if isinstance(saved, dict) else saved


def save_number(number: float) -> float:
    """Return a number, such as NumPy's, as one of Python's own."""
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


# reductions over an epoch, in memory that does not grow with the number of values

ReduceFx = str | Callable[[Tensor], Any]
"""How values of an epoch become one: a name such as "mean", or a function of all of them."""
Inspect = Callable[[Sequence[Tensor]], None]

BLOCK_SIZE = 128
"""Number of tensors that are kept one by one before a single operation on their device folds them."""


@attrs.frozen(eq=False, repr=False)
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


class FoldedReduction:
    """The mean weighted by batch size, sum, maximum or minimum: one running tensor per device and one number.

    Results have double precision if any tensor had it or held integers, else single precision; the running tensors
    have the widest precision of their device.

    Args:
        name: A key of `FOLDS`.
        inspect: See `reduction_for`.

    Attributes:
        is_weighted: Whether the weights of values matter.
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
        """Collect a value. Never waits for a device."""
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
        """Return the reduced value, on the device of the values; None if there were none. Never waits for a device.

        More values may be added.
        """
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
        """Return this process's contribution to a reduction over several; None if there was no value."""
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
        """Return all that was collected, as copies of tensors and plain values; folds nothing."""
        return {
            "tensors": save_tensors(self._tensors),
            "weights": [save_number(weight) for weight in self._weights],
            "running": [save_tensor(running) for running in self._running.values()],
            "dtype": self._dtype,
            "of_numbers": None if self._number is None else save_number(self._number),
            "weight": save_number(self._weight),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state; later values are folded in the same blocks as without the interruption."""
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


class FunctionReduction:
    """A function of all values: the one reduction that keeps them all, in blocks on their device.

    Attributes:
        is_weighted: False: the weights of values do not matter.
        function: The function; `UNKNOWN_FUNCTION` after a resume until it is passed to `log` again.
    """

    is_weighted = False

    def __init__(self, function: Callable[[Tensor], Any], name: str, inspect: Inspect) -> None:
        self.function = function
        self._name = name
        self._inspect = inspect
        self._tensors: list[Tensor] = []
        self._blocks: list[Tensor] = []

    def add(self, value: Value, weight: float) -> None:
        """Collect a value."""
        self._tensors.append(as_tensor(value))
        if len(self._tensors) == BLOCK_SIZE:
            self._fold()

    def result(self) -> Value | None:
        """Return the reduced value, on the device of the values; None without any, or without a known function."""
        values = self._values()
        return None if values is None or self.function is UNKNOWN_FUNCTION else self.apply(values)

    def part(self) -> Part | None:
        """Return this process's contribution to a reduction over several; None if there was no value."""
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
        """Return all that was collected, as copies of tensors and plain values; folds nothing."""
        return {"tensors": save_tensors(self._tensors), "blocks": [save_tensor(block) for block in self._blocks]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state; later values are folded in the same blocks as without the interruption."""
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


Reduction = FoldedReduction | FunctionReduction


class UnknownFunction:
    """Stands for a user's function, which a checkpoint cannot hold, until it is passed to `log` again."""

    def __call__(self, values: Tensor) -> Any:
        raise RuntimeError("The function of a resumed `reduce_fx` is not known yet. Pass it to `log` again.")

    def __repr__(self) -> str:
        return "<a user's function>"


UNKNOWN_FUNCTION = UnknownFunction()

_NAMES: dict[Any, str] = {
    **{name: name for name in FOLDS},
    **{"avg": "mean", torch.mean: "mean", torch.sum: "sum", torch.max: "max", torch.min: "min"},
    **{sum: "sum", max: "max", min: "min"},
}


def reduction_name(reduce_fx: object) -> str | None:
    """Return "mean", "sum", "max" or "min"; None for anything else, such as a user's function."""
    return _NAMES.get(reduce_fx) if reduce_fx.__hash__ is not None else None

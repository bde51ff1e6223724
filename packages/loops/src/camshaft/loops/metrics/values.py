"""Logged values and sizes of batches: checked, kept unchanged, read as numbers, saved, and reduced over an epoch."""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import groupby
from numbers import Real
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from camshaft.hooks_core.support.devices import copies_asynchronously, widest_float
from camshaft.hooks_core.support.messages import must_be, warn_user
from camshaft.hooks_core.support.transfer import map_nested, parts_of

K = TypeVar("K")

Value = Tensor | float
"""A kept value: a detached tensor of shape () on its device, or a Python number."""

Weight = Value
"""Weight of a value in a mean."""

_ALLOWED = "a number, a tensor with one element or a torchmetrics metric"


def log_error(
    name: str, field: str, rule: str, value: object, action: str, kind: type[Exception] = ValueError
) -> Exception:
    """Return an error about a call of `log` for a name; see `must_be`."""
    return kind(must_be(field, rule, value, f"log({name!r})", action))


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
    is_collection = isinstance(value, Mapping) or is_metric(value, "MetricCollection")
    action = "Log each of its values with `log_dict`." if is_collection else "Convert it to a number."
    raise log_error(name, "value", _ALLOWED, value, action, TypeError)


def check_tensor(name: str, value: Tensor) -> Tensor:
    """Return a logged tensor without its graph, of shape (); not a copy. Does not wait for the device.

    Raises:
        ValueError: If it has no element or several.
        TypeError: If it is complex.
    """
    got = f"({type(value).__name__}) in log({name!r})"
    if value.numel() != 1:
        got = f"shape {tuple(value.shape)} {got}. Reduce it first, for example with `.mean()`."
        raise ValueError(f"`value` must be {_ALLOWED}, but got {got}")
    if value.is_complex():
        raise TypeError(f"`value` must be a real tensor, but got {value.dtype} {got}. Log its real part.")
    return value.detach().reshape(())


def check_batch_size(name: str, batch_size: Any) -> Weight:
    """Return a batch size as a Python number, or as a copy on its accelerator, which is not waited for.

    Raises:
        TypeError: If it is neither a number nor a tensor with one element.
        ValueError: If it is negative; one on an accelerator is not read.
    """
    size = batch_size
    if isinstance(size, Tensor) and size.numel() == 1 and not size.is_complex():
        if size.device.type != "cpu":
            return size.detach().reshape(()).to(widest_float(size.device), copy=True)
        size = size.item()
    if isinstance(size, Real) and float(size) >= 0:
        return int(size) if isinstance(size, int) else float(size)
    kind, action = ValueError if isinstance(size, Real) else TypeError, "Pass the number of samples in the batch."
    raise log_error(name, "batch_size", "a number, 0 or more", size, action, kind)


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
            rule, got = "contain a tensor to weigh an epoch's mean by its size", f"none ({type(self.batch).__name__})"
            raise ValueError(f"`batch` must {rule}, but got {got} in log. Pass `batch_size`.")
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
        if self.borrows and any(tensor._version for tensor in tensors):
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


def to_float_tensor(value: Value) -> Tensor:
    """Return a value cast to float32 or float64: torch's default type, unless it has one of the two.

    So it compares and prints as in a module's own computations, whatever precision it was added up in.
    """
    default, kept = torch.get_default_dtype(), (torch.float32, torch.float64)
    if isinstance(value, Tensor) and value.dtype in kept:
        return value
    return torch.as_tensor(value, dtype=default if default in kept else torch.float32)


def as_single_value(result: object) -> Value | None:
    """Return the result of a function or metric as a value; None if it is not one number."""
    if isinstance(result, Tensor) and result.numel() == 1:
        return result.detach().reshape(())
    return float(result) if isinstance(result, (int, float)) else None


def to_floats(values: Mapping[K, Value]) -> dict[K, float]:
    """Return values as Python numbers, in one transfer from each device. Waits for these devices."""
    numbers: dict[K, Any] = dict(values)
    on_devices: dict[torch.device, list[K]] = {}
    for key, value in numbers.items():
        if isinstance(value, Tensor):
            on_devices.setdefault(value.device, []).append(key)
        else:
            numbers[key] = float(value)
    for device, keys in on_devices.items():
        wide, tensors = widest_float(device), [numbers[key] for key in keys]
        # promotion keeps single precision's values; integers and half precision are widened first
        stacked = torch.stack([t if t.dtype in (torch.float32, wide) else t.to(wide) for t in tensors])
        numbers.update(zip(keys, stacked.tolist(), strict=True))
    return numbers


def result_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return double precision for double precision and integers, else single precision."""
    is_narrow = (dtype.is_floating_point and dtype != torch.float64) or dtype == torch.bool
    return torch.float32 if is_narrow else torch.float64


def save_nested(values: Any) -> Any:
    """Return nested values as a checkpoint holds them: copies of tensors, each with its device. Waits for no device."""
    return map_nested(values, lambda item: isinstance(item, Tensor), _save_tensor)


def load_nested(saved: Any) -> Any:
    """Return copies of the values that `save_nested` was given."""
    return map_nested(saved, lambda item: isinstance(item, dict) and isinstance(item.get("device"), str), load_tensor)


def load_tensor(saved: dict[str, Any]) -> Tensor:
    """Return a copy of a saved tensor on its device; if that is missing, on the current one of its type, or the CPU."""
    tensor: Tensor = saved["tensor"]
    return tensor.to(_present(torch.device(saved["device"])), copy=True)


def _save_tensor(tensor: Tensor) -> dict[str, Any]:
    tensor = tensor.detach().clone()
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

UNKNOWN_FUNCTION = "A user's function"  # no argument is equal to it, as texts are put in lower case
"""Stands for a user's function, which neither a checkpoint nor another process can hold, until `log` is passed it."""

BLOCK_SIZE = 128
"""Number of tensors that are kept one by one before a single operation on their device folds them."""

Fold = tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor], Callable[[float, float], float]]

FOLDS: dict[str | None, Fold] = {
    "mean": (torch.sum, torch.add, operator.add),
    "sum": (torch.sum, torch.add, operator.add),
    "max": (torch.max, torch.maximum, max),
    "min": (torch.min, torch.minimum, min),
}
"""Per reduction: how a block of tensors, two tensors and two numbers (the second not NaN) become one."""

_NAMES: dict[Any, str] = {name: name for name in ("mean", "sum", "max", "min")}
_NAMES |= {"avg": "mean", torch.mean: "mean", torch.sum: "sum", torch.max: "max", torch.min: "min"}
_NAMES |= {sum: "sum", max: "max", min: "min"}


def reduction_name(reduce_fx: object) -> str | None:
    """Return "mean", "sum", "max" or "min"; None for anything else, such as a user's function."""
    return _NAMES.get(reduce_fx) if reduce_fx.__hash__ is not None else None


class Part(NamedTuple):
    """The contribution of one process to a value that is reduced over processes.

    Attributes:
        value: The sum of weighted values, or the extreme; for a user's function all values, of shape (n,).
        weight: The sum of the weights, a tensor if one was.
        dtype: Type of the reduced tensor; None if only numbers were logged, so that the result is a number.
    """

    value: Value
    weight: Weight = 1.0
    dtype: torch.dtype | None = None


class Reduction:
    """The values of an epoch: their mean weighted by batch size, sum, maximum or minimum, or a function of all.

    The first four are kept as one running tensor per device, in its widest precision, and one number; the result has
    double precision if any tensor had it or held integers, else single precision. For a function all values are kept,
    in blocks on their device.

    Args:
        reduce_fx: "mean", "sum", "max", "min", the function of torch or Python of that name, any function of a
            one-dimensional tensor with all values of the epoch, which is called once at its end, or `UNKNOWN_FUNCTION`.
        name: Name of the logged value, for messages.
        inspect: Called with the tensors of a block before they are folded.

    Attributes:
        function: The function; None for the four others.
        is_weighted: Whether the weights of values matter.

    Raises:
        ValueError: If `reduce_fx` is a text that names no reduction.
        TypeError: If it is neither a text nor callable.
    """

    def __init__(self, reduce_fx: ReduceFx, name: str, inspect: Callable[[Sequence[Tensor]], None]) -> None:
        named = reduction_name(reduce_fx)
        if named is None and not callable(reduce_fx) and reduce_fx != UNKNOWN_FUNCTION:
            rule = "'mean', 'sum', 'max', 'min' or a function of a tensor"
            kind = ValueError if isinstance(reduce_fx, str) else TypeError
            raise log_error(name, "reduce_fx", rule, reduce_fx, "Pass one of these.", kind)
        self.function = reduce_fx if named is None else None
        self.is_weighted = named == "mean"
        self._fold_block, self._fold_tensors, self._fold_numbers = FOLDS[named or "sum"]
        self._name = name
        self._inspect = inspect
        self._tensors: list[Tensor] = []
        self._weights: list[Weight] = []
        self._folded: list[Tensor] = []  # one per device; for a function every block
        self._dtype = torch.float32
        self._number: float | None = None
        self._weight: float = 0
        self._device_weights: list[Tensor] = []  # sums, one per device

    def add(self, value: Value, weight: Weight) -> None:
        """Collect a value. Never waits for a device."""
        if not isinstance(value, Tensor):
            if self.function is None and not isinstance(weight, Tensor):
                number = self._number
                if self.is_weighted:
                    self._weight += weight
                    self._number = value * weight + (number or 0)
                elif number is None or value != value:  # NaN stays
                    self._number = value
                else:
                    self._number = self._fold_numbers(number, value)
                return
            value = as_tensor(value)
        self._tensors.append(value)
        self._weights.append(weight)
        if len(self._weights) >= BLOCK_SIZE:  # more after a resume for several processes
            self._fold()

    def result(self) -> Value | None:
        """Return the reduced value, on the device of the values. Never waits for a device.

        More values may be added.

        Returns:
            The value; None without any, or without a known function.
        """
        part = self.part()
        if part is None or self.function == UNKNOWN_FUNCTION:
            return None
        value, weight, dtype = part
        if self.function is not None:
            return self.apply(as_tensor(value))
        if self.is_weighted:
            value = value / weight if isinstance(value, Tensor) or weight else math.nan
        if isinstance(value, Tensor) and dtype is not None and dtype.itemsize <= widest_float(value.device).itemsize:
            return value.to(dtype)
        return value

    def part(self) -> Part | None:
        """Return this process's contribution to a reduction over several; None if there was no value."""
        self._fold()
        if not self._folded:
            return None if self._number is None else Part(self._number, self._weight)
        if self.function is not None:
            device = self._folded[-1].device
            return Part(torch.cat([block.to(device) for block in self._folded]))
        total = reduce(lambda one, other: self._fold_tensors(one, other.to(one.device)), self._folded)
        if self._number is not None:
            total = self._fold_tensors(total, torch.full_like(total, self._number))
        weight: Weight = self._weight
        for on_device in self._device_weights:
            weight = on_device.to(total.device, total.dtype) + weight
        return Part(total, weight, self._dtype)

    def apply(self, values: Tensor) -> Value:
        """Apply the function to values, on the device of those collected here.

        Raises:
            ValueError: If it does not return one number.
        """
        assert callable(self.function)
        reduced = self.function(values.to(self._folded[-1].device) if self._folded else values)
        value = as_single_value(reduced)
        if value is None:
            rule, action = "a function that returns one number", "Return a tensor with one element."
            raise log_error(self._name, "reduce_fx", rule, reduced, action)
        return value

    def state_dict(self) -> dict[str, Any]:
        """Return all that was collected, tensors of the same type and device as one; folds nothing."""
        blocks = groupby(self._tensors, key=lambda tensor: (tensor.dtype, tensor.device))
        state: dict[str, Any] = {"tensors": [torch.stack(list(block)) for _, block in blocks]}
        state |= {"weights": list(self._weights), "folded": list(self._folded)}
        state |= {"device_weights": list(self._device_weights)} if self._device_weights else {}
        return state | {"dtype": self._dtype, "number": self._number, "weight": self._weight}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state; later values are folded in the same blocks as without the interruption."""
        self._tensors = [tensor for block in state["tensors"] for tensor in block.unbind()]
        self._weights, self._dtype = list(state["weights"]), state["dtype"]
        self._number, self._weight = state["number"], state["weight"]
        self._folded, self._device_weights = [], []
        for block in state["folded"]:  # two devices of the saved run may be one here
            self._collect(block)
        for weight in state.get("device_weights", ()):
            self._collect(weight, self._device_weights)

    def _fold(self) -> None:
        if not self._tensors:
            return
        self._inspect(self._tensors)
        tensors, weights = self._tensors, self._weights
        self._tensors, self._weights = [], []
        if self.function is not None:
            device = tensors[-1].device
            self._collect(torch.stack([tensor.to(device) for tensor in tensors]))
            return
        for device in {tensor.device for tensor in tensors}:
            here = [position for position, tensor in enumerate(tensors) if tensor.device == device]
            block = torch.stack([tensors[position] for position in here])
            if result_dtype(block.dtype) == torch.float64:
                self._dtype = torch.float64
            block = block.to(widest_float(device))
            folded = self._weigh(block, [weights[position] for position in here]) if self.is_weighted else None
            self._collect(self._fold_block(block) if folded is None else folded)

    def _collect(self, block: Tensor, folded: list[Tensor] | None = None) -> None:
        folded = self._folded if folded is None else folded
        for position, running in enumerate(folded):
            if self.function is None and running.device == block.device:
                folded[position] = self._fold_tensors(running, block)
                return
        folded.append(block)

    def _weigh(self, block: Tensor, weights: Sequence[Weight]) -> Tensor | None:
        """Return the weighted sum of a block; None if all weights are 1."""
        numbers = [weight for weight in weights if not isinstance(weight, Tensor)]
        if len(numbers) < len(weights):
            each = [
                weight.to(block.device, block.dtype) if isinstance(weight, Tensor) else block.new_full((), weight)
                for weight in weights
            ]
            on_device = torch.stack(each)
            self._collect(on_device.sum(), self._device_weights)
            return torch.dot(block, on_device)
        self._weight += sum(numbers)
        if numbers.count(numbers[0]) == len(numbers):
            return None if numbers[0] == 1 else block.sum() * numbers[0]
        # pinned memory: the copy does not wait for what the device still has to do
        asynchronous = copies_asynchronously(block.device)
        on_host = torch.tensor(numbers, dtype=block.dtype, pin_memory=asynchronous)
        return torch.dot(block, on_host.to(block.device, non_blocking=asynchronous))


def join_reductions(one: dict[str, Any], other: dict[str, Any], reduce_fx: str) -> dict[str, Any]:
    """Return the state of a `Reduction` with the values of two, of two processes."""
    fold = FOLDS[reduce_fx if reduce_fx in FOLDS else "sum"][2]
    numbers = [state["number"] for state in (one, other) if state["number"] is not None]
    number = math.nan if any(map(math.isnan, numbers)) else reduce(fold, numbers) if numbers else None
    names = ("tensors", "weights", "folded", "device_weights")
    lists = {name: [*one.get(name, ()), *other.get(name, ())] for name in names}
    dtype = torch.float64 if torch.float64 in (one["dtype"], other["dtype"]) else one["dtype"]
    return {**one, **lists, "number": number, "weight": one["weight"] + other["weight"], "dtype": dtype}

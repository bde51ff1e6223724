"""Statistics of what the submodules of a module compute in one step, and where it ceases to be finite.

It knows of no trainer: the step is whatever the block of `inspect_step` runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, Self

import attrs
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from camshaft.callbacks.arguments import InvalidArgumentError
from camshaft.forensics.ledger.digests import named_leaves
from camshaft.hooks_core.support.devices import widest_float

NUM_PER_CHUNK = 1 << 22
"""Elements that are computed with at a time, in double precision."""


@attrs.frozen
class TensorStatistics:
    """Statistics of a tensor; of one that is sharded, of this process's part.

    Attributes:
        shape: Its shape.
        dtype: Its dtype.
        min: Smallest of the finite values, of complex ones by magnitude; NaN if there are none, as with the next four.
        max: Largest of the finite values.
        mean: Mean of the finite values.
        std: Standard deviation of the finite values, over their number.
        norm: 2-norm of the finite values.
        num_nan: Number of values that are NaN.
        num_inf: Number of values that are plus infinity.
        num_minus_inf: Number of values that are minus infinity.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    min: float
    max: float
    mean: float
    std: float
    norm: float
    num_nan: int
    num_inf: int
    num_minus_inf: int

    @property
    def num_non_finite(self) -> int:
        """Number of values that are NaN or infinite."""
        return self.num_nan + self.num_inf + self.num_minus_inf

    @classmethod
    def of(cls, tensor: Tensor) -> Self:
        """Return the statistics of a tensor of any dtype and layout. Waits for its device."""
        shape, dtype = tuple(tensor.shape), tensor.dtype
        with torch.no_grad():
            return cls(shape, dtype, *_moments(() if tensor.is_meta else _chunks_of(tensor)))


def _moments(chunks: Sequence[Tensor]) -> list[Any]:
    """Return minimum, maximum, mean, standard deviation, norm, and numbers of NaN, inf and -inf of flat values."""
    bounds: list[float] = []
    counts = [0, 0, 0]
    num_finite, total, squares, deviations = 0, 0.0, 0.0, 0.0
    for values in map(_doubles, chunks):
        tests = values.isnan(), values.isposinf(), values.isneginf()
        counts = [count + int(test.sum()) for count, test in zip(counts, tests, strict=True)]
        finite = values[values.isfinite()]
        num_finite += finite.numel()
        bounds += [float(finite.min()), float(finite.max())] if finite.numel() else []
    if not bounds:
        return [math.nan] * 5 + counts
    smallest, largest = min(bounds), max(bounds)
    scale = max(abs(smallest), abs(largest)) or 1.0  # so that sums and squares neither overflow nor vanish
    for values in map(_doubles, chunks):
        scaled = values[values.isfinite()] / scale
        total, squares = total + float(scaled.sum()), squares + float(scaled.square().sum())
    for values in map(_doubles, chunks):
        deviations += float((values[values.isfinite()] / scale - total / num_finite).square().sum())
    mean, std, norm = total / num_finite, math.sqrt(deviations / num_finite), math.sqrt(squares)
    return [smallest, largest, scale * mean, scale * std, scale * norm, *counts]


def _doubles(values: Tensor) -> Tensor:
    magnitudes = values.abs() if values.is_complex() else values
    return magnitudes.to(widest_float(values.device))


@attrs.define(eq=False)
class SubmoduleCall:
    """One call of a submodule.

    Attributes:
        name: Its name in the module; "" is the module itself.
        type: Its class.
        call_idx: Index of the call among those of the submodule, which may be called several times.
        outputs: Statistics of the tensors that it returned, by their place in what it returned; "" if it was a tensor.
        gradients: Those of the loss's gradients with respect to them, as far as these were computed.
    """

    name: str
    type: str
    call_idx: int
    outputs: dict[str, TensorStatistics] = attrs.field(factory=dict)
    gradients: dict[str, TensorStatistics] = attrs.field(factory=dict)


@attrs.define(eq=False)
class ParameterStatistics:
    """Statistics of a parameter.

    Attributes:
        values: Those of its values when the step began.
        gradient: Those of its gradient in this step; of one that is sharded what it had accumulated when the step
            ended. None if there was none.
    """

    values: TensorStatistics
    gradient: TensorStatistics | None = None


Kind = Literal["batch", "parameter", "input", "output", "loss", "gradient"]
"""What of a step has values that are not finite."""


@attrs.frozen
class NonFinite:
    """A place of a step at which values are NaN or infinite that were computed from finite ones.

    Attributes:
        kind: What is not finite: "output" of a submodule, though its inputs are; "batch" or "parameter" before the
            step; "input" of a submodule, computed by the code of its caller; "loss", computed by the code of the step;
            "gradient", computed in the backward pass.
        name: Name of the submodule whose code computed it, "" being the module itself; of a parameter its own name; of
            a batch the place in it.
        message: A sentence about it.
    """

    kind: Kind
    name: str
    message: str

    def __str__(self) -> str:
        return self.message


@attrs.define(eq=False)
class StepInspection:
    """Statistics of a step, as `inspect_step` found them.

    Attributes:
        calls: Calls of submodules, in the order in which they ended; those that activation checkpointing repeats too.
        parameters: Statistics of the parameters by name.
        origins: Where values ceased to be finite, in the order of execution: forward first, then backward. Of backward
            only the first, and only if nothing was found in forward. Where infinities turn into NaN is listed too.
            Tensors whose only infinities are -inf, as those of masks, count only if NaN or inf comes of them; then
            those of the batch and of the step's own code are listed after what comes of them.
    """

    calls: list[SubmoduleCall] = attrs.field(factory=list)
    parameters: dict[str, ParameterStatistics] = attrs.field(factory=dict)
    origins: list[NonFinite] = attrs.field(factory=list)
    _masks: list[NonFinite] = attrs.field(factory=list, init=False)
    """Tensors that would be origins if they were no masks."""

    @property
    def first_non_finite(self) -> NonFinite | None:
        """Where values first ceased to be finite; None if all are."""
        return self.origins[0] if self.origins else None

    def add_loss(self, loss: Tensor) -> None:
        """Look at a loss too: it may be what is not finite, though all submodules' outputs are. Waits for its device.

        Args:
            loss: The loss, before it is differentiated.
        """
        if self.origins or not _is_bad(loss):
            return
        self.origins += self._masks
        if not self.origins:
            message = f"The loss is not finite ({loss.item()}), though all outputs of submodules are."
            self.origins.append(NonFinite("loss", "", message))

    def render(self, max_rows: int | None = None) -> str:
        """Return what was found as text: where values ceased to be finite, and a table.

        Args:
            max_rows: Largest number of rows of the table; None for all.
        """
        head = [str(origin) for origin in self.origins] or ["All values and gradients are finite."]
        rows = list(self._rows())
        shown = rows if max_rows is None else rows[:max_rows]
        rest = [f"... and {len(rows) - len(shown)} rows more"] if len(shown) < len(rows) else []
        return "\n".join([*head, "", *_aligned([_HEADINGS, *shown]), *rest])

    __str__ = render

    def _rows(self) -> Iterator[tuple[str, ...]]:
        for call in self.calls:
            name = call.name or "(module)"
            name += f" (call {call.call_idx + 1})" if call.call_idx else ""
            for place, statistics in call.outputs.items():
                yield (name, call.type, _tensor_name("output", place), *_cells(statistics))
                if place in call.gradients:
                    yield (name, "", _tensor_name("gradient", place), *_cells(call.gradients[place]))
        for name, parameter in self.parameters.items():
            yield (name, "Parameter", "value", *_cells(parameter.values))
            if parameter.gradient is not None:
                yield (name, "", "gradient", *_cells(parameter.gradient))


_HEADINGS = ("name", "type", "tensor", "shape", "dtype", "min", "max", "mean", "std", "norm", "not finite")
_NUM_OF_TEXTS = 5


def _tensor_name(kind: str, place: str) -> str:
    return f"{kind} {place}" if place else kind


def _cells(statistics: TensorStatistics) -> list[str]:
    numbers = (statistics.min, statistics.max, statistics.mean, statistics.std, statistics.norm)
    shape = "x".join(map(str, statistics.shape)) or "scalar"
    dtype = str(statistics.dtype).removeprefix("torch.")
    return [shape, dtype, *(f"{number:.4g}" for number in numbers), _bad_cell(statistics)]


def _bad_cell(statistics: TensorStatistics) -> str:
    counts = {"NaN": statistics.num_nan, "inf": statistics.num_inf, "-inf": statistics.num_minus_inf}
    return ", ".join(f"{number} {name}" for name, number in counts.items() if number) or "0"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    columns = []
    for idx, column in enumerate(zip(*rows, strict=True)):
        width = max(map(len, column))
        columns.append([cell.ljust(width) if idx < _NUM_OF_TEXTS else cell.rjust(width) for cell in column])
    return ["  ".join(row).rstrip() for row in zip(*columns, strict=True)]


@contextmanager
def inspect_step(
    module: nn.Module, batch: Any = None, gradients: dict[str, Tensor] | None = None
) -> Iterator[StepInspection]:
    """Gather statistics of the outputs and gradients of all submodules while the block runs a step.

    The block calls the submodules (by itself, or by a step of the module) and may differentiate a loss. Neither values
    nor random numbers change by it. Each tensor is waited for. Code that calls no submodule is seen by its effect: by
    the inputs of what comes next, or by the loss, if the block passes it to `add_loss`. Submodules that
    `torch.compile` has compiled are not seen, nor those inside them: make the step in eager mode
    (`torch.compiler.set_stance("force_eager")`).

    Args:
        module: The module.
        batch: What the step gets, to be told apart from what it computes; None if it is not to be looked at.
        gradients: Gets the gradients of the parameters by name; of one that is sharded what it had accumulated when the
            step ended. None keeps none.

    Yields:
        The inspection, which fills while the block runs.

    Raises:
        InvalidArgumentError: If `module` is not a `torch.nn.Module`.
    """
    if not isinstance(module, nn.Module):
        raise InvalidArgumentError("module", "a torch.nn.Module", module, "inspect_step", "Pass the module itself.")
    watch = _Watch(module, batch, gradients)
    try:
        watch.attach()
        yield watch.inspection
    finally:
        watch.detach()


_MASK = 1


def _level(statistics: TensorStatistics) -> int:
    """Return how far a tensor is from being finite: 3 with NaN, 2 with inf, 1 (`_MASK`) with -inf alone, else 0."""
    if statistics.num_nan:
        return 3
    return 2 if statistics.num_inf else _MASK if statistics.num_minus_inf else 0


@attrs.define(eq=False)
class _Running:
    """A call of a submodule, while it runs and until its backward pass."""

    module: nn.Module
    call: SubmoduleCall
    parent: _Running | None
    worst_input: int
    worst_inside: int = 0


@attrs.define(eq=False)
class _Value:
    """A tensor with a gradient, as it is between two changes in place."""

    tensor: Tensor  # kept, so that no other one gets its id
    outputs: list[tuple[_Running, str]] = attrs.field(factory=list)
    takers: list[_Running] = attrs.field(factory=list)

    def add_taker(self, running: _Running) -> None:
        """Note a call that takes it; of calls within each other the innermost stays."""
        around = running.parent
        while around is not None:
            self.takers = [one for one in self.takers if one is not around]
            around = around.parent
        if running not in self.takers:
            self.takers.append(running)


class _Watch:
    """The hooks of one inspection."""

    def __init__(self, module: nn.Module, batch: Any, gradients: dict[str, Tensor] | None) -> None:
        self.inspection = StepInspection()
        self._gradients = gradients
        self._origins = self.inspection.origins
        # A submodule that stands at several places has the name of the first.
        self._names = {part: name for name, part in module.named_modules()}
        self._parameters = {name: one for name, one in module.named_parameters() if not is_lazy(one)}
        self._num_calls: dict[str, int] = {}
        self._innermost: _Running | None = None
        self._handles: list[Any] = []
        self._values: dict[tuple[int, int], _Value] = {}
        self._worst = 0  # level of what was noted
        for path, tensor in _tensors_in(batch):
            if _is_bad(tensor):
                statistics = TensorStatistics.of(tensor)
                place = f" at {path}" if path else ""
                message = f"The batch is not finite before the step{place} ({_counted(statistics)})."
                self._note(NonFinite("batch", path, message), _level(statistics))
        for name, parameter in self._parameters.items():
            values = TensorStatistics.of(parameter)
            self.inspection.parameters[name] = ParameterStatistics(values)
            if values.num_non_finite:
                message = f"The parameter {name} is not finite before the step ({_counted(values)})."
                self._origins.append(NonFinite("parameter", name, message))

    def attach(self) -> None:
        """Register the hooks."""
        for part in self._names:
            self._handles.append(part.register_forward_pre_hook(self._before_forward, with_kwargs=True))
            self._handles.append(part.register_forward_hook(self._after_forward))
        for name, parameter in self._parameters.items():
            if parameter.requires_grad and not hasattr(parameter, "device_mesh"):
                hook = partial(self._see_parameter_gradient, name)
                self._handles.append(parameter.register_hook(hook))  # type: ignore[no-untyped-call]

    def detach(self) -> None:
        """Remove the hooks, and look at gradients of parameters that are sharded, whose hooks are not called."""
        for handle in self._handles:
            handle.remove()
        for name, parameter in self._parameters.items():
            if hasattr(parameter, "device_mesh") and parameter.grad is not None:
                self._see_parameter_gradient(name, parameter.grad)

    def _before_forward(self, part: nn.Module, args: Any, kwargs: Any) -> None:
        inputs = [tensor for _, tensor in _tensors_in((args, kwargs))]
        name, parent = self._names[part], self._innermost
        call = SubmoduleCall(name, type(part).__name__, self._num_calls.get(name, 0))
        self._num_calls[name] = call.call_idx + 1
        bad = [TensorStatistics.of(tensor) for tensor in inputs if _is_bad(tensor)]
        worst = max(map(_level, bad), default=0)
        running = self._innermost = _Running(part, call, parent, worst)
        if worst > self._worst:
            by = "the code of the step" if parent is None else f"the code of {_quoted(parent.call)}"
            message = f"The input of {_quoted(call)} is not finite ({_counted(bad[0])}): {by} computed it."
            self._note(NonFinite("input", _caller(running), message), worst)
        for tensor in inputs:
            if tensor.requires_grad:
                self._value_of(tensor).add_taker(running)

    def _value_of(self, tensor: Tensor) -> _Value:
        """Return what is known of a tensor that has a gradient, and have its gradient looked at."""
        key = id(tensor), tensor._version
        if key not in self._values:
            value = self._values[key] = _Value(tensor)
            hook = partial(self._see_gradient, value)
            self._handles.append(tensor.register_hook(hook))  # type: ignore[no-untyped-call]
        return self._values[key]

    def _after_forward(self, part: nn.Module, args: Any, outputs: Any) -> None:
        running = self._innermost
        while running is not None and running.module is not part:  # calls that have raised
            running = running.parent
        if running is None:
            return
        call, parent = running.call, running.parent
        self._innermost = parent
        self.inspection.calls.append(call)
        for place, tensor in _tensors_in(outputs):
            statistics = call.outputs[place] = TensorStatistics.of(tensor)
            if statistics.num_non_finite:
                self._judge_output(running, place, statistics)
            if tensor.requires_grad:
                self._value_of(tensor).outputs.append((running, place))

    def _judge_output(self, running: _Running, place: str, statistics: TensorStatistics) -> None:
        """Note an output that is not finite, unless inputs or calls within explain it."""
        level, parent = _level(statistics), running.parent
        if parent is not None:
            parent.worst_inside = max(parent.worst_inside, level)
        explained = max(running.worst_input, running.worst_inside)
        if level <= explained:
            return
        running.worst_inside = level  # so that another tensor of the same output is no news
        own = [*running.module.named_parameters(recurse=False), *running.module.named_buffers(recurse=False)]
        bad = [name for name, tensor in own if not is_lazy(tensor) and _is_bad(tensor)]
        though = "its inputs hold no NaN" if explained else "its inputs are"
        so_is = f"; its {bad[0]} is not finite either" if bad else ""
        what = f"The {_tensor_name('output', place)} of {_quoted(running.call)}"
        message = f"{what} is not finite ({_counted(statistics)}), though {though}{so_is}."
        self._note(NonFinite("output", running.call.name, message), level)

    def _note(self, origin: NonFinite, level: int) -> None:
        """Note where values ceased to be finite."""
        self._worst = max(self._worst, level)
        masks = self.inspection._masks
        if level is _MASK:
            masks.append(origin)
            return
        self._origins += [one for one in masks if one.kind == "output"]
        self._origins.append(origin)
        self._origins += [one for one in masks if one.kind != "output"]
        masks.clear()

    def _see_gradient(self, value: _Value, gradient: Tensor) -> None:
        statistics = TensorStatistics.of(gradient)
        for running, place in value.outputs:
            running.call.gradients[place] = statistics
        if self._origins or not statistics.num_non_finite:
            return
        if value.takers:
            what, by = f"input of {' and '.join(_quoted(one.call) for one in value.takers)}", value.takers[0].call.name
        else:
            running, place = value.outputs[0]
            what, by = f"{_tensor_name('output', place)} of {_quoted(running.call)}", _caller(running)
        self._add_gradient(what, statistics, by)

    def _see_parameter_gradient(self, name: str, gradient: Tensor) -> None:
        if self._gradients is not None:
            so_far = self._gradients.get(name)
            self._gradients[name] = gradient.detach().clone() if so_far is None else so_far + gradient.detach()
        statistics = self.inspection.parameters[name].gradient = TensorStatistics.of(gradient)
        if statistics.num_non_finite and not self._origins:
            self._add_gradient(f"parameter {name}", statistics, name.rpartition(".")[0])

    def _add_gradient(self, what: str, statistics: TensorStatistics, name: str) -> None:
        message = f"The gradient of the {what} is not finite ({_counted(statistics)}), the first in the backward pass."
        self._origins.append(NonFinite("gradient", name, message))


def _caller(running: _Running) -> str:
    return "" if running.parent is None else running.parent.call.name


def _quoted(call: SubmoduleCall) -> str:
    name = f"{call.name} ({call.type})" if call.name else f"the module ({call.type})"
    return f"{name}, call {call.call_idx + 1}," if call.call_idx else name


def _tensors_in(value: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a nested value that hold numbers, with their places."""
    for path, leaf in named_leaves(value, ""):
        if isinstance(leaf, Tensor):
            yield path, leaf


def _is_bad(tensor: Tensor) -> bool:
    """Return whether a tensor holds a NaN or an infinity. Waits for its device."""
    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.is_meta:
        return False
    with torch.no_grad():
        return not all(bool(chunk.isfinite().all()) for chunk in _chunks_of(tensor))


def _chunks_of(tensor: Tensor) -> Sequence[Tensor]:
    """Return this process's values of a tensor, flat, in parts of limited size."""
    values: Any = tensor.detach()
    if hasattr(values, "device_mesh"):
        values = values.to_local()
    if values.layout is not torch.strided:
        values = values.to_dense()
    if values.dtype.itemsize == 1 and values.is_floating_point():
        values = values.to(torch.float32)  # as hardly any function takes 8-bit floats
    return torch.split(values.reshape(-1), NUM_PER_CHUNK) if values.numel() else ()


def _counted(statistics: TensorStatistics) -> str:
    return f"{_bad_cell(statistics)} of {math.prod(statistics.shape):,} values"

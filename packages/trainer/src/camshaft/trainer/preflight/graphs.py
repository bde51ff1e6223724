"""Graphs and graph breaks of what a strategy compiles: Dynamo traces a copy of the model, with fake inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from attrs import field, frozen
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from camshaft.trainer.preflight.world import FakeDevice


@frozen
class GraphBreak:
    """A place where a graph ends, and another begins.

    Attributes:
        reason: Dynamo's reason, its first line.
        file, line, code: The place.
    """

    reason: str
    file: str
    line: int
    code: str


@frozen
class CompiledPart:
    """A compiled module, as the first step calls it.

    Attributes:
        name: Its name in the model; "" for the model itself.
        num_graphs: The number of its graphs.
        breaks: Where they end but for the last one.
    """

    name: str
    num_graphs: int = 0
    breaks: list[GraphBreak] = field(factory=list)


class Calls:
    """The first call of each module that is to be compiled, but of those that another one calls.

    Shapes and dtypes of inputs are kept, not the tensors, whose memory would count.
    """

    def __init__(self) -> None:
        self._inputs: dict[str, Any] = {}
        self._handles: list[Any] = []
        self._depth = 0

    def watch(self, module: nn.Module, parts: Sequence[nn.Module]) -> None:
        """Note the calls of parts of a module until `close`."""
        names = {id(part): name for name, part in module.named_modules()}
        for part in parts:
            entering = partial(self._enter, names[id(part)])
            self._handles.append(part.register_forward_pre_hook(entering, with_kwargs=True))
            self._handles.append(part.register_forward_hook(self._leave, always_call=True))

    def close(self) -> None:
        """Note no more."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _enter(self, name: str, part: nn.Module, args: Any, kwargs: Any) -> None:
        if self._depth == 0 and name not in self._inputs:
            self._inputs[name] = pytree.tree_map(_layout_of, (args, kwargs))
        self._depth += 1

    def _leave(self, *args: Any) -> None:
        self._depth -= 1

    def trace(
        self, module: nn.Module, device: FakeDevice, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]
    ) -> tuple[list[CompiledPart], list[str]]:
        """Let Dynamo trace the calls.

        Args:
            module: A copy of the module, on the fake device.
            device: The fake device.
            wrap: Returns a function in the strategy's precision.

        Returns:
            The parts; and what could not be traced, and why.
        """
        parts, failures = list[CompiledPart](), list[str]()
        for name, layouts in self._inputs.items():
            with device, device.on():
                args, kwargs = pytree.tree_map(lambda one: one.made() if isinstance(one, _Layout) else one, layouts)
            try:
                parts.append(_trace(name, module.get_submodule(name), wrap, args, kwargs))
            except Exception as error:
                text = " ".join(str(error).split())[:200]
                failures.append(f"graphs of {name or 'the model'}: {type(error).__name__}: {text}")
        return parts, failures


@frozen
class _Layout:
    size: torch.Size
    dtype: torch.dtype
    requires_grad: bool

    def made(self) -> Tensor:
        return torch.empty(self.size, dtype=self.dtype, requires_grad=self.requires_grad)


def _layout_of(value: Any) -> Any:
    return _Layout(value.size(), value.dtype, value.requires_grad) if isinstance(value, Tensor) else value


def _trace(
    name: str, part: nn.Module, wrap: Callable[[Callable[..., Any]], Callable[..., Any]], args: Any, kwargs: Any
) -> CompiledPart:
    reasons = list[Any]()

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        reasons.append(graph.compile_subgraph_reason)
        return graph.forward

    def call(*args: Any, **kwargs: Any) -> Any:  # a frame that Dynamo takes, unlike those of torch's own modules
        return part(*args, **kwargs)

    try:
        wrap(torch.compile(call, backend=backend))(*args, **kwargs)
    finally:
        torch._dynamo.reset()  # the code of `call` is that of all parts
    breaks = list[GraphBreak]()
    for reason in reasons:
        if reason.graph_break:
            place = reason.user_stack[-1]
            first_line = reason.reason.strip().partition("\n")[0]
            breaks.append(GraphBreak(first_line, place.filename, place.lineno, place.line or ""))
    return CompiledPart(name, len(reasons), breaks)

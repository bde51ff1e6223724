"""One forward of a module with an example input, which changes nothing: shapes and FLOPs of each submodule."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from camshaft.callbacks.module_snapshot import save_module
from camshaft.hooks_core.support.transfer import map_nested

if TYPE_CHECKING:
    from torch.utils.flop_counter import FlopCounterMode


_MAX_SHAPE_LENGTH = 48  # characters


@dataclass
class PartForward:
    """Shapes of a submodule's first call, and FLOPs of all its calls.

    Args:
        in_shape: Shapes of its inputs, as text.
        out_shape: Shapes of its outputs, as text.
        flops: Floating-point operations of all its calls.
    """

    in_shape: str
    out_shape: str
    flops: int = 0


@dataclass
class ExampleForward:
    """Shapes and FLOPs of the submodules that were called, and FLOPs in total.

    Args:
        parts: What is known of each submodule that was called.
        total_flops: Floating-point operations of the whole forward.
    """

    parts: dict[nn.Module, PartForward] = field(default_factory=dict)
    total_flops: int = 0


def run_example(module: nn.Module, example: Any) -> ExampleForward:
    """Call the module with an example, in evaluation mode, without gradients, autocast or compiled code.

    Afterwards random number generators, buffers, attributes of all submodules, modes and gradients are restored.
    Changes inside of other objects, such as a cache, are not.

    Args:
        module: The module, on one device.
        example: A tensor; a tuple or list of positional arguments; a dictionary of keyword arguments. Tensors are moved
            to the module's device, and floating-point ones to its dtype if it has only one.

    Returns:
        Shapes and FLOPs.

    Raises:
        Exception: If the module's forward raises it.
    """
    on_cpu = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    from torch.utils.flop_counter import FlopCounterMode  # slow to import, and only needed here

    counter = FlopCounterMode(display=False, custom_mapping={on_cpu: _attention_flops})  # torch counts it on GPUs only
    seen = ExampleForward()
    with restored(module), countable(module), _recorded(module, counter, seen):
        args, kwargs = example_call(module, example)
        with counter:
            module(*args, **kwargs)
    seen.total_flops = counter.get_total_flops()
    return seen


def example_call(module: nn.Module, example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return copies of an example's positional and keyword arguments on the module's device; see `run_example`."""
    tensors = [*module.parameters(), *module.buffers()]
    device = tensors[0].device if tensors else None
    dtypes = {parameter.dtype for parameter in module.parameters() if parameter.is_floating_point()}
    dtype = dtypes.pop() if len(dtypes) == 1 else None

    def move(tensor: Tensor) -> Tensor:
        # A copy: the forward may change its input in place.
        return tensor.detach().to(device, dtype if tensor.is_floating_point() else None, copy=True)

    example = map_nested(example, lambda node: isinstance(node, Tensor), move)
    if isinstance(example, Mapping):
        return (), dict(example)
    return (tuple(example) if isinstance(example, (tuple, list)) else (example,)), {}


def reason_not_to_run(module: nn.Module) -> str | None:
    """Return why one process alone must not call a module before training; None if it may."""
    tensors = [*module.parameters(), *module.buffers()]
    if any(is_lazy(tensor) for tensor in tensors):
        return "it would give lazy parameters their shape"
    # There is no FSDP1 before its module is imported, which is slow.
    fsdp1 = getattr(sys.modules.get("torch.distributed.fsdp"), "FullyShardedDataParallel", ())
    if any(hasattr(one, "to_local") for one in tensors) or any(isinstance(part, fsdp1) for part in module.modules()):
        return "parameters are sharded, so that all processes would have to compute together"
    return "parameters are on the meta device" if any(tensor.is_meta for tensor in tensors) else None


def describe_shape(value: Any) -> str:
    """Return the shapes in a nested value, such as "[8, 3]" or "([8, 3], None)"."""
    text = _describe(value)
    return text if len(text) <= _MAX_SHAPE_LENGTH else f"{text[: _MAX_SHAPE_LENGTH - 3]}..."


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        return str(list(value.shape))
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {_describe(part)}" for name, part in value.items()) + "}"
    if isinstance(value, (tuple, list)):
        return "(" + ", ".join(_describe(part) for part in value) + ")"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _describe({one.name: getattr(value, one.name) for one in dataclasses.fields(value)})
    return repr(value) if value is None or isinstance(value, (bool, int, float)) else type(value).__name__


def _attention_flops(query: Sequence[int], key: Sequence[int], value: Sequence[int], *_: Any, **__: Any) -> int:
    """Count two matrix products per head, from shapes (batch, head, position, channel)."""
    batch, num_heads, num_queries, num_channels = query
    return 2 * batch * num_heads * num_queries * key[-2] * (num_channels + value[-1])


@contextlib.contextmanager
def _recorded(module: nn.Module, counter: FlopCounterMode, seen: ExampleForward) -> Iterator[None]:
    """Register hooks on every submodule that record shapes and FLOPs."""
    flops_before: list[int] = []

    def enter(part: nn.Module, args: Any, kwargs: Any) -> None:
        # Before the call, since it may change its input in place.
        if part not in seen.parts:
            given = (*args, *([kwargs] if kwargs else []))
            seen.parts[part] = PartForward(describe_shape(given[0] if len(given) == 1 else given), "?")
        flops_before.append(counter.get_total_flops())

    def leave(part: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        found = seen.parts[part]
        found.flops += counter.get_total_flops() - flops_before.pop()
        if found.out_shape == "?":
            found.out_shape = describe_shape(output)

    with contextlib.ExitStack() as handles:
        for part in module.modules():
            if not isinstance(part, torch.jit.ScriptModule):  # it supports no hooks with keywords
                handles.enter_context(part.register_forward_pre_hook(enter, prepend=True, with_kwargs=True))
                handles.enter_context(part.register_forward_hook(leave, with_kwargs=True))
        yield


@contextlib.contextmanager
def countable(module: nn.Module) -> Iterator[None]:
    """Use only operations that torch can count: not compiled, not fused across submodules."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        for device_type in {"cpu", *(tensor.device.type for tensor in module.parameters())}:
            if torch.amp.is_autocast_available(device_type):
                stack.enter_context(torch.autocast(device_type, enabled=False))
        if "torch._dynamo" in sys.modules:  # nothing is compiled before it is imported, which is slow
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        if any(isinstance(part, nn.RNNBase) for part in module.modules()):  # it would be one operation of a library
            backends: list[Any] = [torch.backends.mkldnn, torch.backends.cudnn]
            for backend in backends:
                stack.callback(setattr, backend, "enabled", backend.enabled)
                backend.enabled = False
        stack.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
        torch.backends.mha.set_fastpath_enabled(False)
        yield


@contextlib.contextmanager
def restored(module: nn.Module) -> Iterator[None]:
    """Set evaluation mode, and restore the module afterwards; see `run_example`."""
    numpy_random = getattr(sys.modules.get("numpy"), "random", None)
    found = {tensor.device for tensor in module.parameters()}
    devices = [
        device for device in found if device.type not in ("cpu", "meta")
    ]  # which have random states of their own
    with contextlib.ExitStack() as stack:
        if numpy_random is not None:
            stack.callback(numpy_random.set_state, numpy_random.get_state())
        stack.callback(random.setstate, random.getstate())
        stack.enter_context(torch.random.fork_rng(devices, device_type=devices[0].type if devices else None))
        restores = list(save_module(module, with_parameters=False))
        try:
            for part in module.modules():
                part.training = False  # not by `eval()`, which a submodule may override
            yield
        finally:
            with torch.no_grad():
                for restore in restores:
                    restore()

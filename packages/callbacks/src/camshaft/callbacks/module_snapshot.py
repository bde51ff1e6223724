"""Snapshots of modules and optimizers, which trial computations change."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

_OWN = frozenset(vars(nn.Module())) - {"training"}
"""Attributes in which `nn.Module` keeps parameters, buffers, submodules and hooks."""
_PLAIN = (bool, int, float, complex, str, bytes, type(None))

Restore = Callable[[], None]
"""Restores a part of a snapshot; to be called without gradients."""


def save_module(module: nn.Module, *, with_parameters: bool) -> Iterator[Restore]:
    """Yield functions that restore buffers and attributes of all submodules, bit for bit.

    Attributes are rebound to the same objects. Of these, tensors and containers get their contents back.

    Args:
        with_parameters: Whether to restore parameters too.
    """
    seen = {id(parameter) for parameter in module.parameters()}
    if with_parameters:
        yield from map(_save_tensor, module.parameters())
    for buffer in module.buffers():
        seen.add(id(buffer))
        yield _save_tensor(buffer)
    for part in module.modules():
        if isinstance(part, torch.jit.ScriptModule):  # its attributes are not Python's
            continue
        yield _refill_dict(vars(part))
        yield _refill_dict(part._buffers)
        for name, value in vars(part).items():
            if name not in _OWN:
                yield from _save_contents(value, seen)


def save_optimizer(optimizer: Optimizer) -> Iterator[Restore]:
    """Yield functions that restore attributes, groups and state; unlike `load_state_dict`, without converting types."""
    seen = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    yield _refill_dict(vars(optimizer))  # also what schedulers read to find that they step too early
    yield from _save_contents(optimizer.param_groups, seen)
    yield from _save_contents(optimizer.state, seen)
    for part in getattr(optimizer, "optimizers", ()):  # a joint one has no state of its own
        yield from save_optimizer(part)


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor, which shares its memory; all of it, unless it is sharded."""
    to_local = getattr(tensor, "to_local", None)
    if to_local is None:
        return tensor
    with torch.no_grad():
        part: Tensor = to_local()
        return part


def _save_tensor(tensor: Tensor) -> Restore:
    saved = local(tensor).detach().to("cpu", copy=True)  # since a trial may need all of the device's memory

    def restore() -> None:
        local(tensor).copy_(saved)

    return restore


def save_gradient(parameter: Tensor) -> Restore:
    """Return a function that restores the gradient of a parameter, bit for bit."""
    gradient = parameter.grad
    restore_values = None if gradient is None else _save_tensor(gradient)

    def restore() -> None:
        parameter.grad = gradient
        if restore_values is not None:
            restore_values()

    return restore


def _save_contents(value: Any, seen: set[int]) -> Iterator[Restore]:
    """Yield functions that restore tensors and containers of any nesting, each once."""
    if isinstance(value, _PLAIN) or id(value) in seen:
        return
    seen.add(id(value))
    items: Any = ()
    if isinstance(value, Tensor):
        # a tensor with a graph is not changed in place
        if value.is_leaf and value.layout is torch.strided and not value.is_inference():
            yield _save_tensor(value)
    elif isinstance(value, dict):
        yield _refill_dict(value)
        items = value.values()
    elif isinstance(value, (list, deque)):
        yield _refill(value, list(value), value.extend)
        items = value
    elif isinstance(value, set):
        yield _refill(value, set(value), value.update)
    elif isinstance(value, tuple):
        items = value
    for item in items:
        yield from _save_contents(item, seen)


def _refill_dict(container: dict[Any, Any]) -> Restore:
    items = list(container.items())

    def restore() -> None:
        now = list(container.items())
        if len(now) == len(items) and all(a is c and b is d for (a, b), (c, d) in zip(now, items, strict=True)):
            return
        base: Any = OrderedDict if isinstance(container, OrderedDict) else dict  # a subclass may refuse changes
        base.clear(container)
        for key, item in items:
            base.__setitem__(container, key, item)

    return restore


def _refill(container: Any, items: Any, fill: Callable[[Any], Any]) -> Restore:
    def restore() -> None:
        container.clear()
        fill(items)

    return restore

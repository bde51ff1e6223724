"""What training steps change, remembered so that it can be put back to the bit."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from camshaft.hooks_core.protocols import Strategy

_OWN = frozenset(vars(nn.Module())) - {"training"}
"""Attributes in which `nn.Module` keeps parameters, buffers, submodules and hooks."""

_PLAIN = (bool, int, float, complex, str, bytes, type(None))

Restore = Callable[[], None]


@contextmanager
def put_back(module: nn.Module, optimizers: Sequence[Optimizer], strategy: Strategy) -> Iterator[None]:
    """Whatever training steps change inside is as before afterwards, to the bit, also if they raise.

    That is weights, buffers, gradients, what the strategy has learned (such as the scale of losses), the state and the
    groups of optimizers, and attributes of modules that are tensors, plain values, or lists, dictionaries, sets and
    deques of these. Copies are held in the memory of the host. Other objects that a step changes stay changed.

    Args:
        module: The module, set up.
        optimizers: Its optimizers, set up.
        strategy: The strategy that set them up.
    """
    learned = strategy.state_dict()
    restores = [_remember_module(module), *map(_remember_optimizer, optimizers)]
    try:
        yield
    finally:
        with torch.no_grad():
            for restore in restores:
                restore()
        strategy.state_dict()  # brings up to date what else would follow from the last step later
        strategy.load_state_dict(learned)


def _remember_module(module: nn.Module) -> Restore:
    restores: list[Restore] = []
    seen: set[int] = set()
    for parameter in module.parameters():
        restores += [_remember_tensor(parameter), _remember_gradient(parameter)]
    for submodule in module.modules():
        restores.append(_remember_buffers(submodule))
        restores.append(_remember_attributes(submodule, seen))

    def restore() -> None:
        for each in restores:
            each()

    return restore


def _local(tensor: Tensor) -> Tensor:
    """This process's part of a tensor, which shares its memory."""
    to_local = getattr(tensor, "to_local", None)
    local: Tensor = tensor.detach() if to_local is None else to_local().detach()
    return local


def _remember_tensor(tensor: Tensor) -> Restore:
    saved = _local(tensor).to("cpu", copy=True)

    def restore() -> None:
        _local(tensor).copy_(saved)

    return restore


def _remember_gradient(parameter: nn.Parameter) -> Restore:
    gradient = parameter.grad
    restore_values = None if gradient is None else _remember_tensor(gradient)

    def restore() -> None:
        parameter.grad = gradient
        if restore_values is not None:
            restore_values()

    return restore


def _remember_buffers(module: nn.Module) -> Restore:
    buffers = dict(module._buffers)
    values = [_remember_tensor(buffer) for buffer in buffers.values() if buffer is not None]

    def restore() -> None:
        module._buffers.clear()
        module._buffers.update(buffers)
        for restore_values in values:
            restore_values()

    return restore


def _remember_attributes(module: nn.Module, seen: set[int]) -> Restore:
    attributes = {name: value for name, value in vars(module).items() if name not in _OWN and _is_known(value)}
    contents = [restore for value in attributes.values() for restore in _remember_contents(value, seen)]
    names = set(vars(module))

    def restore() -> None:
        own = vars(module)
        for name in set(own) - names:
            if _is_known(own[name]):
                del own[name]
        own.update(attributes)
        for restore_contents in contents:
            restore_contents()

    return restore


def _is_known(value: Any) -> bool:
    return isinstance(value, (*_PLAIN, Tensor, list, tuple, dict, set, deque))


def _remember_contents(value: Any, seen: set[int]) -> Iterator[Restore]:
    """How to put back what is in tensors and containers of any nesting, each once."""
    if isinstance(value, _PLAIN) or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        if (
            value.is_leaf and value.layout is torch.strided and not value.is_inference()
        ):  # what has a graph is not changed in place
            yield _remember_tensor(value)
    elif isinstance(value, dict):
        yield _refill_dict(value)
        for item in value.values():
            yield from _remember_contents(item, seen)
    elif isinstance(value, (list, deque)):
        yield _refill(value, list(value), value.extend)
        for item in value:
            yield from _remember_contents(item, seen)
    elif isinstance(value, set):
        yield _refill(value, set(value), value.update)
    elif isinstance(value, tuple):
        for item in value:
            yield from _remember_contents(item, seen)


def _refill_dict(container: dict[Any, Any]) -> Restore:
    items = list(container.items())

    def restore() -> None:
        now = list(container.items())
        if len(now) == len(items) and all(a is c and b is d for (a, b), (c, d) in zip(now, items, strict=True)):
            return
        base: Any = OrderedDict if isinstance(container, OrderedDict) else dict  # a subclass may refuse to be changed
        base.clear(container)
        for key, item in items:
            base.__setitem__(container, key, item)

    return restore


def _refill(container: Any, items: Any, fill: Callable[[Any], Any]) -> Restore:
    def restore() -> None:
        container.clear()
        fill(items)

    return restore


def _remember_optimizer(optimizer: Optimizer) -> Restore:
    """The groups' settings and the state. That is not what `load_state_dict` restores: it converts to other types."""
    seen: set[int] = set()
    settings = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    members = [group["params"] for group in optimizer.param_groups]
    states = {parameter: dict(state) for parameter, state in optimizer.state.items()}
    values = [
        restore
        for each in (*settings, *states.values())
        for value in each.values()
        for restore in _remember_contents(value, seen)
    ]
    has_stepped = vars(optimizer).get("_opt_called")  # by which schedulers find that they step too early

    def restore() -> None:
        for group, params, its_settings in zip(optimizer.param_groups, members, settings, strict=True):
            group.clear()
            group.update({"params": params, **its_settings})
        optimizer.state.clear()
        for parameter, state in states.items():
            optimizer.state[parameter] = state
        for restore_values in values:
            restore_values()
        if has_stepped is not None:
            optimizer._opt_called = has_stepped  # type: ignore[attr-defined]
        else:
            vars(optimizer).pop("_opt_called", None)

    return restore

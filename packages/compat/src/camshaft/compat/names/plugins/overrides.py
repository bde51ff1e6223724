"""Overrides of Lightning's methods in subclasses of strategies and precisions, called with Lightning's arguments.

Some methods of Lightning's have the names of methods of `camshaft.hooks_core.protocols.Strategy`, with other arguments.
An override of one is wrapped where its class is defined: a call of the loops reaches it with Lightning's arguments, and
what it passes to `super()` stays as it is.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import Any

import attrs
from torch import nn
from torch.optim import Optimizer

from camshaft.hooks_core.support.messages import must_be
from camshaft.strategies import ObjectsInPlace

_Call = Callable[..., Any]

STEPS = frozenset({"training_step", "validation_step", "test_step", "predict_step"})


def is_overridden(one: object, name: str) -> bool:
    """Return whether a method or property of an object is of a class that is not ours."""
    owner = next((cls for cls in type(one).__mro__ if name in vars(cls)), None)
    return owner is not None and not _is_ours(owner)


def _is_ours(cls: type) -> bool:
    return cls.__module__.partition(".")[0] in ("camshaft", "builtins")


def accepted(function: _Call, **arguments: Any) -> dict[str, Any]:
    """Return the arguments that a function takes."""
    parameters = inspect.signature(function).parameters
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return {name: value for name, value in arguments.items() if takes_all or name in parameters}


@attrs.frozen
class Done:
    """The closure of an override of `optimizer_step` where forward and backward have run: it returns the loss."""

    loss: Any

    def __call__(self) -> Any:
        """Return the loss."""
        return self.loss


def translate_overrides(cls: type, calls: Mapping[str, _Call]) -> None:
    """Wrap the methods of a class that is not ours.

    Args:
        cls: The class.
        calls: By name, a function that is called in place of an override: with it, the object and the arguments.
    """
    if _is_ours(cls):
        return
    for name, call in calls.items():
        override = vars(cls).get(name)
        if inspect.isfunction(override):
            setattr(cls, name, _translated(call, override))


def _translated(call: _Call, override: _Call) -> _Call:
    @wraps(override)
    def translated(self: Any, *args: Any, **kwargs: Any) -> Any:
        return call(override, self, *args, **kwargs)

    return translated


def _connect(override: _Call, self: Any, *args: Any, **kwargs: Any) -> None:
    override(self, *(args if args or kwargs else (self.lightning_module,)), **kwargs)
    if not args and not kwargs:
        self.native_connect()


def _setup_optimizers(override: _Call, self: Any, optimizers: Any) -> Any:
    if not isinstance(optimizers, (list, tuple)):
        return override(self, optimizers)
    self._given, self._set_up = optimizers, ()
    try:
        override(self, self.trainer)
        known = [*optimizers] if self._set_up else []
        found = list(self._set_up or optimizers)
    finally:
        self._given = None
    new = [one for one in found if not any(one is other for other in known)]
    if new:
        self.native_setup_optimizers(new)
    return found


def _backward(override: _Call, self: Any, loss: Any, *args: Any, takes_none: bool = False, **kwargs: Any) -> Any:
    given = kwargs.get("differentiate", args[0] if args else None)
    is_ours = len(args) <= 1 and kwargs.keys() <= {"differentiate"}
    if not is_ours or (args and function_or_none(given) is None and not (takes_none and given is None)):
        return override(self, loss, *args, **kwargs)
    return self.native_backward(loss, given, override)


def function_or_none(value: Any) -> Any:
    """Return a function that differentiates; None for a module, an optimizer or None in its place."""
    return value if callable(value) and not isinstance(value, (Optimizer, nn.Module)) else None


def _convert_module(override: _Call, self: Any, module: nn.Module) -> Any:
    converted = override(self, module)
    check_same("convert_module", self, converted, module)
    return converted


def check_same(name: str, plugin: Any, returned: Any, module: nn.Module) -> None:
    """Raise `TypeError` if a method of a plugin returned another module than the one that it got."""
    if returned is not None and returned is not module:
        rule, action = "the module that it got, changed in place", "Replace its submodules, and return it."
        where = f"{type(plugin).__qualname__}.{name}"
        raise TypeError(must_be("return value", rule, type(returned).__qualname__, where, action))


def _optimizer_step(override: _Call, self: Any, optimizer: Any, closure: Any = None, *args: Any, **kwargs: Any) -> Any:
    return override(self, optimizer, closure or Done(self.loss), *args, **kwargs)


def _reduce(override: _Call, self: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
    if "op" in kwargs:
        kwargs["reduce_op"] = kwargs.pop("op")
    if args and isinstance(args[0], str):
        kwargs["reduce_op"], args = args[0], args[1:]
    return override(self, tensor, *args, **kwargs)


def _all_gather(override: _Call, self: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
    return override(self, value, *args, **kwargs) if args or kwargs else self.native_all_gather(value)


def _save_checkpoint(override: _Call, self: Any, checkpoint: Any, *args: Any, **kwargs: Any) -> Any:
    if not isinstance(checkpoint, ObjectsInPlace):
        return override(self, checkpoint, *args, **kwargs)
    pending = override(self, self.prepared(checkpoint), *args, **kwargs)
    self.barrier("save_checkpoint")
    return pending


def _load_checkpoint(override: _Call, self: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
    return override(self, path, *args, **accepted(override, **kwargs))


OF_STRATEGIES: Mapping[str, _Call] = {
    "all_gather": _all_gather,
    "backward": _backward,
    "connect": _connect,
    "load_checkpoint": _load_checkpoint,
    "optimizer_step": _optimizer_step,
    "reduce": _reduce,
    "save_checkpoint": _save_checkpoint,
    "setup_optimizers": _setup_optimizers,
}

OF_PRECISIONS: Mapping[str, _Call] = {
    "backward": partial(_backward, takes_none=True),
    "convert_module": _convert_module,
}

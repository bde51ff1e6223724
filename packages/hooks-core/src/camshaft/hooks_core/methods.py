"""Which methods of a receiver may be hooks, and which arguments a hook gives them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from camshaft.hooks_core.binding import LOADER_INDEX, Argument, BindingError, bind
from camshaft.hooks_core.implementation import class_of, implementation
from camshaft.hooks_core.spec import CANONICAL_NAMES, HookSpec, Receiver

CALLBACK_PREFIX = ("trainer", "module")
"""What a callback gets before an event's own parameters."""


def arguments_of(spec: HookSpec, kind: Receiver, era: str | None = None) -> tuple[str, ...]:
    """The arguments that a kind of receiver gets from a hook, in order."""
    prefix = CALLBACK_PREFIX if kind is Receiver.CALLBACK and spec.kind == "event" else ()
    return (*prefix, *spec.parameters_in(era))


def bind_hook(
    method: Callable[..., Any], spec: HookSpec, kind: Receiver, era: str | None = None, *, num_loaders: int = 2
) -> tuple[Argument, ...]:
    """Return the arguments that a method gets as a hook.

    Args:
        method: A bound method or plain function.
        spec: The hook.
        kind: The kind of receiver that the method belongs to.
        era: The era whose arguments it gets; None stands for today.
        num_loaders: With a single loader, the loader's index goes only to a method that requires it.

    Raises:
        BindingError: If the arguments do not fit the method's signature.
    """
    provided, optional = arguments_of(spec, kind, era), spec.optional_in(era)
    # Steps get `batch_idx` by position or not at all, as in Lightning.
    to_keywords = (LOADER_INDEX,) if spec.kind == "step" else spec.parameters_in(era)
    if num_loaders == 1:
        without = tuple(name for name in provided if CANONICAL_NAMES.get(name, name) != LOADER_INDEX)
        try:
            return bind(method, without, optional, to_keywords)
        except BindingError:
            pass
    return bind(method, provided, optional, to_keywords)


def candidates(receiver: object) -> Iterator[str]:
    """Names of the methods of a receiver that may be hooks: its own and its classes', but not the base classes'.

    What a trace put on it, so that it receives a hook that it does not implement, is none of its own.
    """
    seen: set[str] = set()
    namespaces = [] if isinstance(receiver, type) else [getattr(receiver, "__dict__", {})]
    namespaces += [
        vars(klass)
        for klass in class_of(receiver).__mro__
        if not vars(klass).get("__hook_base__") and not _is_framework(klass)
    ]
    for namespace in namespaces:
        for name in namespace:
            if name in seen or name.startswith("__"):
                continue
            seen.add(name)
            method = implementation(receiver, name) if not isinstance(namespace[name], property) else None
            if method is not None and not getattr(method, "__placeholder__", False):
                yield name


def _is_framework(klass: type) -> bool:
    return klass is object or klass.__module__.partition(".")[0] == "torch"

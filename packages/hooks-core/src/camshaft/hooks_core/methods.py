"""Which methods of a receiver may be hooks, and which arguments a hook gives them."""

from __future__ import annotations

from collections.abc import Iterator

from camshaft.hooks_core.implementation import class_of, implementation
from camshaft.hooks_core.spec import HookSpec, Receiver

CALLBACK_PREFIX = ("trainer", "module")
"""What a callback gets before an event's own parameters."""


def arguments_of(spec: HookSpec, kind: Receiver, era: str | None = None) -> tuple[str, ...]:
    """The arguments that a kind of receiver gets from a hook, in order."""
    prefix = CALLBACK_PREFIX if kind is Receiver.CALLBACK and spec.kind == "event" else ()
    return (*prefix, *spec.parameters_in(era))


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

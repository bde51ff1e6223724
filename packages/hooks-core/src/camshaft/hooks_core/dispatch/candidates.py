"""Methods of receivers that may be hooks, and names that are the user's own."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from camshaft.hooks_core.dispatch.implementation import class_of, implementation

_PUBLIC_PACKAGES = ("torch", "camshaft", "lightning", "pytorch_lightning", "lightning_fabric")


def candidates(receiver: object) -> Iterator[str]:
    """Yield the names of a receiver's methods that may be hooks: its own and its classes', not the base classes'.

    What a trace put on it, so that it receives a hook that it does not implement, is none of its own.
    """
    seen: set[str] = set()
    namespaces = [] if isinstance(receiver, type) else [getattr(receiver, "__dict__", {})]
    namespaces += [
        vars(klass)
        for klass in class_of(receiver).__mro__
        if not vars(klass).get("__hook_base__") and klass is not object and _package_of(klass) != "torch"
    ]
    for namespace in namespaces:
        for name in namespace:
            if name in seen or name.startswith("__"):
                continue
            seen.add(name)
            method = implementation(receiver, name) if not isinstance(namespace[name], property) else None
            if method is not None and not getattr(method, "__placeholder__", False):
                yield name


def own_classes(receiver: object) -> list[type]:
    """Return the classes of a receiver that users wrote: without those of torch, Lightning, camshaft and Python."""
    return [klass for klass in class_of(receiver).__mro__ if not _is_public_base(klass)]


def is_own_name(receiver: object, name: str) -> bool:
    """Return whether a name is the user's own: no class of torch, Lightning, camshaft or Python that it derives from
    has it.

    Args:
        receiver: The object, or its class.
        name: The name of a method or attribute.
    """
    own = own_classes(receiver)
    return all(klass in own or name not in vars(klass) for klass in class_of(receiver).__mro__)


def _package_of(klass: type) -> str:
    return klass.__module__.partition(".")[0]


def _is_public_base(klass: type) -> bool:
    package = _package_of(klass)
    is_python = package in sys.stdlib_module_names and package != "__main__"
    return is_python or package in _PUBLIC_PACKAGES or bool(vars(klass).get("__hook_base__"))

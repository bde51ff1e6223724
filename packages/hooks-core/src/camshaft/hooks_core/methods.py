"""Which methods of a receiver may be hooks, and which arguments a hook gives them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs

from camshaft.hooks_core.binding import LOADER_INDEX, Argument, BindingError, bind, positional_parameters
from camshaft.hooks_core.implementation import class_of, implementation
from camshaft.hooks_core.spec import CANONICAL_NAMES, HookSpec, Receiver

_PUBLIC_PACKAGES = ("torch", "camshaft", "lightning", "pytorch_lightning", "lightning_fabric")

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
    aliases = _aliases(method, spec, provided) if era is not None else {}
    if aliases:
        provided = tuple(name for name in provided if CANONICAL_NAMES.get(name, name) not in spec.aliases)
        optional = (*optional, *aliases)
    # Steps get `batch_idx` by position or not at all, as in Lightning.
    to_keywords = (LOADER_INDEX,) if spec.kind == "step" else spec.parameters_in(era)
    if num_loaders == 1:
        without = tuple(name for name in provided if CANONICAL_NAMES.get(name, name) != LOADER_INDEX)
        try:
            return bind(method, without, optional, to_keywords)
        except BindingError:
            pass
    arguments = bind(method, provided, optional, to_keywords)
    return tuple(attrs.evolve(one, source=aliases.get(one.source, one.source)) for one in arguments)


def _aliases(method: Callable[..., Any], spec: HookSpec, provided: Sequence[str]) -> dict[str, str]:
    """Return the arguments of earlier eras that go by name alone, by the names that a method may have for them."""
    if spec.aliases.keys().isdisjoint(CANONICAL_NAMES.get(name, name) for name in provided):
        return {}
    aliases = {alias: name for name, all_of_it in spec.aliases.items() for alias in all_of_it}
    for parameter, name in zip(positional_parameters(method), provided, strict=False):
        today = CANONICAL_NAMES.get(name, name)
        if today in spec.aliases and not parameter.strip("_"):
            aliases[parameter] = today
    return aliases


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


def own_classes(receiver: object) -> list[type]:
    """Return the classes of a receiver that users wrote: without those of torch, Lightning, camshaft and Python."""
    return [klass for klass in class_of(receiver).__mro__ if not _is_public_base(klass)]


def is_own_name(receiver: object, name: str) -> bool:
    """Return whether a name is the user's own: no class of torch, Lightning, camshaft or Python that it derives from
    has it."""
    own = own_classes(receiver)
    return all(klass in own or name not in vars(klass) for klass in class_of(receiver).__mro__)


def _is_framework(klass: type) -> bool:
    return klass is object or klass.__module__.partition(".")[0] == "torch"


def _is_public_base(klass: type) -> bool:
    package = klass.__module__.partition(".")[0]
    is_python = package in sys.stdlib_module_names and package != "__main__"
    return is_python or package in _PUBLIC_PACKAGES or bool(vars(klass).get("__hook_base__"))

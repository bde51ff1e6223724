"""Binding of the arguments of an era to the signatures of methods."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from typing import Any

import attrs

from camshaft.hooks_core.dispatch.binding import (
    CANONICAL_NAMES,
    Argument,
    BindingError,
    arguments_of,
    bind_hook,
)
from camshaft.hooks_core.dispatch.readings import MethodReading
from camshaft.hooks_core.eras.hooks import ERAS, EraSpec
from camshaft.hooks_core.spec import HookSpec, Receiver


@attrs.frozen
class EraMethod(MethodReading):
    """A method that is called as an era did.

    Attributes:
        era: The era whose arguments it gets.
        spec: The hook, with what other eras have of it.
    """

    era: str
    spec: EraSpec


def bind_in(method: Callable[..., Any], spec: EraSpec, kind: Receiver, era: str | None) -> tuple[Argument, ...]:
    """Return the arguments that a method gets as a hook of an era, by their names of today.

    Args:
        method: A bound method or plain function.
        spec: The hook.
        kind: The kind of receiver that the method belongs to.
        era: The era; None stands for today.

    Raises:
        BindingError: If the arguments do not fit the method's signature.
    """
    hook, aliases = _as_bound(method, spec, kind, era)
    arguments = bind_hook(method, hook, kind)
    return tuple(one._replace(source=aliases.get(one.source, one.source)).canonical() for one in arguments)


def fit_in(method: Callable[..., Any], spec: EraSpec, kind: Receiver, era: str | None) -> tuple[Argument, ...] | None:
    """Return the arguments that a method gets as a hook of an era; None if they do not fit its signature."""
    try:
        return bind_in(method, spec, kind, era)
    except BindingError:
        return None


def fits(
    method: Callable[..., Any], spec: EraSpec, kind: Receiver, eras: Collection[str] = ERAS
) -> dict[str, tuple[Argument, ...]]:
    """Return the eras that know a hook for a kind of receiver and whose arguments a method takes, each with these.

    Args:
        method: The method.
        spec: The hook.
        kind: The kind of receiver that the method belongs to.
        eras: The eras to choose from.
    """
    found = {era: fit_in(method, spec, kind, era) for era in spec.eras_of(kind) if era in eras}
    return {era: arguments for era, arguments in found.items() if arguments is not None}


def _as_bound(
    method: Callable[..., Any], spec: EraSpec, kind: Receiver, era: str | None
) -> tuple[HookSpec, dict[str, str]]:
    """Return the hook as a method gets it, and the arguments that go by name alone by the names that it may have."""
    hook = spec.as_in(era)
    aliases = {} if era is None else _aliases(method, spec, arguments_of(hook, kind))
    if not aliases:
        return hook, aliases
    parameters = tuple(name for name in hook.parameters if CANONICAL_NAMES.get(name, name) not in spec.aliases)
    return attrs.evolve(hook, parameters=parameters, optional=(*hook.optional, *aliases)), aliases


def _aliases(method: Callable[..., Any], spec: EraSpec, provided: Sequence[str]) -> dict[str, str]:
    if spec.aliases.keys().isdisjoint(CANONICAL_NAMES.get(name, name) for name in provided):
        return {}
    aliases = {alias: name for name, all_of_it in spec.aliases.items() for alias in all_of_it}
    try:
        parameters = inspect.signature(method).parameters.values()
    except (TypeError, ValueError):
        return aliases
    positional = [one.name for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    for parameter_name, name in zip(positional, provided, strict=False):
        today = CANONICAL_NAMES.get(name, name)
        if today in spec.aliases and not parameter_name.strip("_"):
            aliases[parameter_name] = today
    return aliases

"""Fitting a hook's arguments to the signature of who implements it, once, before the run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import attrs

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

# Arguments of old eras that nothing of today stands for: a position that means something else must not fill them.
_OF_OLD_OPTIMIZATION = frozenset({"optimizer_idx", "optimizer_i", "second_order_closure", "hiddens"})


class BindingError(TypeError):
    """A hook's signature that no arguments of the hook can fill."""


@attrs.frozen
class Argument:
    """One argument of a call: the hook's parameter that it takes, and the keyword under which it is passed, if any."""

    source: str
    keyword: str | None = None

    def __str__(self) -> str:
        return self.source if self.keyword is None else f"{self.keyword}={self.source}"


def bind(function: Callable[..., Any], provided: Sequence[str]) -> tuple[Argument, ...]:
    """Choose which of a hook's arguments a function gets, and how.

    An argument goes by name where the function knows the name, else by position. So a function may take fewer
    arguments, or take them under names of its own.

    Args:
        function: A bound method or plain function.
        provided: The names of the arguments that the hook has, in order.

    Returns:
        The arguments of the call, in order.

    Raises:
        BindingError: If the function requires an argument that the hook does not have, or its names contradict
            their positions.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a builtin without a signature takes what it is given
        return tuple(Argument(name) for name in provided)
    if any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters):
        return tuple(Argument(name) for name in provided)

    by_name = {parameter.name for parameter in parameters} & set(provided)
    arguments: list[Argument] = []
    by_keyword = False
    for position, parameter in enumerate(parameters):
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            continue
        source = _source(parameter, position, provided, by_name)
        if source is None:
            if parameter.default is inspect.Parameter.empty:
                raise BindingError(_misfit(parameter.name, parameters, provided))
            by_keyword = True  # a gap: what follows can only be passed by its keyword
            continue
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY and by_keyword:
            raise BindingError(_misfit(parameter.name, parameters, provided))
        needs_keyword = by_keyword or parameter.kind is inspect.Parameter.KEYWORD_ONLY
        arguments.append(Argument(source, parameter.name if needs_keyword else None))
    return tuple(arguments)


def _source(parameter: inspect.Parameter, position: int, provided: Sequence[str], by_name: set[str]) -> str | None:
    """The hook's argument that fills a parameter, or None to leave it at its default."""
    if parameter.name in by_name:
        return parameter.name
    if parameter.kind not in _POSITIONAL or position >= len(provided) or provided[position] in by_name:
        return None
    if parameter.name in _OF_OLD_OPTIMIZATION and provided[position] not in _OF_OLD_OPTIMIZATION:
        return None
    return provided[position]


def _misfit(name: str, parameters: Sequence[inspect.Parameter], provided: Sequence[str]) -> str:
    takes = ", ".join(parameter.name for parameter in parameters)
    return f"its signature ({takes}) requires `{name}`, but the hook has only ({', '.join(provided)})"

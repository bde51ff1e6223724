"""Binding of a hook's arguments to the signatures of its receivers, once, before the run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from camshaft.hooks_core.spec import HookSpec, Receiver

_Names = Sequence[str]
_Parameters = Sequence[inspect.Parameter]
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
LOADER_INDEX = "dataloader_idx"
"""Name of the argument with the index of the loader."""
_STAGES_OF_LOADERS = ("validate", "test", "predict")
"""Stages that run one loader after the other, and tell by its index which."""
_VARIADIC = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}

CANONICAL_NAMES = {
    "current_epoch": "epoch",
    "batch_nb": "batch_idx",
    "optimizer_i": "optimizer_idx",
    "second_order_closure": "optimizer_closure",
    "dataloader_i": "dataloader_idx",
    "dataset_idx": "dataloader_idx",
    "proc_rank": "global_rank",
    "pl_module": "module",
    "results": "outputs",
}
"""Further names that signatures have for arguments of hooks, with the hooks' own."""

# Parameters that a position must not fill where it means something else. An iterator of batches is what a step of
# Lightning's may take in place of a batch.
_NOT_BY_POSITION = frozenset(
    {"optimizer_idx", "optimizer_i", "opt_idx", "opt_i", "second_order_closure", "hiddens", "dataloader_iter"}
)


class BindingError(TypeError):
    """A hook's signature that no arguments of the hook can fill."""


class Argument(NamedTuple):
    """Argument of a call: the hook's parameter that it takes, and the keyword under which it is passed, if any."""

    source: str
    keyword: str | None = None

    def canonical(self) -> Argument:
        """Return the same argument by its canonical name."""
        return self._replace(source=CANONICAL_NAMES.get(self.source, self.source))

    def __str__(self) -> str:
        return self.source if self.keyword is None else f"{self.keyword}={self.source}"


def bind(
    function: Callable[..., Any],
    provided: Sequence[str],
    optional: Sequence[str] = (),
    to_keywords: Collection[str] = (),
) -> tuple[Argument, ...]:
    """Choose which of a hook's arguments a function gets, and how.

    An argument goes by name where the function knows the name, else by position. So a function may take fewer
    arguments, or take them under names of its own. What is optional goes by name alone. A function that a decorator
    wrapped (`functools.wraps`) is bound by its own signature if the wrapper's takes anything.

    Args:
        function: A bound method or plain function.
        provided: The names of the arguments that the hook has, in order.
        optional: The names of those that only a function gets whose signature names them.
        to_keywords: The names of those among `provided` that `**kwargs` of a function gets if nothing else takes them.

    Returns:
        The arguments of the call, in order.

    Raises:
        BindingError: If the function requires an argument that the hook does not have, or its names contradict
            their positions.
    """
    parameters = _parameters(function, follow_wrapped=False)
    if parameters is None:
        return tuple(map(Argument, provided))
    if _VARIADIC & {parameter.kind for parameter in parameters}:
        parameters = _parameters(function) or []
    kinds = {parameter.kind for parameter in parameters}
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return _bind_star(parameters, provided, optional)
    arguments = _bind_named(parameters, provided, optional)
    if inspect.Parameter.VAR_KEYWORD not in kinds:
        return arguments
    taken = {argument.source for argument in arguments} | {parameter.name for parameter in parameters}
    rest = [name for name in provided if name in to_keywords and name not in taken]
    return (*arguments, *(Argument(name, name) for name in rest))


def parameter_names(function: Callable[..., Any]) -> frozenset[str]:
    """Return the names of a function's parameters, those of `*args` and `**kwargs` left out."""
    return frozenset(one.name for one in _parameters(function) or () if one.kind not in _VARIADIC)


def positional_names(function: Callable[..., Any], provided: Sequence[str], optional: Sequence[str] = ()) -> list[str]:
    """Return the names of the arguments that a function gets by position; `provided` if none fit.

    Args:
        function: The function.
        provided: The arguments that it is offered, in order.
        optional: Names of further arguments, which it only gets if its signature names them.
    """
    try:
        arguments = bind(function, provided, optional)
    except BindingError:
        return list(provided)
    return [argument.source for argument in arguments if argument.keyword is None]


def default_of(function: Callable[..., Any], name: str) -> Any:
    """Return the default of a function's parameter `name`; None where it has none, or takes it by `*args`."""
    parameter = inspect.signature(function).parameters.get(name)
    return None if parameter is None or parameter.default is parameter.empty else parameter.default


def _parameters(function: Callable[..., Any], *, follow_wrapped: bool = True) -> list[inspect.Parameter] | None:
    """Return a function's parameters; None for a builtin without a signature, which takes what it is given."""
    try:
        return list(inspect.signature(function, follow_wrapped=follow_wrapped).parameters.values())
    except (TypeError, ValueError):
        return None


def _bind_named(parameters: _Parameters, provided: _Names, optional: _Names) -> tuple[Argument, ...]:
    """Return the arguments of a function without `*args`."""
    named = {parameter.name for parameter in parameters if parameter.kind not in _VARIADIC}
    by_name = named & {*provided, *optional}
    # what a parameter names otherwise is that parameter's: no other takes it by position
    others = {canonical: name for name in named if (canonical := CANONICAL_NAMES.get(name)) is not None}
    arguments: list[Argument] = []
    by_keyword = False
    for position, parameter in enumerate(parameters):
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            continue
        source = _source(parameter, position, provided, by_name, others)
        if source is None and parameter.default is not inspect.Parameter.empty:
            by_keyword = True  # a gap: what follows can only be passed by its keyword
            continue
        if source is None or (parameter.kind is inspect.Parameter.POSITIONAL_ONLY and by_keyword):
            raise BindingError(_misfit(parameter.name, parameters, provided, optional))
        needs_keyword = by_keyword or parameter.kind is inspect.Parameter.KEYWORD_ONLY
        arguments.append(Argument(source, parameter.name if needs_keyword else None))
    return tuple(arguments)


def _bind_star(parameters: _Parameters, provided: _Names, optional: _Names) -> tuple[Argument, ...]:
    """Return the arguments of a function with `*args`: by position, and by keyword what can go no other way."""
    by_keyword_only = {one.name for one in parameters if one.kind is inspect.Parameter.KEYWORD_ONLY}
    in_order = [name for name in provided if name not in by_keyword_only]
    positional = [one for one in parameters if one.kind in _POSITIONAL]
    beyond = {one.name for one in positional[len(in_order) :] if one.kind is not inspect.Parameter.POSITIONAL_ONLY}
    keywords = [name for name in provided if name in by_keyword_only]
    keywords += [name for name in optional if name in by_keyword_only | beyond]
    filled = {*keywords, *(one.name for one in positional[: len(in_order)] if one.name not in optional)}
    for parameter in parameters:
        is_required = parameter.default is inspect.Parameter.empty and parameter.kind not in _VARIADIC
        if parameter.name not in filled and (is_required or parameter in positional[: len(in_order)]):
            raise BindingError(_misfit(parameter.name, parameters, provided, optional))
    return (*(Argument(name) for name in in_order), *(Argument(name, name) for name in keywords))


def _source(
    parameter: inspect.Parameter,
    position: int,
    provided: Sequence[str],
    by_name: set[str],
    others: Mapping[str, str],
) -> str | None:
    """Return the hook's argument that fills a parameter, or None to leave it at its default."""
    if parameter.name in by_name:
        return parameter.name
    if parameter.kind not in _POSITIONAL or position >= len(provided) or provided[position] in by_name:
        return None
    name = CANONICAL_NAMES.get(provided[position], provided[position])
    is_another = others.get(name, parameter.name) != parameter.name
    is_another |= parameter.name in _NOT_BY_POSITION and provided[position] not in _NOT_BY_POSITION
    if name == LOADER_INDEX and parameter.default is not parameter.empty:  # `stage="val"` is no index
        is_another |= parameter.default is not None and type(parameter.default) is not int
    return None if is_another else provided[position]


def _misfit(name: str, parameters: _Parameters, provided: _Names, optional: _Names) -> str:
    takes = ", ".join(parameter.name for parameter in parameters)
    by_name = f" and, by these names alone, ({', '.join(optional)})" if optional else ""
    return f"its signature ({takes}) requires `{name}`, but the hook has only ({', '.join(provided)}){by_name}"


CALLBACK_PREFIX = ("trainer", "module")
"""Arguments that a callback gets before an event's own."""


def arguments_of(spec: HookSpec, kind: Receiver) -> tuple[str, ...]:
    """Return the arguments that a kind of receiver gets from a hook, in order."""
    return (*prefix_of(spec, kind), *spec.parameters)


def prefix_of(spec: HookSpec, kind: Receiver) -> tuple[str, ...]:
    """Return the arguments that a kind of receiver gets before those of a hook."""
    if kind is not Receiver.CALLBACK or spec.kind != "event":
        return ()
    return CALLBACK_PREFIX[:1] if spec.precedes_module else CALLBACK_PREFIX


def bind_hook(
    method: Callable[..., Any], spec: HookSpec, kind: Receiver, *, num_loaders: int = 2
) -> tuple[Argument, ...]:
    """Return the arguments that a method gets as a hook.

    Args:
        method: A bound method or plain function.
        spec: The hook.
        kind: The kind of receiver that the method belongs to.
        num_loaders: With a single loader, the loader's index goes only to a method that requires it.

    Raises:
        BindingError: If the arguments do not fit the method's signature.
    """
    provided = arguments_of(spec, kind)
    # Steps get `batch_idx` by position or not at all, as in Lightning.
    to_keywords = (LOADER_INDEX,) if spec.kind == "step" else spec.parameters
    if num_loaders == 1:
        without = [name for name in provided if CANONICAL_NAMES.get(name, name) != LOADER_INDEX]
        with suppress(BindingError):
            return bind(method, without, spec.optional, to_keywords)
    return bind(method, provided, spec.optional, to_keywords)


def fit_hook(method: Callable[..., Any], spec: HookSpec, kind: Receiver) -> tuple[Argument, ...] | None:
    """Return the arguments that a method gets as a hook, as `bind_hook` does; None if they do not fit its signature."""
    try:
        return bind_hook(method, spec, kind)
    except BindingError:
        return None


def for_one_loader(
    method: Callable[..., Any], spec: HookSpec, kind: Receiver, arguments: tuple[Argument, ...]
) -> tuple[Argument, ...]:
    """Return the arguments of a method in a stage with a single loader: its index only if the method requires it."""
    if spec.stage not in _STAGES_OF_LOADERS or all(argument.source != LOADER_INDEX for argument in arguments):
        return arguments
    parameters = _parameters(getattr(method, "__recorded__", method), follow_wrapped=False) or ()
    if any(one.name == LOADER_INDEX and type(one.default) is int and one.default == 0 for one in parameters):
        return arguments  # it is what it would get
    return tuple(argument.canonical() for argument in bind_hook(method, spec, kind, num_loaders=1))

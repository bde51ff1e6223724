"""Calls of a hook: its receivers, their order and their arguments."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from camshaft.hooks_core.catalogue import Catalogue
from camshaft.hooks_core.dispatch.binding import LOADER_INDEX, Argument, bind_hook, default_filled, default_of
from camshaft.hooks_core.dispatch.implementation import implementation
from camshaft.hooks_core.dispatch.readings import ReceiverReading
from camshaft.hooks_core.spec import HookSpec, Receiver

_STAGES_OF_LOADERS = ("validate", "test", "predict")
"""Stages that run one loader after the other, and tell by its index which."""

_RANKS = {Receiver.CALLBACK: 0, Receiver.DATA: 1, Receiver.MODULE: 2, Receiver.STRATEGY: 4}


class HookCall(NamedTuple):
    """Call of a hook on one receiver.

    Attributes:
        receiver: Whose it is.
        kind: What the receiver is.
        hook: Name of the hook; one of an earlier era where that is called in the moment of another.
        function: What is called.
        arguments: What it gets.
        arguments_of_one_loader: What it gets in a stage with a single loader.
        defaults: Its own defaults of the optional arguments among these, by name: what it gets where the hook's caller
            does not pass them.
        condition: When it is called, as an expression of the hook's arguments; empty for always.
    """

    receiver: object
    kind: Receiver
    hook: str
    function: Callable[..., Any]
    arguments: tuple[Argument, ...]
    arguments_of_one_loader: tuple[Argument, ...]
    defaults: Mapping[str, Any] = {}
    condition: str = ""


class ResolvedReceiver(NamedTuple):
    """Receiver with its kind and the facts about its methods.

    Attributes:
        kind: What it is.
        receiver: The receiver.
        reading: Which of its methods are called as an earlier era did.
        faulty: Names of the methods that are left out.
    """

    kind: Receiver
    receiver: object
    reading: ReceiverReading
    faulty: Collection[str]


def calls_of(spec: HookSpec, receivers: Iterable[ResolvedReceiver], catalogue: Catalogue) -> list[HookCall]:
    """Return the calls of a hook in order: of every receiver for an event, else of the one owner.

    Each hook that an earlier era has in this moment comes as a whole, before or after the hook's own calls. What
    announces that something is about to be provided comes along with its owner's call.

    Args:
        spec: The hook.
        receivers: All receivers of the run.
        catalogue: The hooks.
    """
    ranked: list[tuple[tuple[int, int], HookCall]] = []
    for one in receivers:
        own = _own_call(spec, one)
        if own is not None:
            ranked.append(((0, _rank(one, spec)), own))
        for call in _old_calls(spec, one, catalogue):
            old = catalogue[call.hook]
            place = list(catalogue).index(old.name) + 1
            place -= len(catalogue) + 1 if old.precedes else 0
            ranked.append(((place, _rank(one, old)), call))
    calls = [call for _, call in sorted(ranked, key=lambda entry: entry[0])]
    if spec.kind == "event":
        return calls
    owners = [call for call in calls if catalogue[call.hook].kind != "event"]
    announced = [call for call in calls if catalogue[call.hook].kind == "event"]
    return [*announced, owners[0]] if owners else []


def wrapped(call: HookCall, wrappers: Sequence[Callable[..., Any]]) -> HookCall:
    """Return a call inside the wrappers of the callbacks that wrap calls; the last of them is outermost."""
    function = call.function
    for wrap in wrappers:
        function = wrap(call.hook, call.kind, call.receiver, function)
    return call._replace(function=function)


def rank(kind: Receiver, is_after_module: bool) -> int:
    """Return the position of a receiver among those of a hook: lower ones are called first.

    Args:
        kind: Kind of the receiver.
        is_after_module: Whether it is a callback that runs after the module.
    """
    return _RANKS[kind] + (3 if is_after_module else 0)


def runs_after_module(callback: object, hook: str) -> bool:
    """Return whether a callback declared that it runs after the module for a hook."""
    if hook == "on_train_epoch_end" and getattr(callback, "monitors", False):
        return True
    return hook in getattr(callback, "after_module", ())


def _own_call(spec: HookSpec, one: ResolvedReceiver) -> HookCall | None:
    function = implementation(one.receiver, spec.name)
    if one.kind not in spec.receivers or function is None or spec.name in one.faulty:
        return None
    of_era = one.reading.methods.get(spec.name)
    if of_era is not None:
        if of_era.moments:
            return None
        of_one_loader = _for_one_loader(spec, one, function, of_era.arguments, of_era.era)
        return HookCall(one.receiver, one.kind, spec.name, function, of_era.arguments, of_one_loader)
    if not spec.is_current:
        return None
    arguments = one.reading.of_today.get(spec.name)
    if arguments is None:
        arguments = bind_hook(function, spec, one.kind)  # one that does not fit was reported as a fault before
    taken = [argument.source for argument in arguments if argument.source in spec.optional]
    defaults = {name: default_of(function, name) for name in taken}
    of_one_loader = _for_one_loader(spec, one, function, arguments)
    return HookCall(one.receiver, one.kind, spec.name, function, arguments, of_one_loader, defaults)


def _for_one_loader(
    spec: HookSpec,
    one: ResolvedReceiver,
    function: Callable[..., Any],
    arguments: tuple[Argument, ...],
    era: str | None = None,
) -> tuple[Argument, ...]:
    """Return what a method gets in a stage with a single loader: the loader's index if it requires that.

    The hooks of earlier eras got it always; of their steps only that of prediction did.
    """
    if spec.stage not in _STAGES_OF_LOADERS or all(argument.source != LOADER_INDEX for argument in arguments):
        return arguments
    if not one.reading.is_of_today and (spec.kind != "step" or spec.name == "predict_step"):
        return arguments
    default = default_filled(getattr(function, "__recorded__", function), arguments, LOADER_INDEX)
    if type(default) is int and default == 0:
        return arguments  # it is what it would get
    found = bind_hook(function, spec, one.kind, era, num_loaders=1)
    return tuple(argument.under_todays_name() for argument in found)


def _old_calls(spec: HookSpec, one: ResolvedReceiver, catalogue: Catalogue) -> Iterator[HookCall]:
    """Yield the calls of an earlier era in a hook's moment."""
    for method in one.reading.methods.values():
        if spec.name in method.moments and method.name not in one.faulty:
            function = implementation(one.receiver, method.name)
            assert function is not None
            condition = catalogue[method.name].condition
            arguments = method.arguments
            yield HookCall(one.receiver, one.kind, method.name, function, arguments, arguments, condition=condition)


def _rank(one: ResolvedReceiver, spec: HookSpec) -> int:
    return rank(one.kind, one.kind is Receiver.CALLBACK and runs_after_module(one.receiver, spec.name))

"""Calls of a hook: its receivers, their order and their arguments."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from camshaft.hooks_core.dispatch.binding import Argument, bind_hook, default_of, for_one_loader
from camshaft.hooks_core.dispatch.implementation import implementation, method_of
from camshaft.hooks_core.dispatch.readings import MethodReading, ReceiverReading
from camshaft.hooks_core.spec import HookSpec, Receiver

_RANKS = {Receiver.CALLBACK: 0, Receiver.DATA: 1, Receiver.MODULE: 2, Receiver.STRATEGY: 4}


class HookCall(NamedTuple):
    """Call of a hook on one receiver.

    Attributes:
        receiver: Whose it is.
        kind: What the receiver is.
        hook: Name of the hook; that of another hook where this is called in its moment.
        function: What is called.
        arguments: What it gets.
        arguments_of_one_loader: What it gets in a stage with a single loader.
        defaults: Its own defaults of the optional arguments among these, by name: what it gets where the hook's caller
            does not pass them.
        fixed: Arguments that the hook's caller may leave out for any receiver, with what they are then.
        condition: When it is called, as an expression of the hook's arguments; empty for always.
    """

    receiver: object
    kind: Receiver
    hook: str
    function: Callable[..., Any]
    arguments: tuple[Argument, ...]
    arguments_of_one_loader: tuple[Argument, ...]
    defaults: Mapping[str, Any] = {}
    fixed: Mapping[str, Any] = {}
    condition: str = ""


class ResolvedReceiver(NamedTuple):
    """Receiver with its kind and the facts about its methods.

    Attributes:
        kind: What it is.
        receiver: The receiver.
        reading: How its methods are called.
        left_out: Names of the methods that are not called.
    """

    kind: Receiver
    receiver: object
    reading: ReceiverReading
    left_out: Collection[str]


def calls_of(spec: HookSpec, receivers: Iterable[ResolvedReceiver]) -> list[HookCall]:
    """Return the calls of a hook in order: of every receiver for an event, else of the one owner.

    Each hook that a reader has put into its moment comes as a whole, before or after the hook's own calls. Announcement
    events precede the owner's call.

    Args:
        spec: The hook.
        receivers: All receivers of the run.
    """
    ranked: list[tuple[tuple[int, int], bool, HookCall]] = []
    for one in receivers:
        own = _own_call(spec, one)
        if own is not None:
            ranked.append(((0, _rank(one, spec.name)), spec.kind == "event", own))
        for method in one.reading.methods.values():
            if spec.name in method.moments and method.name not in one.left_out:
                place = (method.place, _rank(one, method.name))
                ranked.append((place, method.hook.kind == "event", _read_call(method, one)))
    ranked.sort(key=lambda entry: entry[0])
    if spec.kind == "event":
        return [call for _, _, call in ranked]
    owners = [call for _, is_event, call in ranked if not is_event]
    return [*(call for _, is_event, call in ranked if is_event), owners[0]] if owners else []


def wrapped(call: HookCall, wrappers: Sequence[Callable[..., Any]]) -> HookCall:
    """Return a call inside the wrappers of the callbacks that wrap calls; the last of them is outermost."""
    function = call.function
    for wrap in wrappers:
        function = wrap(call.hook, call.kind, call.receiver, function)
    return call._replace(function=function)


def rank(kind: Receiver, is_after_module: bool) -> int:
    """Return the position of a receiver among those of a hook: lower ones are called first."""
    return _RANKS[kind] + (3 if is_after_module else 0)


def runs_after_module(callback: object, hook: str) -> bool:
    """Return whether a callback declared that it runs after the module for a hook."""
    if hook == "on_train_epoch_end" and getattr(callback, "monitors", False):
        return True
    return hook in getattr(callback, "after_module", ())


def _own_call(spec: HookSpec, one: ResolvedReceiver) -> HookCall | None:
    function = implementation(one.receiver, spec.name)
    if one.kind not in spec.receivers or function is None or spec.name in one.left_out:
        return None
    method = one.reading.methods.get(spec.name)
    if method is not None:
        return None if method.moments else _read_call(method, one)
    arguments = one.reading.of_today.get(spec.name)
    if arguments is None:
        arguments = bind_hook(function, spec, one.kind)  # one that does not fit was reported as a fault before
    of_one_loader = arguments
    if one.reading.is_of_today or (spec.kind == "step" and spec.name != "predict_step"):
        of_one_loader = for_one_loader(function, spec, one.kind, arguments)
    optional = [argument.source for argument in arguments if argument.source in spec.optional]
    defaults = {name: default_of(function, name) for name in optional}
    return HookCall(one.receiver, one.kind, spec.name, function, arguments, of_one_loader, defaults)


def _read_call(method: MethodReading, one: ResolvedReceiver) -> HookCall:
    """Return the call of a method as its reading says."""
    function, arguments = method_of(one.receiver, method.name), method.arguments
    of_one_loader = arguments if method.arguments_of_one_loader is None else method.arguments_of_one_loader
    facts = (one.receiver, one.kind, method.name, function, arguments, of_one_loader)
    return HookCall(*facts, fixed=method.fixed, condition=method.condition if method.moments else "")


def _rank(one: ResolvedReceiver, hook: str) -> int:
    return rank(one.kind, one.kind is Receiver.CALLBACK and runs_after_module(one.receiver, hook))

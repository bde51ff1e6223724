"""Dispatch: every hook becomes one callable when a run starts, and is called dumbly ever after."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from types import CodeType
from typing import Any

import attrs

from camshaft.hooks_core.binding import Argument, BindingError, bind, default_of
from camshaft.hooks_core.catalogue import CATALOGUE, Catalogue
from camshaft.hooks_core.faults import Fault, arguments_of, find_faults, missing_step, report
from camshaft.hooks_core.hooks import Hooks
from camshaft.hooks_core.implementation import implementation, receiver_name
from camshaft.hooks_core.notes import add_note, describe
from camshaft.hooks_core.spec import SKIP_EPOCH, HookSpec, Receiver

Position = Callable[[], str]
"""Says where a run is: stage, epoch, batch, rank. Asked only when something was raised."""


@attrs.frozen
class _Call:
    """One receiver's part in a hook.

    Args:
        receiver: Whose it is.
        kind: What the receiver is.
        function: What is called.
        arguments: What it gets.
        defaults: Its own defaults of the optional arguments among these, by name: what it gets where the hook's caller
            does not pass them.
    """

    receiver: object
    kind: Receiver
    function: Callable[..., Any]
    arguments: tuple[Argument, ...]
    defaults: Mapping[str, Any]


def resolve(
    *,
    callbacks: Sequence[object] = (),
    data: object | None = None,
    module: object | None = None,
    strategy: object | None = None,
    trainer: object | None = None,
    required: Sequence[str] = (),
    position: Position = lambda: "",
    catalogue: Catalogue = CATALOGUE,
    strict: bool = True,
) -> Hooks:
    """Turn receivers into the hooks of a run.

    Each hook reaches the receivers that implement it in this order: callbacks as passed, the data module, the module,
    callbacks that declared to run after the module, the strategy.

    Args:
        callbacks: The callbacks, in the order in which they run. What is called goes through the `wrap_call` method of
            each that has one; see `Callback`.
        data: The data module.
        module: The module.
        strategy: The strategy. If it has a `wrap_step` method, every step of the module goes through it.
        trainer: What callbacks get as their first argument.
        required: Names of the steps that the run cannot do without.
        position: Asked for a description of the run's position when a hook raises.
        catalogue: The hooks.
        strict: Whether a receiver's faults are errors; if false they are warnings, and the faulty method is left out. A
            missing step is always an error.

    Returns:
        The hooks; see `Hooks` for what an attribute is.

    Raises:
        HookFaultError: If a required step is missing, or if `strict` and a receiver has a method that looks like a hook
            and is none, or a hook of the wrong arity. All faults of all receivers are in the one error.
    """
    receivers: list[tuple[Receiver, object]] = [(Receiver.CALLBACK, callback) for callback in callbacks]
    receivers += [(Receiver.DATA, data)] if data is not None else []
    receivers += [(Receiver.MODULE, module)] if module is not None else []
    receivers += [(Receiver.STRATEGY, strategy)] if strategy is not None else []

    faults = [fault for kind, receiver in receivers for fault in find_faults(receiver, kind, catalogue)]
    missing = [name for name in required if module is None or implementation(module, name) is None]
    if missing:  # nothing can go on without these
        report([*faults, *(missing_step(module, name, catalogue) for name in missing)], strict=True)
    report(faults, strict)

    hooks = Hooks()
    wrap_step = getattr(strategy, "wrap_step", None)
    wrappers = [wrap for callback in callbacks if (wrap := implementation(callback, "wrap_call")) is not None]
    for spec in catalogue.values():
        if spec.kind == "state":
            continue  # belongs to one receiver's memory: whoever writes checkpoints asks each in turn
        calls = _calls(spec, receivers, faults)
        if spec.kind == "step" and wrap_step is not None:
            calls = [attrs.evolve(call, function=wrap_step(call.function)) for call in calls]
        if spec.kind != "event":
            calls = calls[:1]
        calls = [_wrapped(call, spec.name, wrappers) for call in calls] if wrappers else calls
        compile_calls = _compile_isolated if spec.isolated else _compile
        compiled = compile_calls(spec, calls, trainer, module, position) if calls else None
        setattr(hooks, spec.name, compiled or (nobody if spec.kind == "event" else None))
    return hooks


def nobody(*arguments: object) -> None:
    """A hook that nobody implements."""


def _calls(spec: HookSpec, receivers: list[tuple[Receiver, object]], faults: Sequence[Fault]) -> list[_Call]:
    """Who is called by a hook, in order."""
    calls: list[tuple[int, _Call]] = []
    faulty = {(fault.receiver, fault.method) for fault in faults}
    for kind, receiver in receivers:
        if kind not in spec.receivers or not spec.is_current:
            continue
        function = implementation(receiver, spec.name)
        if function is None or (receiver_name(receiver), spec.name) in faulty:
            continue
        try:
            arguments = bind(function, arguments_of(spec, kind), spec.optional)
        except BindingError:  # pragma: no cover - reported as a fault above
            continue
        taken = [argument.source for argument in arguments if argument.source in spec.optional]
        defaults = {name: default_of(function, name) for name in taken}
        calls.append((_rank(kind, receiver, spec), _Call(receiver, kind, function, arguments, defaults)))
    return [call for _, call in sorted(calls, key=lambda ranked: ranked[0])]


def _wrapped(call: _Call, hook: str, wrappers: Sequence[Callable[..., Any]]) -> _Call:
    """The call as the callbacks that wrap calls want it; the last of them is outermost."""
    function = call.function
    for wrap in wrappers:
        function = wrap(hook, call.kind, call.receiver, function)
    return attrs.evolve(call, function=function)


def _rank(kind: Receiver, receiver: object, spec: HookSpec) -> int:
    if kind is not Receiver.CALLBACK:
        return {Receiver.DATA: 1, Receiver.MODULE: 2, Receiver.STRATEGY: 4}[kind]
    return 3 if runs_after_module(receiver, spec.name) else 0


def runs_after_module(callback: object, hook: str) -> bool:
    """Whether a callback declared that it runs after the module for a hook."""
    if hook == "on_train_epoch_end" and getattr(callback, "monitors", False):
        return True
    return hook in getattr(callback, "after_module", ())


def _compile(
    spec: HookSpec, calls: Sequence[_Call], trainer: object, module: object, position: Position
) -> Callable[..., Any]:
    """One function that makes the calls of a hook one after the other.

    Its source is generated, because a written-out call is as cheap as one by hand, whatever the receivers' signatures.
    """
    defaults = calls[0].defaults if spec.kind != "event" else {}  # an event's receivers need not agree on theirs
    source = _source(spec, [call.arguments for call in calls], defaults)

    def note(error: BaseException) -> None:
        traceback = error.__traceback__
        assert traceback is not None
        receiver = calls[traceback.tb_lineno - _FIRST_CALL_LINE].receiver
        add_note(error, receiver, spec.name, position())

    names: dict[str, Any] = {f"call_{number}": call.function for number, call in enumerate(calls)}
    names |= {f"default_{name}": default for name, default in defaults.items()}
    names |= {"trainer": trainer, "module": module, "note": note}
    exec(_code(source, spec.name), names)
    function: Callable[..., Any] = names[spec.name]
    return function


def _compile_isolated(
    spec: HookSpec, calls: Sequence[_Call], trainer: object, module: object, position: Position
) -> Callable[..., Any]:
    """One function that makes every call of a hook, whatever the others raise."""
    singles = [_compile(spec, [call], trainer, module, position) for call in calls]

    def isolated(*arguments: Any) -> None:
        raised: list[BaseException] = []
        for single in singles:
            try:
                single(*arguments)
            except BaseException as error:
                raised.append(error)
        if raised:
            for further in raised[1:]:
                raised[0].add_note(f"Then {describe(further)}")
            raise raised[0]

    return isolated


_FIRST_CALL_LINE = 4


def _source(spec: HookSpec, calls: Sequence[tuple[Argument, ...]], defaults: Collection[str]) -> str:
    optional = [f"{name}=default_{name}" if name in defaults else f"{name}=None" for name in spec.optional]
    lines = [f"def {spec.name}({', '.join([*spec.parameters, *optional])}):", "    result = None", "    try:"]
    for number, arguments in enumerate(calls):
        call = f"call_{number}({', '.join(str(argument) for argument in arguments)})"
        if spec.can_skip_epoch:
            lines.append(f"        result = {SKIP_EPOCH} if {call} == {SKIP_EPOCH} else result")
        elif spec.kind == "event":
            lines.append(f"        {call}")
        else:
            lines.append(f"        return {call}")
    lines += [
        "    except BaseException as error:",
        "        note(error)",
        "        raise",
        "    return result",
    ]
    return "\n".join(lines) + "\n"


@lru_cache(maxsize=512)
def _code(source: str, name: str) -> CodeType:
    filename = f"<camshaft {name} {hash(source) & 0xFFFFFFFF:08x}>"
    # so that tracebacks and debuggers can show the lines
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    return compile(source, filename, "exec")

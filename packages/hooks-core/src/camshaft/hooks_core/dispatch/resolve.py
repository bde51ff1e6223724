"""Resolution of hooks: each becomes one callable when a run starts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import attrs

from camshaft.hooks_core.catalogue import CATALOGUE, Catalogue
from camshaft.hooks_core.dispatch.calls import HookCall, ResolvedReceiver, calls_of, wrapped
from camshaft.hooks_core.dispatch.compilation import Place, Position, compile_calls, compile_isolated
from camshaft.hooks_core.dispatch.faults import Fault, HookFaultError, HookFaultWarning, examine, missing_step
from camshaft.hooks_core.dispatch.hooks import Hooks
from camshaft.hooks_core.dispatch.implementation import class_of, implementation
from camshaft.hooks_core.dispatch.readings import ReadReceivers, ReceiverReading
from camshaft.hooks_core.eras.faults import read_today
from camshaft.hooks_core.spec import Receiver
from camshaft.hooks_core.support.messages import must_be, warn_user


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
    read: ReadReceivers | None = None,
    uncalled: Collection[str] = (),
    place: Place | None = None,
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
        read: Returns for all receivers how their methods are called; see `ReadReceivers`. A method that it finds to be
            called otherwise gets the arguments that the reading gives: in the moment of another hook, or where the
            caller calls a hook of the reader's own, which is an attribute of the result as any other. Without a reader
            all receivers are of the catalogue's protocol, and one of another is a fault.
        uncalled: Names of hooks that this run has no need of, such as that of a loader which was passed. A method of
            such a name may take any arguments, and is left out.
        place: Its attribute `hook` is set to the name of the running hook of callbacks or module; not for those that
            transfer batches, provide something, or run whatever others raise.

    Returns:
        The hooks; see `Hooks` for what an attribute is.

    Raises:
        HookFaultError: If a required step is missing, or if `strict` and a receiver has a method that looks like a hook
            and is none, a hook of the wrong arity, or a fault that `read` found. All faults of all receivers are in
            the one error.
        ValueError: If `read` returns another number of readings.
    """
    owners = ((Receiver.DATA, data), (Receiver.MODULE, module), (Receiver.STRATEGY, strategy))
    found: list[tuple[Receiver, object]] = [(Receiver.CALLBACK, callback) for callback in callbacks]
    found += [(kind, owner) for kind, owner in owners if owner is not None]
    readings = _readings(found, catalogue, read)
    further = {name: spec for reading in readings for name, spec in reading.hooks.items()}
    faults = [
        [fault for fault in reading.faults if not {fault.method, fault.meant} & {*uncalled}] for reading in readings
    ]
    _report(found, faults, module, required, catalogue, strict)
    receivers = []
    for (kind, receiver), reading, of_one in zip(found, readings, faults, strict=True):
        left_out = {*uncalled, *(fault.method for fault in of_one), *(further.keys() - reading.methods.keys())}
        receivers.append(ResolvedReceiver(kind, receiver, reading, left_out))

    hooks = Hooks()
    hooks.readings = tuple(reading for reading in readings if not reading.is_of_today)
    wrap_step = getattr(strategy, "wrap_step", None)
    wrappers = [wrap for callback in callbacks if (wrap := implementation(callback, "wrap_call")) is not None]
    known: dict[str, list[HookCall]] = {}
    with_one_loader: dict[str, Callable[..., Any]] = {}
    for spec in [*catalogue.values(), *further.values()]:
        if spec.kind == "state":
            continue  # a receiver's own state: the writer of checkpoints asks each in turn
        calls = known[spec.name] = calls_of(spec, receivers)
        if spec.kind == "step" and wrap_step is not None:
            calls = [call._replace(function=wrap_step(call.function)) for call in calls]
        calls = [wrapped(call, wrappers) for call in calls] if wrappers else calls
        compiled: Callable[..., Any] | None = None
        may_log = any(call.kind in (Receiver.CALLBACK, Receiver.MODULE) for call in calls)
        observer = place if may_log and spec.kind in ("event", "step", "override") else None
        if calls and spec.isolated:
            compiled = compile_isolated(spec, calls, trainer, module, position)
        elif calls:
            compiled = compile_calls(spec, calls, trainer, module, position, observer)
        setattr(hooks, spec.name, compiled or (no_op if spec.kind == "event" else None))
        of_one_loader = [call._replace(arguments=call.arguments_of_one_loader) for call in calls]
        if of_one_loader != calls:  # no isolated hook has the loader's index
            with_one_loader[spec.name] = compile_calls(spec, of_one_loader, trainer, module, position, observer)
    hooks._calls = known
    hooks._with_one_loader = with_one_loader
    return hooks


def no_op(*arguments: object, **further: object) -> None:
    """Do nothing, in place of an event that no receiver implements."""


def _readings(
    found: Sequence[tuple[Receiver, object]], catalogue: Catalogue, read: ReadReceivers | None
) -> list[ReceiverReading]:
    """Return how the methods of each receiver are called, with all of its faults."""
    if read is None:
        return [read_today(receiver, kind, catalogue) for kind, receiver in found]
    readings = read(found, catalogue)
    if len(readings) != len(found):
        rule, got = f"a function that returns a reading for each of {len(found)} receivers", len(readings)
        raise ValueError(must_be("read", rule, got, "resolve", "Return them in the order of the receivers."))
    checked = []
    for reading, (kind, receiver) in zip(readings, found, strict=True):
        known = reading.methods.keys() | reading.of_today.keys()
        bound, faults = examine(receiver, kind, catalogue, reading.hooks, known, names_are_own=reading.names_are_own)
        checked.append(attrs.evolve(reading, of_today={**bound, **reading.of_today}, faults=(*faults, *reading.faults)))
    return checked


_warned: WeakKeyDictionary[type, set[Fault]] = WeakKeyDictionary()
"""The warnings that were given, by the receiver's class."""


def _report(
    found: Sequence[tuple[Receiver, object]],
    faults: Sequence[Sequence[Fault]],
    module: object,
    required: Sequence[str],
    catalogue: Catalogue,
    strict: bool,
) -> None:
    """Raise, or warn of, the faults of all receivers and the steps that are missing. Warn once of what is no error."""
    missing = [name for name in required if module is None or implementation(module, name) is None]
    of_all = [fault for of_one in faults for fault in of_one if fault.meant not in missing]
    errors = [fault for fault in of_all if not fault.is_warning] if strict or missing else []
    errors += [missing_step(module, name, catalogue) for name in missing]  # nothing can go on without these
    if errors:
        raise HookFaultError(errors)
    for (_, receiver), of_one in zip(found, faults, strict=True):
        warned = _warned.setdefault(class_of(receiver), set())
        for fault in of_one:
            if not fault.is_warning or fault not in warned:
                warn_user(str(fault), HookFaultWarning)
            warned.add(fault)

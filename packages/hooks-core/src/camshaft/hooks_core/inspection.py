"""What becomes of a class's methods: which are hooks, how they are called, what is wrong. Nothing is instantiated."""

from __future__ import annotations

import attrs

from camshaft.hooks_core.bases import Callback, DataHooks, ModelHooks, StrategyHooks
from camshaft.hooks_core.binding import Argument, BindingError
from camshaft.hooks_core.catalogue import CATALOGUE, Catalogue
from camshaft.hooks_core.eras.conflicts import conflicts
from camshaft.hooks_core.eras.reading import EraReading, MethodReading, read_era
from camshaft.hooks_core.eras.report import moment_of
from camshaft.hooks_core.faults import Fault, find_faults
from camshaft.hooks_core.implementation import implementation
from camshaft.hooks_core.methods import bind_hook, candidates
from camshaft.hooks_core.spec import ERAS, HookSpec, Receiver


@attrs.frozen
class HookMethod:
    """A method that is a hook of some era.

    Args:
        name: Its name.
        eras: The eras that know the hook for this kind of receiver and whose arguments its signature can take.
        era: The era as in which it is called; "2.x" for today, None if it is not called.
        call: The call as it is made; empty if it is not.
        when: The moment of the call, as a sentence without a period; empty if it is not called.
        returns: What its return value does.
    """

    name: str
    eras: tuple[str, ...]
    era: str | None
    call: str
    when: str
    returns: str


@attrs.frozen
class Inspection:
    """What was found out about a class.

    Args:
        kind: What its instances are taken for.
        methods: Its methods that are hooks of any era, by name.
        faults: What keeps it from running, and warnings.
        eras: The eras that fit all of its methods; empty if it has none.
        reading: Which era it is taken to be of.
    """

    kind: Receiver
    methods: tuple[HookMethod, ...]
    faults: tuple[Fault, ...]
    eras: tuple[str, ...]
    reading: EraReading


def inspect_class(klass: type, kind: Receiver | None = None, catalogue: Catalogue = CATALOGUE) -> Inspection:
    """Inspect a class without instantiating it.

    Args:
        klass: The class.
        kind: What its instances are; the default goes by the base class.
        catalogue: The hooks.

    Raises:
        ValueError: If its `hook_era` is neither an era nor a release.
    """
    kind = kind or kind_of(klass)
    reading = read_era(klass, kind, catalogue)
    faults = find_faults(klass, kind, catalogue, reading.methods, is_of_today=reading.is_of_today)
    wrong = [(conflict.method, conflict.message) for conflict in conflicts(klass, reading, catalogue)]
    faults += [Fault(reading.receiver, name, message) for name, message in wrong]
    faulty = {fault.method for fault in faults}
    names = sorted(name for name in candidates(klass) if name in catalogue and kind in catalogue[name].receivers)
    methods = tuple(_method(klass, catalogue[name], reading, faulty, catalogue) for name in names)
    eras = tuple(era for era in ERAS if methods and all(era in method.eras for method in methods))
    return Inspection(kind, methods, tuple(faults), eras, reading)


def kind_of(klass: type) -> Receiver:
    """What a class's instances are, by their base class; a module, where that does not say."""
    if issubclass(klass, Callback):
        return Receiver.CALLBACK
    if issubclass(klass, StrategyHooks):
        return Receiver.STRATEGY
    if issubclass(klass, DataHooks) and not issubclass(klass, ModelHooks) and not _is_torch_module(klass):
        return Receiver.DATA
    return Receiver.MODULE


def _is_torch_module(klass: type) -> bool:
    return any(base.__module__ == "torch.nn.modules.module" for base in klass.__mro__)


def _method(klass: type, spec: HookSpec, reading: EraReading, faulty: set[str], catalogue: Catalogue) -> HookMethod:
    eras = _fitting_eras(klass, reading.kind, spec)
    method = reading.methods.get(spec.name)
    if method is None and spec.is_current:
        arguments = _arguments_of_today(klass, spec, reading.kind)
        era = reading.behaviour.era if reading.behaviour.era in eras else "2.x"
        method = None if arguments is None else MethodReading(spec.name, era, arguments)
    if method is None or spec.name in faulty:
        return HookMethod(spec.name, eras, None, "", "", "")
    call = f"{spec.name}({', '.join(str(argument) for argument in method.arguments)})"
    when = moment_of(method, reading.behaviour, catalogue)
    return HookMethod(spec.name, eras, method.era, call, when, _contract(spec, reading))


def _contract(spec: HookSpec, reading: EraReading) -> str:
    """What becomes of a hook's return value in the class's era."""
    if spec.kind == "step" and reading.returns_logs:
        return f"{spec.returns}; `log` and `progress_bar` in a dictionary are logged"
    return spec.returns


def _arguments_of_today(klass: type, spec: HookSpec, kind: Receiver) -> tuple[Argument, ...] | None:
    method = implementation(klass, spec.name)
    assert method is not None
    try:
        return bind_hook(method, spec, kind)
    except BindingError:
        return None


def _fitting_eras(klass: type, kind: Receiver, spec: HookSpec) -> tuple[str, ...]:
    method = implementation(klass, spec.name)
    fitting = []
    for era in spec.eras:
        if method is None or kind not in spec.receivers_in(era):
            continue
        try:
            bind_hook(method, spec, kind, era)
        except BindingError:
            continue
        fitting.append(era)
    return tuple(fitting)

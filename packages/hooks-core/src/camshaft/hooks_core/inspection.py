"""Which of a class's methods are hooks, of which eras, and what is wrong with them; nothing is instantiated."""

from __future__ import annotations

import attrs

from camshaft.hooks_core.bases import Callback, DataHooks, ModelHooks, StrategyHooks
from camshaft.hooks_core.binding import BindingError, bind
from camshaft.hooks_core.catalogue import CATALOGUE, Catalogue
from camshaft.hooks_core.faults import Fault, arguments_of, candidates, find_faults
from camshaft.hooks_core.implementation import implementation
from camshaft.hooks_core.spec import ERAS, HookSpec, Receiver


@attrs.frozen
class HookMethod:
    """A method that is a hook of some era.

    Args:
        name: Its name.
        eras: The eras that know the hook for this kind of receiver and whose arguments its signature can take.
    """

    name: str
    eras: tuple[str, ...]


@attrs.frozen
class Inspection:
    """What was found out about a class.

    Args:
        kind: What its instances are taken for.
        methods: Its methods that are hooks of any era, by name.
        faults: What keeps it from running with today's hooks.
        eras: The eras that fit all of its methods; empty if it has none.
    """

    kind: Receiver
    methods: tuple[HookMethod, ...]
    faults: tuple[Fault, ...]
    eras: tuple[str, ...]


def inspect_class(klass: type, kind: Receiver | None = None, catalogue: Catalogue = CATALOGUE) -> Inspection:
    """Inspect a class without instantiating it.

    Args:
        klass: The class.
        kind: What its instances are; the default goes by the base class.
        catalogue: The hooks.
    """
    kind = kind or kind_of(klass)
    names = sorted(name for name in candidates(klass) if name in catalogue and kind in catalogue[name].receivers)
    methods = tuple(HookMethod(name, _fitting_eras(klass, kind, catalogue[name])) for name in names)
    eras = tuple(era for era in ERAS if methods and all(era in method.eras for method in methods))
    return Inspection(kind, methods, tuple(find_faults(klass, kind, catalogue)), eras)


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


def _fitting_eras(klass: type, kind: Receiver, spec: HookSpec) -> tuple[str, ...]:
    method = implementation(klass, spec.name)
    fitting = []
    for era in spec.eras:
        if method is None or kind not in spec.receivers_in(era):
            continue
        try:
            bind(method, arguments_of(spec, kind, era))
        except BindingError:
            continue
        fitting.append(era)
    return tuple(fitting)

"""Receivers of earlier eras where nothing runs these: the faults of their hooks, and what to do about them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import attrs

from camshaft.hooks_core.catalogue import CATALOGUE, Catalogue
from camshaft.hooks_core.dispatch.binding import BindingError
from camshaft.hooks_core.dispatch.candidates import candidates, own_classes
from camshaft.hooks_core.dispatch.faults import OR_MARK, Fault, examine
from camshaft.hooks_core.dispatch.implementation import implementation, mentions_method, method_of, receiver_name
from camshaft.hooks_core.dispatch.readings import ReceiverReading
from camshaft.hooks_core.eras.binding import bind_in, fits
from camshaft.hooks_core.eras.hooks import EARLIER_ERAS, EARLIER_HOOKS, EVERYDAY_NAMES, EraSpec, in_eras
from camshaft.hooks_core.spec import Receiver, kind_in_words

_CLOSURE = "optimizer_closure"
_COMPAT = {Receiver.MODULE: "TrainingModule", Receiver.CALLBACK: "Callback", Receiver.DATA: "DataModule"}
"""The base classes of camshaft.compat that run receivers of earlier eras."""


def read_today(receiver: object, kind: Receiver, catalogue: Catalogue = CATALOGUE) -> ReceiverReading:
    """Return how the methods of a receiver are called as today's hooks; what belongs to an earlier era is a fault.

    Args:
        receiver: A callback, module, data module or strategy, or the class of one.
        kind: Which of these it is.
        catalogue: The hooks.

    Raises:
        ValueError: If the receiver's `hook_era` is neither an era nor a release.
    """
    shown = receiver_name(receiver)
    bound, faults = examine(receiver, kind, catalogue, EARLIER_HOOKS)
    if "optimizer_step" in bound and _lacks_closure(receiver, kind):
        text = f"it does not take the closure, which runs training_step and backward. Take `{_CLOSURE}`."
        faults.append(Fault(shown, "optimizer_step", text))
        del bound["optimizer_step"]
    faults += faults_of_earlier(receiver, kind)
    faults.sort(key=lambda fault: fault.method)
    return ReceiverReading(shown, kind, of_today=bound, faults=tuple(_with_era(faults, receiver, kind, catalogue)))


def find_faults(receiver: object, kind: Receiver, catalogue: Catalogue = CATALOGUE) -> list[Fault]:
    """Check every hook of a receiver as `resolve` does without a reader of receivers.

    Args:
        receiver: A callback, module, data module or strategy, or the class of one.
        kind: Which of these it is.
        catalogue: The hooks to check against.

    Returns:
        The faults, in the order of the methods' names; empty if there are none.

    Raises:
        ValueError: If the receiver's `hook_era` is neither an era nor a release.
    """
    return list(read_today(receiver, kind, catalogue).faults)


def faults_of_earlier(
    receiver: object, kind: Receiver, read: Collection[str] = (), *, is_dead: bool = False, is_of_today: bool = True
) -> list[Fault]:
    """Return the faults of a receiver's methods that have the names of hooks of earlier eras alone.

    Args:
        receiver: A callback, module, data module or strategy, or the class of one.
        kind: Which of these it is.
        read: Names of the methods of which it is known how they are called.
        is_dead: Whether a reader of receivers found that the receiver belongs to no earlier era, so that such hooks of
            it are never called; these faults are warnings.
        is_of_today: Whether the receiver belongs to no earlier era, so that a method with a signature of no era is the
            user's own; this fault is a warning.
    """
    found: list[Fault] = []
    for name in sorted(candidates(receiver)):
        spec = EARLIER_HOOKS.get(name)
        if spec is None or kind not in spec.receivers:
            continue
        if name in read:
            found += _defined_twice(receiver, spec)
        elif name not in EVERYDAY_NAMES and not mentions_method(own_classes(receiver), name):
            found += _of_an_old_era(receiver, spec, kind, is_of_today=is_of_today, is_dead=is_dead)
    return found


def _of_an_old_era(
    receiver: object, spec: EraSpec, kind: Receiver, *, is_of_today: bool, is_dead: bool
) -> Iterator[Fault]:
    method, takes, misfit = method_of(receiver, spec.name), None, ""
    for era in spec.eras_of(kind):
        try:
            takes = bind_in(method, spec, kind, era)
        except BindingError as error:
            misfit = str(error)
    eras, is_warning = ", ".join(spec.eras), is_dead
    alike = [name for name in spec.today if name in CATALOGUE and CATALOGUE[name].kind == spec.kind]
    hint = f"Rename it to `{alike[0]}`" if alike else "Rewrite it with the hooks of era 2.x"
    if takes is None and is_of_today:
        told = f"it is taken for a method of your own: it has the name of a hook of earlier eras, but {misfit}."
        told += " Mark it with `@not_a_hook`, or take the hook's arguments."
        is_warning = True
    elif takes is None:
        told, is_warning = f"{misfit}. Take these arguments, {OR_MARK}", False
    elif spec.kind == "override" and spec.parameters and not takes:
        return  # a method of its own that happens to have the name
    elif is_dead:
        told = f"this hook belongs to the eras {eras}, and the class to a later one: it is dead, and never called."
        told += f" {hint}, declare the release that the class was written for as `hook_era`, {OR_MARK}"
    else:
        told = f"this hook belongs to the eras {eras}, which this run does not call. {hint}, {OR_MARK}"
    yield Fault(receiver_name(receiver), spec.name, told, is_warning=is_warning)


def _defined_twice(receiver: object, spec: EraSpec) -> Iterator[Fault]:
    """Yield the fault of an earlier name of something that has one owner, where the later name is there too."""
    later = [name for name in spec.today if spec.kind != "event" and implementation(receiver, name) is not None]
    if later:
        told = f"it is an earlier name of `{later[0]}`, which is defined as well. Keep one of the two."
        yield Fault(receiver_name(receiver), spec.name, told)


def _lacks_closure(receiver: object, kind: Receiver) -> bool:
    """Return whether an `optimizer_step` gets its closure in an earlier era alone."""
    spec = in_eras(CATALOGUE["optimizer_step"])
    eras = (None, *_eras_that_fit(receiver, spec, kind))
    today, *earlier = (_takes_closure(receiver, spec, kind, era) for era in eras)
    return not today and any(earlier)


def _takes_closure(receiver: object, spec: EraSpec, kind: Receiver, era: str | None) -> bool:
    arguments = bind_in(method_of(receiver, spec.name), spec, kind, era)
    return any(argument.source == _CLOSURE for argument in arguments)


def _with_era(faults: Sequence[Fault], receiver: object, kind: Receiver, catalogue: Catalogue) -> list[Fault]:
    """Return a receiver's faults with the era that it is of, by the catalogue or by itself, and with what runs that.

    The last fault of a method that belongs to an earlier era says so.
    """
    shown, declared = receiver_name(receiver), getattr(receiver, "hook_era", None)
    if declared is not None:
        from camshaft.hooks_core.eras.releases import behaviour_of  # no run of today's classes needs it

        declared = declared if behaviour_of(declared, shown).era in EARLIER_ERAS else None
    known = {fault.method: EARLIER_HOOKS.get(fault.method) or catalogue.get(fault.method) for fault in faults}
    of_eras = {name: _eras_that_fit(receiver, in_eras(spec), kind) for name, spec in known.items() if spec is not None}
    of_eras = {name: eras for name, eras in of_eras.items() if eras}
    if declared is None and not of_eras:
        return list(faults)
    # that of most methods, the latest of several
    era = declared or max(reversed(EARLIER_ERAS), key=lambda era: sum(era in eras for eras in of_eras.values()))
    advice = f"{shown} is a {kind_in_words(kind)} of era {era}. To run it as it is, change its imports to"
    for name in ("Trainer", _COMPAT.get(kind)):
        advice += f"\n    from camshaft.compat import {name}" if name is not None else ""
    if not of_eras:
        return [*faults, Fault(shown, "hook_era", f"this run calls today's hooks alone. {advice}")]
    found = []
    for fault in faults:
        message = fault.message
        if fault.method in of_eras and fault.method not in EARLIER_HOOKS:
            message += f" Its arguments are those of the eras {', '.join(of_eras[fault.method])}."
        if fault.method == max(of_eras):  # the last, as they stand in the order of their names
            message += f" {advice}"
        found.append(attrs.evolve(fault, message=message))
    return found


def _eras_that_fit(receiver: object, spec: EraSpec, kind: Receiver) -> tuple[str, ...]:
    """Return the earlier eras that know a hook for a kind of receiver, and whose arguments a method takes: with the
    closure of an `optimizer_step`, if it takes that in any."""
    fitting = tuple(fits(method_of(receiver, spec.name), spec, kind, EARLIER_ERAS))
    if spec.name != "optimizer_step":
        return fitting
    return tuple(era for era in fitting if _takes_closure(receiver, spec, kind, era)) or fitting

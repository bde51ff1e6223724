"""What is wrong with a receiver's hooks, found before the run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import attrs

from camshaft.hooks_core.binding import Argument, BindingError
from camshaft.hooks_core.catalogue import Catalogue
from camshaft.hooks_core.eras import EARLIER_ERAS, EVERYDAY_NAMES, behaviour_of
from camshaft.hooks_core.implementation import implementation, receiver_name
from camshaft.hooks_core.method_source import mentions_method
from camshaft.hooks_core.methods import arguments_of, bind_hook, candidates, is_own_name, own_classes
from camshaft.hooks_core.near_names import meant_hook
from camshaft.hooks_core.spec import ERAS, HookSpec, Receiver, kind_in_words
from camshaft.hooks_core.uncalled_methods import uncalled_overrides
from camshaft.hooks_core.user_warnings import warn_user

_OR_MARK = "or mark it with `@not_a_hook` if it is a method of your own."

_CLOSURE = "optimizer_closure"
_COMPAT = {Receiver.MODULE: "TrainingModule", Receiver.CALLBACK: "Callback", Receiver.DATA: "DataModule"}
"""The base classes of camshaft.compat that run receivers of earlier eras."""


@attrs.frozen
class Fault:
    """One fault: whose, in which method, what is wrong and what to do.

    Attributes:
        receiver: Name of the receiver's class.
        method: The method.
        message: What is wrong and what to do.
        meant: The hook that the method was meant to be, where its name is nearly that of one.
        is_warning: Whether it keeps nobody from running: it is told, and the method is left alone.
    """

    receiver: str
    method: str
    message: str
    meant: str = ""
    is_warning: bool = False

    def __str__(self) -> str:
        return f"{self.receiver}.{self.method}: {self.message}"


class HookFaultError(TypeError):
    """Receivers whose hooks cannot run as they are; raised at set-up.

    Attributes:
        faults: Every fault that was found.
    """

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(str(fault) for fault in self.faults))


class HookFaultWarning(UserWarning):
    """The same as a warning, where the run was told to go on."""


def report(faults: Sequence[Fault], strict: bool) -> None:
    """Raise all faults as one error, or warn of each.

    Raises:
        HookFaultError: If there are faults that are no warnings and `strict` is true.
    """
    errors = [fault for fault in faults if strict and not fault.is_warning]
    if errors:
        raise HookFaultError(errors)
    for fault in faults:
        warn_user(str(fault), HookFaultWarning)


def find_faults(
    receiver: object,
    kind: Receiver,
    catalogue: Catalogue,
    read: Collection[str] | None = None,
    *,
    is_of_today: bool = True,
    uncalled: Collection[str] = (),
) -> list[Fault]:
    """Check every hook of a receiver: names of no hook, hooks that are not its own or no longer run, wrong arity.

    A name of no hook is one that begins with `on_`, or that nearly is a hook's, unless it is the user's own method; see
    `meant_hook`.

    Overrides of methods that its classes declare as never called are faults as well, see `uncalled_methods`.

    Args:
        receiver: A callback, module, data module or strategy, or the class of one.
        kind: Which of these it is.
        catalogue: The hooks to check against.
        read: Names of the methods of which a reader of receivers said how they are called, and which so are no faults.
            None if nobody read the receiver: if it is of an earlier era by the catalogue, or by its `hook_era`, that is
            a fault.
        is_of_today: Whether the receiver belongs to no earlier era. A method of it that has an earlier hook's name, but
            a signature of no era, is the user's own: the fault is a warning.
        uncalled: Names of hooks that are not called, and may take any arguments.

    Returns:
        The faults, in the order of the methods' names; empty if there are none.

    Raises:
        ValueError: If nobody read the receiver, and its `hook_era` is neither an era nor a release.
    """
    shown = receiver_name(receiver)
    found = [Fault(shown, method, message) for method, message in uncalled_overrides(receiver)]
    old: dict[str, tuple[str, ...]] = {}
    for name in sorted(candidates(receiver)):
        spec = catalogue.get(name)
        eras: tuple[str, ...] = ()
        if name in uncalled:
            continue
        if read is not None and name in read:
            fault = _defined_twice(receiver, catalogue[name])
        elif spec is None or kind not in spec.receivers:
            fault = _no_hook(receiver, name, kind, catalogue)
        elif spec.is_current:
            eras = _eras_that_fit(receiver, spec, kind) if read is None else ()
            fault = _wrong_arity(receiver, spec, kind, eras)
        elif name in EVERYDAY_NAMES or mentions_method(own_classes(receiver), name):
            fault = None
        else:
            eras = _eras_that_fit(receiver, spec, kind) if read is None else ()
            fault = _of_an_old_era(receiver, spec, kind, catalogue, is_of_today=is_of_today)
        if fault is not None:
            found.append(attrs.evolve(fault, receiver=shown, method=name))
            old |= {name: eras} if eras else {}
    return found if read is not None else _with_era(found, receiver, kind, old)


def find_faults_in_era(receiver: object, kind: Receiver, catalogue: Catalogue, era: str) -> list[Fault]:
    """Check every hook of a receiver against those of an era.

    Args:
        receiver: A callback, module, data module or strategy, or the class of one.
        kind: Which of these it is.
        catalogue: The hooks to check against.
        era: The era.

    Returns:
        The faults, in the order of the methods' names; empty if there are none.
    """
    found = []
    for name in sorted(candidates(receiver)):
        spec = catalogue.get(name)
        if spec is None or kind not in spec.receivers:
            fault = _no_hook(receiver, name, kind, catalogue)
        elif era in spec.eras and kind in spec.receivers_in(era):
            fault = _wrong_arity(receiver, spec, kind, era=era)
        elif name in EVERYDAY_NAMES or mentions_method(own_classes(receiver), name):
            fault = None
        else:
            fault = _fault(f"this hook belongs to the eras {', '.join(spec.eras)}, and era {era} does not call it.")
        if fault is not None:
            found.append(attrs.evolve(fault, receiver=receiver_name(receiver), method=name))
    return found


def missing_step(receiver: object, name: str, catalogue: Catalogue) -> Fault:
    """Return the fault of a module that lacks a method which a verb needs."""
    classes = own_classes(receiver)
    own = [one for one in candidates(receiver) if one not in catalogue and is_own_name(receiver, one)]
    near = _closest(name, [one for one in own if not mentions_method(classes, one)])
    hint = f"Rename `{near}`." if near else f"Define `{name}({', '.join(catalogue[name].parameters)})`."
    return Fault(receiver_name(receiver), name, f"`{name}` must be defined to run this verb, but is missing. {hint}")


def _no_hook(receiver: object, name: str, kind: Receiver, catalogue: Catalogue) -> Fault | None:
    """Return the fault of a method that is no hook of this kind of receiver but looks like one."""
    spec = catalogue.get(name)
    meant = meant_hook(receiver, name, kind, catalogue)
    if meant is None and not (name.startswith("on_") and _looks_forgotten(receiver, name)):
        return None
    if spec is not None and (meant is None or name.startswith("on_")):
        return _fault(_not_received(spec, kind))
    if meant is not None:
        return _fault(f"no hook has this name. Rename it to `{meant.name}`, {_OR_MARK}", meant.name)
    near = _closest(name, [spec.name for spec in catalogue.received_by(kind) if spec.is_current])
    hint = f"Rename it to `{near}`" if near else "Rename it so that it does not begin with `on_`"
    return _fault(f"no hook has this name. {hint}, {_OR_MARK}", near or "")


def _looks_forgotten(receiver: object, name: str) -> bool:
    """Return whether nothing shows that a method is the user's own: no public base has it, nothing calls it."""
    return is_own_name(receiver, name) and not mentions_method(own_classes(receiver), name)


def _fault(message: str, meant: str = "", *, is_warning: bool = False) -> Fault:
    """Return a fault whose receiver and method are filled in by who knows them."""
    return Fault("", "", message, meant, is_warning)


def _not_received(spec: HookSpec, kind: Receiver) -> str:
    owners = " and ".join(f"the {receiver}" for receiver in spec.receivers)
    return f"a {kind} does not receive this hook; it goes to {owners}. Move it there, {_OR_MARK}"


def _of_an_old_era(
    receiver: object, spec: HookSpec, kind: Receiver, catalogue: Catalogue, *, is_of_today: bool
) -> Fault | None:
    method = implementation(receiver, spec.name)
    assert method is not None
    takes: tuple[Argument, ...] | None = None
    misfit = ""
    for era in (era for era in spec.eras if kind in spec.receivers_in(era)):
        try:
            takes = bind_hook(method, spec, kind, era)
        except BindingError as error:
            misfit = str(error)
    if takes is None and is_of_today:
        told = f"it is taken for a method of your own: it has the name of a hook of earlier eras, but {misfit}. Mark it"
        return _fault(f"{told} with `@not_a_hook`, or take the hook's arguments.", is_warning=True)
    if takes is None:
        return _fault(f"{misfit}. Take these arguments, {_OR_MARK}")
    if spec.kind == "override" and spec.parameters and not takes:
        return None  # a method of its own that happens to have the name
    eras = ", ".join(spec.eras)
    alike = [name for name in spec.today if catalogue[name].is_current and catalogue[name].kind == spec.kind]
    hint = f"Rename it to `{alike[0]}`" if alike else "Rewrite it with the hooks of era 2.x"
    return _fault(f"this hook belongs to the eras {eras}, which this run does not call. {hint}, {_OR_MARK}")


def _defined_twice(receiver: object, spec: HookSpec) -> Fault | None:
    """Return the fault of an earlier name of something that has one owner, where the later name is there too."""
    later = [name for name in spec.today if spec.kind != "event" and implementation(receiver, name) is not None]
    if not later:
        return None
    return _fault(f"it is an earlier name of `{later[0]}`, which is defined as well. Keep one of the two.")


def _wrong_arity(
    receiver: object, spec: HookSpec, kind: Receiver, eras: Collection[str] = (), era: str | None = None
) -> Fault | None:
    """Return the fault of a hook that does not take its arguments in an era, but perhaps those of other eras."""
    method = implementation(receiver, spec.name)
    assert method is not None
    misfit = "it does not take the closure, which runs training_step and backward"
    try:
        bind_hook(method, spec, kind, era)
    except BindingError as error:
        misfit = str(error)
    else:
        if not eras:
            return None
    if not eras:
        return _fault(f"{misfit}. Take these arguments, or fewer of them.")
    names = ", ".join(arguments_of(spec, kind))
    return _fault(
        f"{misfit}. Its arguments are those of the eras {', '.join(eras)}, which this run does not call. "
        f"Take ({names}), or fewer of them."
    )


def _takes_closure(arguments: Iterable[Argument]) -> bool:
    return any(argument.source == _CLOSURE for argument in arguments)


def _eras_that_fit(receiver: object, spec: HookSpec, kind: Receiver) -> tuple[str, ...]:
    """Return the earlier eras whose arguments a method takes; none for one that takes those of today, unless it is an
    `optimizer_step` that gets its closure in an earlier era alone."""
    method = implementation(receiver, spec.name)
    assert method is not None
    bound = {era: _bound(method, spec, kind, era) for era in EARLIER_ERAS}
    fitting = {
        era: arguments
        for era, arguments in bound.items()
        if arguments is not None and era in spec.eras and kind in spec.receivers_in(era)
    }
    today = _bound(method, spec, kind, None) if spec.is_current else None
    if today is None:
        return tuple(fitting)
    if spec.name != "optimizer_step" or _takes_closure(today):
        return ()
    return tuple(era for era, arguments in fitting.items() if _takes_closure(arguments))


def _bound(method: Callable[..., Any], spec: HookSpec, kind: Receiver, era: str | None) -> tuple[Argument, ...] | None:
    try:
        arguments = bind_hook(method, spec, kind, era)
    except BindingError:
        return None
    return tuple(argument.under_todays_name() for argument in arguments)


def _with_era(faults: list[Fault], receiver: object, kind: Receiver, old: Mapping[str, Collection[str]]) -> list[Fault]:
    """Return a receiver's faults with the era that it is of, and what runs that, in the last one about its era.

    Args:
        faults: What is wrong with its methods.
        receiver: The receiver.
        kind: What it is.
        old: The names of its methods that belong to earlier eras, each with the eras that fit it.
    """
    shown = receiver_name(receiver)
    declared = getattr(receiver, "hook_era", None)
    if declared is not None and behaviour_of(declared, shown).era not in EARLIER_ERAS:
        declared = None
    if declared is None and not old:
        return faults
    num_fitting = {era: sum(era in eras for eras in old.values()) for era in EARLIER_ERAS}
    era = declared or max(EARLIER_ERAS, key=lambda era: (num_fitting[era], ERAS.index(era)))
    names = ["Trainer", *([_COMPAT[kind]] if kind in _COMPAT else [])]
    lines = "".join(f"\n    from camshaft.compat import {name}" for name in names)
    told = f"{shown} is a {kind_in_words(kind)} of era {era}. To run it as it is, change its imports to{lines}"
    if not old:
        return [*faults, Fault(shown, "hook_era", f"this run calls today's hooks alone. {told}")]
    last = max(place for place, fault in enumerate(faults) if fault.method in old)
    about_era = attrs.evolve(faults[last], message=f"{faults[last].message} {told}")
    return [*faults[:last], about_era, *faults[last + 1 :]]


def _closest(name: str, names: Sequence[str]) -> str | None:
    import difflib  # only when there is something to report

    matches = difflib.get_close_matches(name.replace("begin", "start"), names, n=1, cutoff=0.6)
    return matches[0] if matches else None

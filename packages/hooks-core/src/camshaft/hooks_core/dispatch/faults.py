"""Faults of a receiver's hooks, found before the run."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache

import attrs

from camshaft.hooks_core.catalogue import CATALOGUE, Catalogue
from camshaft.hooks_core.dispatch.binding import (
    Argument,
    BindingError,
    bind_hook,
    candidates,
    fit_hook,
    is_own_name,
    own_classes,
    parameter_names,
)
from camshaft.hooks_core.dispatch.implementation import class_of, implementation, mentions_method, receiver_name
from camshaft.hooks_core.earlier_hooks import EVERYDAY_NAMES
from camshaft.hooks_core.spec import EARLIER_ERAS, HookSpec, Receiver, kind_in_words

_OR_MARK = "or mark it with `@not_a_hook` if it is a method of your own."

_CLOSURE = "optimizer_closure"
_COMPAT = {Receiver.MODULE: "TrainingModule", Receiver.CALLBACK: "Callback", Receiver.DATA: "DataModule"}
"""The base classes of camshaft.compat that run receivers of earlier eras."""


@attrs.frozen
class Fault:
    """Fault of a receiver's method: what is wrong and what to do.

    Attributes:
        receiver: Name of the receiver's class.
        method: The method.
        message: What is wrong and what to do.
        meant: The hook that the method was meant to be, where its name is nearly that of one.
        is_warning: Whether it is a warning only, and the method is left alone.
        is_told_once: Whether one run of a process tells of it, for all instances of the class.
    """

    receiver: str
    method: str
    message: str
    meant: str = ""
    is_warning: bool = False
    is_told_once: bool = False

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
    """Fault as a warning, where `strict` is false."""


def find_faults(
    receiver: object,
    kind: Receiver,
    catalogue: Catalogue,
    read: Collection[str] = (),
    *,
    is_of_today: bool = True,
    has_reader: bool = False,
    uncalled: Collection[str] = (),
    era: str | None = None,
) -> list[Fault]:
    """Check every hook of a receiver: names of no hook, hooks that are not its own or no longer run, wrong arity.

    A name of no hook is one that begins with `on_`, or that nearly is a hook's, unless it is the user's own method; see
    `meant_hook`.

    Overrides of methods that its classes declare as never called, in `_uncalled_methods`, are faults as well.

    Args:
        receiver: A callback, module, data module or strategy, or the class of one.
        kind: Which of these it is.
        catalogue: The hooks to check against.
        read: Names of the methods of which it is known how they are called, and which so are no faults.
        is_of_today: Whether the receiver belongs to no earlier era. A method of it that has an earlier hook's name, but
            a signature of no era, is the user's own: the fault is a warning.
        has_reader: Whether a reader of receivers said what is called as in an earlier era. Else it is a fault that
            the receiver is of one, by the catalogue or by its `hook_era`.
        uncalled: Names of hooks that are not called, and may take any arguments.
        era: The era whose hooks are meant; None for today's. The other options are for today's.

    Returns:
        The faults, in the order of the methods' names; empty if there are none.

    Raises:
        ValueError: If `has_reader` is false, and the receiver's `hook_era` is neither an era nor a release.
    """
    shown = receiver_name(receiver)
    found = list(_uncalled_overrides(receiver)) if era is None else []
    for name in sorted(candidates(receiver)):
        spec = catalogue.get(name)
        if name in uncalled:
            continue
        if name in read:
            fault = _defined_twice(receiver, catalogue[name])
        elif spec is None or kind not in spec.receivers:
            fault = _no_hook(receiver, name, kind, catalogue)
        elif spec.is_in(era, kind):
            fault = _wrong_arity(receiver, spec, kind, era)
            if fault is None and era is None and not has_reader:
                fault = _lacks_closure(receiver, spec, kind)
        elif name in EVERYDAY_NAMES or mentions_method(own_classes(receiver), name):
            fault = None
        elif era is not None:
            fault = _fault(f"this hook belongs to the eras {', '.join(spec.eras)}, and era {era} does not call it.")
        else:
            is_dead = has_reader and is_of_today  # the reader has not taken it
            fault = _of_an_old_era(receiver, spec, kind, catalogue, is_of_today=is_of_today, is_dead=is_dead)
        if fault is not None:
            found.append(attrs.evolve(fault, receiver=shown, method=name))
    return found if has_reader or era is not None else _with_era(found, receiver, kind, catalogue)


def bound_as_today(receiver: object, kind: Receiver, catalogue: Catalogue) -> dict[str, tuple[Argument, ...]]:
    """Return the methods of a receiver that take the arguments of today's hooks, by name, each with these.

    Args:
        receiver: A callback, module, data module or strategy, or the class of one.
        kind: Which of these it is.
        catalogue: The hooks.
    """
    found = {}
    for name in candidates(receiver):
        spec = catalogue.get(name)
        method = implementation(receiver, name)
        if spec is None or method is None or not spec.is_current or kind not in spec.receivers:
            continue
        arguments = fit_hook(method, spec, kind)
        if arguments is not None and _lacks_closure(receiver, spec, kind) is None:
            found[name] = arguments
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
    # nothing shows that a method is the user's own: no public base has it, nothing calls it
    looks_forgotten = is_own_name(receiver, name) and not mentions_method(own_classes(receiver), name)
    if meant is None and not (name.startswith("on_") and looks_forgotten):
        return None
    if spec is not None and (meant is None or name.startswith("on_")):
        owners = " and ".join(f"the {receiver}" for receiver in spec.receivers)
        return _fault(f"a {kind} does not receive this hook; it goes to {owners}. Move it there, {_OR_MARK}")
    if meant is not None:
        return _fault(f"no hook has this name. Rename it to `{meant.name}`, {_OR_MARK}", meant.name)
    near = _closest(name, [spec.name for spec in catalogue.received_by(kind) if spec.is_current])
    hint = f"Rename it to `{near}`" if near else "Rename it so that it does not begin with `on_`"
    return _fault(f"no hook has this name. {hint}, {_OR_MARK}", near or "")


def _fault(message: str, meant: str = "", *, is_warning: bool = False) -> Fault:
    """Return a fault whose receiver and method the caller fills in."""
    return Fault("", "", message, meant, is_warning)


def _of_an_old_era(
    receiver: object, spec: HookSpec, kind: Receiver, catalogue: Catalogue, *, is_of_today: bool, is_dead: bool
) -> Fault | None:
    method = implementation(receiver, spec.name)
    assert method is not None
    takes: tuple[Argument, ...] | None = None
    misfit = ""
    for era in spec.eras_of(kind):
        try:
            takes = bind_hook(method, spec, kind, era)
        except BindingError as error:
            misfit = str(error)
    if takes is None and is_of_today:
        advice = (
            f"it is taken for a method of your own: it has the name of a hook of earlier eras, but {misfit}. Mark it"
        )
        return _fault(f"{advice} with `@not_a_hook`, or take the hook's arguments.", is_warning=True)
    if takes is None:
        return _fault(f"{misfit}. Take these arguments, {_OR_MARK}")
    if spec.kind == "override" and spec.parameters and not takes:
        return None  # a method of its own that happens to have the name
    eras = ", ".join(spec.eras)
    alike = [name for name in spec.today if catalogue[name].is_current and catalogue[name].kind == spec.kind]
    hint = f"Rename it to `{alike[0]}`" if alike else "Rewrite it with the hooks of era 2.x"
    if is_dead:
        told = f"this hook belongs to the eras {eras}, and the class to a later one: it is dead, and never called."
        declare = "declare the release that the class was written for as `hook_era`"
        fault = _fault(f"{told} {hint}, {declare}, {_OR_MARK}", is_warning=True)
        return attrs.evolve(fault, is_told_once=True)
    return _fault(f"this hook belongs to the eras {eras}, which this run does not call. {hint}, {_OR_MARK}")


def _defined_twice(receiver: object, spec: HookSpec) -> Fault | None:
    """Return the fault of an earlier name of something that has one owner, where the later name is there too."""
    later = [name for name in spec.today if spec.kind != "event" and implementation(receiver, name) is not None]
    if not later:
        return None
    return _fault(f"it is an earlier name of `{later[0]}`, which is defined as well. Keep one of the two.")


def _wrong_arity(receiver: object, spec: HookSpec, kind: Receiver, era: str | None = None) -> Fault | None:
    method = implementation(receiver, spec.name)
    assert method is not None
    try:
        bind_hook(method, spec, kind, era)
    except BindingError as error:
        return _fault(f"{error}. Take these arguments, or fewer of them.")
    return None


def _lacks_closure(receiver: object, spec: HookSpec, kind: Receiver) -> Fault | None:
    """Return the fault of an `optimizer_step` that gets its closure in an earlier era alone."""
    if spec.name != "optimizer_step" or _takes_closure(receiver, spec, kind, None):
        return None
    if not any(_takes_closure(receiver, spec, kind, era) for era in _eras_that_fit(receiver, spec, kind)):
        return None
    return _fault(f"it does not take the closure, which runs training_step and backward. Take `{_CLOSURE}`.")


def _takes_closure(receiver: object, spec: HookSpec, kind: Receiver, era: str | None) -> bool:
    method = implementation(receiver, spec.name)
    assert method is not None
    arguments = bind_hook(method, spec, kind, era)
    return any(argument.under_todays_name().source == _CLOSURE for argument in arguments)


def _with_era(faults: Sequence[Fault], receiver: object, kind: Receiver, catalogue: Catalogue) -> list[Fault]:
    """Return a receiver's faults with the era that it is of, by the catalogue or by itself, and with what runs that.

    The last fault of a method that belongs to an earlier era says so.
    """
    shown, declared = receiver_name(receiver), getattr(receiver, "hook_era", None)
    if declared is not None:
        from camshaft.hooks_core.eras import behaviour_of  # no run of today's classes needs it

        declared = declared if behaviour_of(declared, shown).era in EARLIER_ERAS else None
    known = {fault.method: catalogue[fault.method] for fault in faults if fault.method in catalogue}
    of_eras = {name: _eras_that_fit(receiver, spec, kind) for name, spec in known.items()}
    of_eras = {name: eras for name, eras in of_eras.items() if eras}
    if declared is None and not of_eras:
        return list(faults)
    era = declared or max(
        EARLIER_ERAS, key=lambda era: (sum(era in eras for eras in of_eras.values()), EARLIER_ERAS.index(era))
    )
    advice = f"{shown} is a {kind_in_words(kind)} of era {era}. To run it as it is, change its imports to"
    for name in ("Trainer", _COMPAT.get(kind)):
        advice += f"\n    from camshaft.compat import {name}" if name is not None else ""
    if not of_eras:
        return [*faults, Fault(shown, "hook_era", f"this run calls today's hooks alone. {advice}")]
    found = []
    for fault in faults:
        message = fault.message
        if fault.method in of_eras and known[fault.method].is_current:
            message += f" Its arguments are those of the eras {', '.join(of_eras[fault.method])}."
        if fault.method == max(of_eras):  # the last, as they stand in the order of their names
            message += f" {advice}"
        found.append(attrs.evolve(fault, message=message))
    return found


def _eras_that_fit(receiver: object, spec: HookSpec, kind: Receiver) -> tuple[str, ...]:
    """Return the earlier eras that know a hook for a kind of receiver, and whose arguments a method takes: with the
    closure of an `optimizer_step`, if it takes that in any."""
    known = [era for era in spec.eras_of(kind) if era in EARLIER_ERAS]
    fitting = tuple(era for era in known if _wrong_arity(receiver, spec, kind, era) is None)
    if spec.name != "optimizer_step":
        return fitting
    return tuple(era for era in fitting if _takes_closure(receiver, spec, kind, era)) or fitting


def _closest(name: str, names: Sequence[str]) -> str | None:
    import difflib  # only when there is something to report

    matches = difflib.get_close_matches(name.replace("begin", "start"), names, n=1, cutoff=0.6)
    return matches[0] if matches else None


_SYNONYMS = {
    **dict.fromkeys(("training",), "train"),
    **dict.fromkeys(("validate", "validating", "valid", "val"), "validation"),
    **dict.fromkeys(("testing",), "test"),
    **dict.fromkeys(("prediction", "predicting"), "predict"),
    **dict.fromkeys(("begin", "begins", "beginning", "started", "starting"), "start"),
    **dict.fromkeys(("ended", "ending", "finish", "finished"), "end"),
    "batches": "batch",
    "optimiser": "optimizer",
    "optimisers": "optimizer",
}
_FIRST_OF_EVENTS, _LAST_OF_EVENTS = ("before", "after"), ("start", "end")
_ENDS_OF_EARLIER_ERAS = ("_epoch_end", "_step_end")
_MIN_TYPO_LENGTH = 5


def meant_hook(receiver: object, name: str, kind: Receiver, catalogue: Catalogue) -> HookSpec | None:
    """Return the hook that a method of a similar name was meant to be, or None if it is a method of the user's own.

    The name says the same in other words (`training_batch_end`, `val_dataloaders`) or has one typing error, and the
    signature takes the hook's arguments. A method is the user's own if the hook is there as well, if the class's code
    mentions it, or if its name comes from a base class of torch, of Lightning or of camshaft.

    Args:
        receiver: A callback, module or data module, or the class of one.
        name: The method's name, which is no hook of this kind of receiver.
        kind: Which of these it is.
        catalogue: The hooks.
    """
    if kind is Receiver.STRATEGY or name.startswith("_") or not _meaning(name) or not is_own_name(receiver, name):
        return None
    method = implementation(receiver, name)
    near = [spec for spec in catalogue.received_by(kind) if _is_near(name, spec)]
    near.sort(key=lambda spec: not spec.is_current)
    spec = next((spec for spec in near if inspect.isroutine(method) and _fits(method, spec, kind)), None)
    if spec is None or implementation(receiver, spec.name) is not None:
        return None
    return None if mentions_method(own_classes(receiver), name) else spec


def _is_near(name: str, spec: HookSpec) -> bool:
    is_known = spec.is_current or (spec.kind == "override" and spec.name.endswith(_ENDS_OF_EARLIER_ERAS))
    if spec.kind == "state" or not is_known:
        return False
    if spec.kind == "step":  # `train_step` and `val_step` are everyday names
        return _meaning(name, in_other_words=False) == spec.name.replace("_", "")
    if spec.name.startswith("on_") and not (name.startswith("on_") or _is_moment(name)):
        return False  # such as `save_checkpoint`
    return _meaning(name) == _meaning(spec.name)


def _is_moment(name: str) -> bool:
    first, *_, last = name.split("_") if "_" in name else ("", name)
    return first in _FIRST_OF_EVENTS or _SYNONYMS.get(last, last) in _LAST_OF_EVENTS


@lru_cache(maxsize=1024)
def _meaning(name: str, *, in_other_words: bool = True) -> str:
    """Return a name without `on_`, plurals, underscores and a typing error, and in the words of today's hooks.

    It is empty for a name that has other words than hooks have.
    """
    words = _corrected(name.removeprefix("on_").split("_"))
    return "".join(_singular(_SYNONYMS.get(word, word) if in_other_words else word) for word in words)


def _singular(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def _corrected(words: list[str]) -> list[str]:
    """Return the words with a typing error in one of them corrected; none if they are no words of hooks."""
    known = _vocabulary()
    unknown = [word for word in words if word not in known and _singular(word) not in known]
    if not unknown:
        return words
    meant = next((one for one in sorted(known) if _is_typo(unknown[0], one)), None)
    if len(unknown) == 1 and meant is not None:
        return [meant if word == unknown[0] else word for word in words]
    return words if "".join(words) in known else []  # `set_up`


@lru_cache(maxsize=1)
def _vocabulary() -> frozenset[str]:
    return frozenset({*(word for name in CATALOGUE for word in name.split("_")), *_SYNONYMS, "loader"})


def _is_typo(word: str, meant: str) -> bool:
    """Return whether a word is another with neighbours swapped or, if it is long enough, a letter wrong, left out or
    doubled."""
    if word[:1] != meant[:1]:
        return False
    pairs = enumerate(zip(word, meant, strict=False))
    common = next((place for place, (letter, other) in pairs if letter != other), min(len(word), len(meant)))
    rest, rest_meant = word[common:], meant[common:]
    if rest[1::-1] + rest[2:] == rest_meant:
        return True
    return len(meant) >= _MIN_TYPO_LENGTH and (
        rest[1:] == rest_meant[1:] or rest[1:] == rest_meant or rest == rest_meant[1:]
    )


def _fits(method: object, spec: HookSpec, kind: Receiver) -> bool:
    """Return whether a method takes a hook's arguments in some era, and any at all if it has some."""
    assert callable(method)
    if spec.parameters == ("stage",) and "stage" not in parameter_names(method):
        return False  # `set_up` and `tear_down` are everyday names
    takes_some = bool(spec.parameters) or (kind is Receiver.CALLBACK and spec.kind == "event")
    eras = (*([None] if spec.is_current else []), *spec.eras_of(kind))
    fitting = [fit_hook(method, spec, kind, era) for era in eras]
    return any(arguments or (arguments is not None and not takes_some) for arguments in fitting)


def _uncalled_overrides(receiver: object) -> Iterator[Fault]:
    """Yield the faults of overrides that are never called, as the classes declare in `_uncalled_methods`.

    An override that is marked with `@not_a_hook`, or that the subclass calls, is a method of its own and left out.
    """
    classes = class_of(receiver).__mro__
    for idx, declaring in enumerate(classes):
        for name, action in vars(declaring).get("_uncalled_methods", {}).items():
            override = next((vars(klass)[name] for klass in classes[:idx] if name in vars(klass)), None)
            if override is None or getattr(override, "__not_a_hook__", False):
                continue
            if not mentions_method(classes[:idx], name):
                message = (
                    f"this method of Lightning's {declaring.__name__} is not called by that of camshaft, so an "
                    f"override does nothing. {action} If it is a method of your own, mark it with `@not_a_hook`."
                )
                yield Fault(receiver_name(receiver), name, message)

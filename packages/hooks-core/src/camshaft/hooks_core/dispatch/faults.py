"""Faults of a receiver's hooks, found before the run."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType

import attrs

from camshaft.hooks_core.catalogue import Catalogue
from camshaft.hooks_core.dispatch.binding import Argument, BindingError, bind_hook, fit_hook, parameter_names
from camshaft.hooks_core.dispatch.candidates import candidates, is_own_name, own_classes
from camshaft.hooks_core.dispatch.implementation import (
    class_of,
    implementation,
    mentions_method,
    method_of,
    receiver_name,
)
from camshaft.hooks_core.spec import HookSpec, Receiver

OR_MARK = "or mark it with `@not_a_hook` if it is a method of your own."
"""The second remedy for a method that resembles a hook."""


@attrs.frozen
class Fault:
    """Fault of a receiver's method: what is wrong and what to do.

    Attributes:
        receiver: Name of the receiver's class.
        method: The method.
        message: What is wrong and what to do.
        meant: The hook that the method was meant to be, where its name is nearly that of one.
        is_warning: Whether it is a warning only, and the method is left alone.
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
    """Fault as a warning, where `strict` is false."""


def examine(
    receiver: object,
    kind: Receiver,
    catalogue: Catalogue,
    further: Mapping[str, HookSpec] = MappingProxyType({}),
    read: Collection[str] = (),
    *,
    names_are_own: bool = False,
) -> tuple[dict[str, tuple[Argument, ...]], list[Fault]]:
    """Bind every hook of a receiver, and find its faults: names of no hook, hooks that are not its own, wrong arity.

    A name of no hook is one that begins with `on_`, or that nearly is a hook's, unless it is the user's own method; see
    `meant_hook`. Overrides of methods that its classes declare as never called, in `_uncalled_methods`, are faults as
    well; these are warnings.

    Args:
        receiver: A callback, module, data module or strategy, or the class of one.
        kind: Which of these it is.
        catalogue: The hooks to check against.
        further: Hooks beside these, of which a reader of receivers knows how they are called, if at all.
        read: Names of the methods of which it is known how they are called, and which so are no faults.
        names_are_own: Whether names of no hook, and of hooks that are not its own, are warnings.

    Returns:
        The arguments of each of its hooks, and the faults, in the order of the methods' names.
    """
    shown = receiver_name(receiver)
    bound: dict[str, tuple[Argument, ...]] = {}
    faults = list(_uncalled_overrides(receiver))
    for name in sorted(candidates(receiver)):
        spec = catalogue.get(name)
        if name in read or (name in further and kind in further[name].receivers):
            continue
        if spec is None or kind not in spec.receivers:
            found = _no_hook(receiver, name, kind, catalogue, further)
            faults += [attrs.evolve(one, is_warning=one.is_warning or names_are_own) for one in found]
            continue
        try:
            bound[name] = bind_hook(method_of(receiver, name), spec, kind)
        except BindingError as error:
            faults.append(Fault(shown, name, f"{error}. Take these arguments, or fewer of them."))
    return bound, faults


def missing_step(receiver: object, name: str, catalogue: Catalogue) -> Fault:
    """Return the fault of a module that lacks a method which a verb needs."""
    classes = own_classes(receiver)
    own = [one for one in candidates(receiver) if one not in catalogue and is_own_name(receiver, one)]
    near = _closest(name, [one for one in own if not mentions_method(classes, one)], _SIMILAR)
    hint = f"Rename `{near[0]}`." if near else f"Define `{name}({', '.join(catalogue[name].parameters)})`."
    return Fault(receiver_name(receiver), name, f"`{name}` must be defined to run this verb, but is missing. {hint}")


def _no_hook(
    receiver: object, name: str, kind: Receiver, catalogue: Catalogue, further: Mapping[str, HookSpec]
) -> Iterator[Fault]:
    """Yield the fault of a method that is no hook of this kind of receiver, if it looks like one."""
    spec = catalogue.get(name) or further.get(name)
    overrides = [one for one in further.values() if one.kind == "override"]
    meant = meant_hook(receiver, name, kind, [*catalogue.values(), *overrides])
    # nothing shows that a method is the user's own: no public base has it, nothing calls it
    looks_forgotten = is_own_name(receiver, name) and not mentions_method(own_classes(receiver), name)
    if meant is None and not (name.startswith("on_") and looks_forgotten):
        return
    if spec is not None and (meant is None or name.startswith("on_")):
        owners = " and ".join(f"the {receiver}" for receiver in spec.receivers)
        text = f"a {kind} does not receive this hook; it goes to {owners}. Move it there, {OR_MARK}"
        # Lightning had some hooks of other protocols where nothing called them
        yield Fault(receiver_name(receiver), name, text, is_warning=name not in catalogue)
        return
    near = [meant] if meant else _closest(name, [one.name for one in catalogue.received_by(kind)], _SIMILAR)
    hint = f"Rename it to `{near[0]}`" if near else "Rename it so that it does not begin with `on_`"
    yield Fault(receiver_name(receiver), name, f"no hook has this name. {hint}, {OR_MARK}", near[0] if near else "")


_SIMILAR, _MISSPELT = 0.6, 0.9  # how much of two names is the same, as difflib tells it
_WORDS = {
    "training": "train",
    **dict.fromkeys(("validate", "validating", "valid", "val"), "validation"),
    "testing": "test",
    **dict.fromkeys(("prediction", "predicting"), "predict"),
    **dict.fromkeys(("begin", "begins", "beginning", "started", "starting"), "start"),
    **dict.fromkeys(("ended", "ending", "finish", "finished"), "end"),
    "batches": "batch",
    **dict.fromkeys(("optimiser", "optimisers"), "optimizer"),
}


def meant_hook(receiver: object, name: str, kind: Receiver, hooks: Iterable[HookSpec]) -> str | None:
    """Return the hook that a method of a similar name was meant to be, or None if it is a method of the user's own.

    The name says nearly the same, maybe in other words (`training_batch_end`, `val_dataloaders`), and the signature
    takes the hook's arguments. A method is the user's own if the hook is there as well, if the class's code mentions
    it, or if its name comes from a base class of torch, of Lightning or of camshaft.

    Args:
        receiver: A callback, module or data module, or the class of one.
        name: The method's name, which is no hook of this kind of receiver.
        kind: Which of these it is.
        hooks: The hooks.
    """
    method = implementation(receiver, name)
    if kind is Receiver.STRATEGY or name.startswith("_") or not inspect.isroutine(method):
        return None
    fitting = {spec.name: spec for spec in hooks if kind in spec.receivers and _is_like(name, spec)}
    for one in _closest(name, [*fitting], _MISSPELT):
        if _fits(method, fitting[one], kind):
            known = implementation(receiver, one) is not None or not is_own_name(receiver, name)
            return None if known or mentions_method(own_classes(receiver), name) else one
    return None


def _is_like(name: str, spec: HookSpec) -> bool:
    """Return whether a hook is one for which a method of another name may stand: no everyday name is an event's."""
    first, *_, last = name.split("_") if "_" in name else ("", name)
    is_moment = first in ("on", "before", "after") or _WORDS.get(last, last) in ("start", "end")
    return spec.kind != "state" and (is_moment or not spec.name.startswith("on_"))


def _closest(name: str, names: Sequence[str], cutoff: float) -> list[str]:
    """Return the names that say nearly the same as another, the closest first."""
    wanted, near = _meaning(name), dict[str, str]()
    for one in names:
        meaning = _meaning(one)
        # which difflib asks first, too; few names come so far that it is imported
        may_be_close = 2 * min(len(meaning), len(wanted)) >= cutoff * (len(meaning) + len(wanted))
        if may_be_close and meaning[0] == wanted[:1]:
            near[one] = meaning
    if not near:
        return []
    import difflib

    meanings = difflib.get_close_matches(wanted, dict.fromkeys(near.values()), cutoff=cutoff)
    return [one for meaning in meanings for one in near if near[one] == meaning]


@lru_cache(maxsize=1024)
def _meaning(name: str) -> str:
    """Return a name without `on_`, plurals and underscores, and in the words of hooks; a step's stays as it is."""
    words = name.removeprefix("on_").split("_")
    if words[-1] != "step":
        words = [_WORDS.get(word, word) for word in words]
    return "".join(word.removesuffix("s") if len(word) > 3 and not word.endswith("ss") else word for word in words)


def _fits(method: object, spec: HookSpec, kind: Receiver) -> bool:
    """Return whether a method takes a hook's arguments, and any at all if it has some."""
    assert callable(method)
    if spec.parameters == ("stage",) and "stage" not in parameter_names(method):
        return False  # `set_up` and `tear_down` are everyday names
    arguments = fit_hook(method, spec, kind)
    takes_none = not spec.parameters and (kind is not Receiver.CALLBACK or spec.kind != "event")
    return bool(arguments) or (arguments is not None and takes_none)


def _uncalled_overrides(receiver: object) -> Iterator[Fault]:
    """Yield the faults of overrides that are never called, as the classes declare in `_uncalled_methods`: with what to
    do instead, or "" where a subclass calls what its bases do not.

    An override that is marked with `@not_a_hook`, or that the subclass calls, is a method of its own and left out.
    """
    classes = class_of(receiver).__mro__
    called: set[str] = set()
    for idx, declaring in enumerate(classes):
        for name, action in vars(declaring).get("_uncalled_methods", {}).items():
            called |= set() if action else {name}
            override = next((vars(klass)[name] for klass in classes[:idx] if name in vars(klass)), None)
            is_own = override is None or getattr(override, "__not_a_hook__", False)
            if name in called or is_own or mentions_method(classes[:idx], name):
                continue
            message = (
                f"this method of Lightning's {declaring.__name__} is not called by that of camshaft, so an "
                f"override does nothing. {action} If it is a method of your own, mark it with `@not_a_hook`."
            )
            yield Fault(receiver_name(receiver), name, message, is_warning=True)

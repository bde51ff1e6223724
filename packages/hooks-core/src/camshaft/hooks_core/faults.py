"""What is wrong with a receiver's hooks, found before the run."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import attrs

from camshaft.hooks_core.binding import Argument, BindingError
from camshaft.hooks_core.catalogue import Catalogue
from camshaft.hooks_core.eras.reading import EVERYDAY_NAMES
from camshaft.hooks_core.implementation import implementation, receiver_name
from camshaft.hooks_core.methods import bind_hook, candidates
from camshaft.hooks_core.spec import HookSpec, Receiver
from camshaft.hooks_core.user_warnings import warn_user


@attrs.frozen
class Fault:
    """One fault: whose, in which method, what is wrong and what to do."""

    receiver: str
    method: str
    message: str

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
        HookFaultError: If there are faults and `strict` is true.
    """
    if faults and strict:
        raise HookFaultError(faults)
    for fault in faults:
        warn_user(str(fault), HookFaultWarning)


def find_faults(receiver: object, kind: Receiver, catalogue: Catalogue, read: Collection[str] = ()) -> list[Fault]:
    """Check every hook of a receiver: unknown names, hooks that are not its own or no longer run, wrong arity.

    Args:
        receiver: A callback, module, data module or strategy, or the class of one.
        kind: Which of these it is.
        catalogue: The hooks to check against.
        read: Names of the methods of which it is known how they are called, and which so are no faults.

    Returns:
        The faults, in the order of the methods' names; empty if there are none.
    """
    found: list[Fault] = []
    for name in sorted(candidates(receiver)):
        spec = catalogue.get(name)
        message = None
        if name in read:
            message = _defined_twice(receiver, catalogue[name])
        elif spec is None:
            if name.startswith("on_"):
                message = _unknown(name, kind, catalogue)
        elif kind not in spec.receivers:
            if name.startswith("on_"):
                message = _not_received(spec, kind)
        elif not spec.is_current:
            message = None if name in EVERYDAY_NAMES else _of_an_old_era(receiver, spec, kind, catalogue)
        else:
            message = _wrong_arity(receiver, spec, kind)
        if message is not None:
            found.append(Fault(receiver_name(receiver), name, message))
    return found


def missing_step(receiver: object, name: str, catalogue: Catalogue) -> Fault:
    """The fault of a module that lacks a method which a verb needs."""
    near = _closest(name, [candidate for candidate in candidates(receiver) if candidate not in catalogue])
    hint = f"Rename `{near}`." if near else f"Define `{name}({', '.join(catalogue[name].parameters)})`."
    return Fault(receiver_name(receiver), name, f"`{name}` must be defined to run this verb, but is missing. {hint}")


def _unknown(name: str, kind: Receiver, catalogue: Catalogue) -> str:
    near = _closest(name, [spec.name for spec in catalogue.received_by(kind) if spec.is_current])
    hint = f"Rename it to `{near}`" if near else "Rename it so that it does not begin with `on_`"
    return f"no hook has this name. {hint}, or mark it with `@not_a_hook` if it is a method of your own."


def _not_received(spec: HookSpec, kind: Receiver) -> str:
    owners = " and ".join(f"the {receiver}" for receiver in spec.receivers)
    return (
        f"a {kind} does not receive this hook; it goes to {owners}. Move it there, or mark it with `@not_a_hook` if it "
        "is a method of your own."
    )


def _of_an_old_era(receiver: object, spec: HookSpec, kind: Receiver, catalogue: Catalogue) -> str | None:
    method = implementation(receiver, spec.name)
    assert method is not None
    takes: tuple[Argument, ...] | None = None
    misfit = ""
    for era in (era for era in spec.eras if kind in spec.receivers_in(era)):
        try:
            takes = bind_hook(method, spec, kind, era)
        except BindingError as error:
            misfit = str(error)
    if takes is None:
        return f"{misfit}. Take these arguments, or mark it with `@not_a_hook` if it is a method of your own."
    if spec.kind == "override" and spec.parameters and not takes:
        return None  # a method of its own that happens to have the name
    eras = ", ".join(spec.eras)
    alike = [name for name in spec.today if catalogue[name].is_current and catalogue[name].kind == spec.kind]
    hint = f"Rename it to `{alike[0]}`" if alike else "Rewrite it with the hooks of era 2.x"
    return (
        f"this hook belongs to the eras {eras}, which this run does not call. {hint}, or mark it with `@not_a_hook` if "
        "it is a method of your own."
    )


def _defined_twice(receiver: object, spec: HookSpec) -> str | None:
    """What is wrong with an earlier name of something that has one owner, where the later name is there too."""
    later = [name for name in spec.today if spec.kind != "event" and implementation(receiver, name) is not None]
    return f"it is an earlier name of `{later[0]}`, which is defined as well. Keep one of the two." if later else None


def _wrong_arity(receiver: object, spec: HookSpec, kind: Receiver) -> str | None:
    method = implementation(receiver, spec.name)
    assert method is not None
    try:
        bind_hook(method, spec, kind)
    except BindingError as error:
        return f"{error}. Take these arguments, or fewer of them."
    return None


def _closest(name: str, names: Sequence[str]) -> str | None:
    import difflib  # only when there is something to report

    matches = difflib.get_close_matches(name.replace("begin", "start"), names, n=1, cutoff=0.6)
    return matches[0] if matches else None

"""What is wrong with a receiver's hooks, found before the run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from camshaft.hooks_core.binding import BindingError, bind
from camshaft.hooks_core.catalogue import Catalogue
from camshaft.hooks_core.implementation import class_of, implementation, receiver_name
from camshaft.hooks_core.spec import HookSpec, Receiver
from camshaft.hooks_core.user_warnings import warn_user

CALLBACK_PREFIX = ("trainer", "module")
"""What a callback gets before an event's own parameters."""

# Names of old hooks that a class of today may well use for a method of its own.
_EVERYDAY_NAMES = frozenset({"summarize", "init_optimizers", "restore_weights"})


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


def arguments_of(spec: HookSpec, kind: Receiver, era: str | None = None) -> tuple[str, ...]:
    """The arguments that a kind of receiver gets from a hook, in order."""
    prefix = CALLBACK_PREFIX if kind is Receiver.CALLBACK and spec.kind == "event" else ()
    return (*prefix, *spec.parameters_in(era))


def find_faults(receiver: object, kind: Receiver, catalogue: Catalogue) -> list[Fault]:
    """Check every hook of a receiver: unknown names, hooks that are not its own or no longer run, wrong arity.

    Args:
        receiver: A callback, module, data module or strategy, or the class of one.
        kind: Which of these it is.
        catalogue: The hooks to check against.

    Returns:
        The faults, in the order of the methods' names; empty if there are none.
    """
    found: list[Fault] = []
    for name in sorted(candidates(receiver)):
        spec = catalogue.get(name)
        message = None
        if spec is None:
            if name.startswith("on_"):
                message = _unknown(name, kind, catalogue)
        elif kind not in spec.receivers:
            if name.startswith("on_"):
                message = _not_received(spec, kind)
        elif not spec.is_current:
            message = None if name in _EVERYDAY_NAMES else _of_an_old_era(spec)
        else:
            message = _wrong_arity(receiver, spec, kind)
        if message is not None:
            found.append(Fault(receiver_name(receiver), name, message))
    return found


def candidates(receiver: object) -> Iterator[str]:
    """Names of the methods of a receiver that may be hooks: its own and its classes', but not the base classes'."""
    seen: set[str] = set()
    namespaces = [] if isinstance(receiver, type) else [getattr(receiver, "__dict__", {})]
    namespaces += [
        vars(klass)
        for klass in class_of(receiver).__mro__
        if not vars(klass).get("__hook_base__") and not _is_framework(klass)
    ]
    for namespace in namespaces:
        for name in namespace:
            if name in seen or name.startswith("__"):
                continue
            seen.add(name)
            method = implementation(receiver, name) if not isinstance(namespace[name], property) else None
            if method is not None:
                yield name


def missing_step(receiver: object, name: str, catalogue: Catalogue) -> Fault:
    """The fault of a module that lacks a method which a verb needs."""
    near = _closest(name, [candidate for candidate in candidates(receiver) if candidate not in catalogue])
    hint = f"Rename `{near}`." if near else f"Define `{name}({', '.join(catalogue[name].parameters)})`."
    return Fault(receiver_name(receiver), name, f"`{name}` must be defined to run this verb, but is missing. {hint}")


def _is_framework(klass: type) -> bool:
    return klass is object or klass.__module__.partition(".")[0] == "torch"


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


def _of_an_old_era(spec: HookSpec) -> str:
    eras = ", ".join(spec.eras)
    hint = f"Rename it to `{spec.today}`" if spec.today else "Rewrite it with the hooks of era 2.x"
    return (
        f"this hook belongs to the eras {eras}, which camshaft describes but does not run yet. {hint}, or mark it with "
        "`@not_a_hook` if it is a method of your own."
    )


def _wrong_arity(receiver: object, spec: HookSpec, kind: Receiver) -> str | None:
    method = implementation(receiver, spec.name)
    assert method is not None
    try:
        bind(method, arguments_of(spec, kind), spec.optional)
    except BindingError as error:
        return f"{error}. Take these arguments, or fewer of them."
    return None


def _closest(name: str, names: Sequence[str]) -> str | None:
    import difflib  # only when there is something to report

    matches = difflib.get_close_matches(name.replace("begin", "start"), names, n=1, cutoff=0.6)
    return matches[0] if matches else None

"""Record of a run: the enter and exit of every hook, receiver by receiver, as plain data."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Collection, Iterable, Iterator
from os import PathLike, fspath
from typing import Any, Literal, TypeVar

import attrs

from camshaft.hooks_core.catalogue import CATALOGUE, Catalogue
from camshaft.hooks_core.dispatch.binding import arguments_of, positional_names, prefix_of
from camshaft.hooks_core.dispatch.calls import rank, runs_after_module
from camshaft.hooks_core.dispatch.implementation import implementation, receiver_name
from camshaft.hooks_core.dispatch.readings import ReadReceivers, ReceiverReading
from camshaft.hooks_core.spec import HookSpec, Receiver
from camshaft.hooks_core.support.messages import must_be
from camshaft.hooks_core.support.remote_files import check_on_disk

_Object = TypeVar("_Object")
_FORMAT = "camshaft-trace-1"
_SUMMARY_LENGTH = 40


class Trace:
    """Records the hooks of a run.

    Args:
        catalogue: The hooks that are recorded.
        read: As `resolve` takes it: says how the methods of a receiver are called. What it finds beside the catalogue's
            hooks is recorded as well, and what the receiver was written for. It is not asked for the catalogue of
            another protocol.
        without: Names of hooks that are not recorded, such as those that a trainer never calls; "module:on_exception"
            is one that is not recorded on modules.

    Attributes:
        protocol: Name of the protocol whose hooks are recorded; None for camshaft's own.
        participants: The receivers.
        events: What was recorded.

    Raises:
        ValueError: If `without` names no hook.
    """

    def __init__(
        self, catalogue: Catalogue = CATALOGUE, read: ReadReceivers | None = None, without: Collection[str] = ()
    ) -> None:
        self.protocol = catalogue.protocol
        self.events: list[Event] = []
        self.participants: list[Participant] = []
        self._catalogue = catalogue
        self._read = read
        check_without(without, "Trace", catalogue)
        self._without = frozenset(without)
        self._recorded: list[object] = []  # kept, so that a receiver's identity stays its own

    def record(
        self,
        receiver: _Object,
        kind: Receiver | str,
        name: str | None = None,
        hooks: Iterable[str] | None = None,
        *,
        only: Iterable[str] | None = None,
    ) -> _Object:
        """Record every call of a receiver's hooks from now on, by wrapping its methods on the instance.

        Events are recorded even where the receiver does not implement them, so that it receives them all; everything
        else where it does. Record callbacks in the order in which they are passed to the run, and record before the run
        resolves its hooks. A recorded receiver cannot be pickled, and copies of it call the original's hooks.

        Args:
            receiver: A callback, data module, module or strategy.
            kind: Which of these it is.
            name: Its name in the trace. The default is its class's name, numbered if that is taken.
            hooks: Names of further hooks to record, whose default the receiver inherits, such as `optimizer_step`.
            only: Names of the only hooks to record. The default records as said above.

        Returns:
            The same receiver.

        Raises:
            ValueError: If the receiver is recorded already, the name is taken, or a name in `hooks` or `only` is no
                hook of this kind of receiver or has no method to record.
            TypeError: If the receiver's class allows no attributes on its instances.
        """
        kind = Receiver(kind)
        shown = receiver_name(receiver)
        if any(receiver is known for known in self._recorded):
            told = f"`receiver` must be recorded once, but got a {shown} again in Trace.record."
            raise ValueError(f"{told} Leave out the second call.")
        reading = ReceiverReading(shown, kind)
        if self.protocol is None and self._read is not None:
            (reading,) = self._read([(kind, receiver)], self._catalogue)
        wanted = self._wanted(receiver, reading, frozenset(hooks or ()), None if only is None else frozenset(only))
        names = [spec.name for spec, _ in wanted]
        participant = Participant(
            name=self._free_name(receiver, name),
            kind=kind,
            hooks=names,
            after_module=[one for one in names if kind is Receiver.CALLBACK and runs_after_module(receiver, one)],
            manual=kind is Receiver.MODULE and getattr(receiver, "automatic_optimization", True) is False,
            version=reading.version,
        )
        for spec, method in wanted:
            recorded = self._wrapped(participant, spec, method)
            if spec.name in CATALOGUE and implementation(receiver, spec.name) is None:
                recorded.__placeholder__ = True  # type: ignore[attr-defined]  # says nothing about the receiver
            try:
                object.__setattr__(receiver, spec.name, recorded)  # past a class's own
            except AttributeError as error:
                told = f"`receiver` must allow attributes on its instance, but got a {shown} in Trace.record."
                raise TypeError(f"{told} Remove `__slots__` from its class, or record a subclass.") from error
        self.participants.append(participant)
        self._recorded.append(receiver)
        return receiver

    def clear(self) -> None:
        """Forget the events, so that the same receivers can go through another run."""
        self.events.clear()

    def calls(self) -> list[str]:
        """Return the events as lines, such as "enter on_fit_start callback:EarlyStopping"."""
        return [str(event) for event in self.events]

    def __len__(self) -> int:
        return len(self.events)

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the trace as JSON lines: one for what it is, one for each participant and each event.

        Raises:
            ValueError: If the path is a URL.
        """
        check_on_disk("path", fspath(path), "Trace.save")
        head = {"format": _FORMAT, "era": self.protocol, "participants": len(self.participants)}
        participants = [attrs.asdict(one, recurse=False) for one in self.participants]
        events = [attrs.asdict(one, filter=lambda _, value: value != "") for one in self.events]
        with open(path, "w", encoding="utf-8") as file:  # `default`: sets of names as lists
            file.writelines(json.dumps(line, default=sorted) + "\n" for line in (head, *participants, *events))

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Trace:
        """Read what `save` wrote.

        Raises:
            ValueError: If the file holds no trace.
        """
        with open(path, encoding="utf-8") as file:
            try:
                head = json.loads(file.readline())
                if head["format"] != _FORMAT:
                    raise ValueError(f"format {head['format']!r}")
                trace = cls()
                trace.protocol = head["era"]
                trace.participants = [Participant(**json.loads(file.readline())) for _ in range(head["participants"])]
                trace.events = [Event(**json.loads(line)) for line in file]
            except (ValueError, TypeError, KeyError) as error:
                rule = f"the path of a trace in the format {_FORMAT} ({error})"
                action = "Pass a file that Trace.save wrote."
                raise ValueError(must_be("path", rule, str(path), "Trace.load", action)) from error
        return trace

    def _wanted(
        self, receiver: object, reading: ReceiverReading, further: frozenset[str], only: frozenset[str] | None
    ) -> list[tuple[HookSpec, Callable[..., Any]]]:
        """Return the hooks to record, each with the method that it calls."""
        kind = reading.kind
        known = {spec.name: spec for spec in self._catalogue.received_by(kind)}
        known |= {name: method.hook for name, method in reading.methods.items()}
        methods = {name: method for name, spec in known.items() if (method := _method(receiver, spec, kind))}
        for name in sorted((further | (only or frozenset())) - methods.keys()):
            rule = f"names of hooks that the {kind} {receiver_name(receiver)} has"
            raise ValueError(must_be("hooks", rule, name, "Trace.record", "Leave it out or define the method."))
        if only is None:
            events = {name for name, spec in known.items() if spec.kind == "event"}
            only = frozenset(events | {name for name in known if implementation(receiver, name)})
        wanted = {name for name in only | further if not self._without & {name, f"{kind}:{name}"}}
        return [(known[name], method) for name, method in methods.items() if name in wanted]

    def _free_name(self, receiver: object, name: str | None) -> str:
        taken = {participant.name for participant in self.participants}
        if name in taken:
            action = f"Choose another name for the {receiver_name(receiver)}."
            raise ValueError(must_be("name", "free in the trace", name, "Trace.record", action))
        base = name or receiver_name(receiver).rpartition(".")[2]
        numbered = (base if number == 1 else f"{base}#{number}" for number in range(1, len(taken) + 2))
        return next(candidate for candidate in numbered if candidate not in taken)

    def _wrapped(self, participant: Participant, spec: HookSpec, method: Callable[..., Any]) -> Callable[..., Any]:
        hook, receiver, kind = spec.name, participant.name, participant.kind
        names = positional_names(method, arguments_of(spec, kind), spec.optional)
        num_hidden = len(prefix_of(spec, kind))
        events = self.events

        @functools.wraps(method)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            shown = [*zip(names[num_hidden:], args[num_hidden:], strict=False), *kwargs.items()]
            summary = ", ".join([f"{name}={_summary(value)}" for name, value in shown])
            events.append(Event("enter", hook, receiver, kind, summary))
            try:
                result = method(*args, **kwargs)
            except BaseException as error:
                events.append(Event("exit", hook, receiver, kind, raised=type(error).__name__))
                raise
            events.append(Event("exit", hook, receiver, kind, result=_summary(result)))
            return result

        recorded.__recorded__ = method  # type: ignore[attr-defined]
        return recorded


def check_without(without: Collection[str], where: str, catalogue: Catalogue = CATALOGUE) -> None:
    """Raise ValueError unless each name is that of a hook, alone or behind a kind of receiver and a colon.

    Args:
        without: The names.
        where: The function that checks them, for the error.
        catalogue: The hooks.
    """
    for one in without:
        kind, _, name = one.rpartition(":")
        if name not in catalogue or (kind and kind not in tuple(Receiver)):
            rule = "names of hooks, such as 'on_exception', or 'module:on_exception' for one kind of receiver"
            raise ValueError(must_be("without", rule, one, where, "Leave it out."))


def _method(receiver: object, spec: HookSpec, kind: Receiver) -> Callable[..., Any] | None:
    """Return the method of a hook; for an event that a receiver does not even inherit, one that does nothing."""
    method = getattr(receiver, spec.name, None)
    if callable(method) or spec.kind != "event":
        return method if callable(method) and not getattr(method, "__not_a_hook__", False) else None

    def nothing(*args: Any, **kwargs: Any) -> None:
        """Receives the hook, and does nothing."""

    nothing.__name__ = nothing.__qualname__ = spec.name
    # a run that calls a hook which it knows binds its own arguments
    arguments = arguments_of(CATALOGUE.get(spec.name, spec), kind)
    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in arguments]
    nothing.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return nothing


def _summary(value: object) -> str:
    """Return a value in a few words, without reading a tensor."""
    if value is None or isinstance(value, bool | int | float | str):
        text = repr(value)
        return text if len(text) <= _SUMMARY_LENGTH else text[: _SUMMARY_LENGTH - 3] + "..."
    shape = getattr(type(value), "shape", None) and getattr(value, "shape", None)
    sizes = f"({', '.join(str(size) for size in shape)})" if isinstance(shape, tuple) else ""
    return f"{type(value).__name__}{sizes}"


@attrs.frozen
class Event:
    """One receiver's hook begins or ends. It keeps descriptions only, so that a trace keeps no tensor alive.

    Args:
        kind: "enter" or "exit".
        hook: The hook's name.
        receiver: The receiver's name within the trace.
        receiver_kind: What the receiver is.
        arguments: The arguments of an "enter" in short, without `trainer` and `module`.
        result: What an "exit" returned, in short; empty if it raised.
        raised: The class name of what an "exit" raised; empty if it returned.
    """

    kind: Literal["enter", "exit"]
    hook: str
    receiver: str
    receiver_kind: Receiver = attrs.field(converter=Receiver)
    arguments: str = ""
    result: str = ""
    raised: str = ""

    @property
    def label(self) -> str:
        """Kind and name of the receiver, joined by a colon."""
        return f"{self.receiver_kind}:{self.receiver}"

    def __str__(self) -> str:
        return f"{self.kind} {self.hook} {self.label}" + (f" raised {self.raised}" if self.raised else "")


def frozen_names(names: Iterable[str]) -> frozenset[str]:
    """Return a set of names, as a converter of attrs."""
    return frozenset(names)


@attrs.frozen
class Participant:
    """A receiver whose calls a trace records.

    Args:
        name: Its name within the trace.
        kind: What it is.
        hooks: The hooks that it implements.
        after_module: Those for which it runs after the module, if it is a callback.
        manual: Whether it is a module that optimizes by hand.
        version: What it was written for, by its reader; None for the catalogue's own protocol.
    """

    name: str
    kind: Receiver = attrs.field(converter=Receiver)
    hooks: frozenset[str] = attrs.field(converter=frozen_names)
    after_module: frozenset[str] = attrs.field(default=frozenset(), converter=frozen_names)
    manual: bool = False
    version: str | None = None

    @property
    def label(self) -> str:
        """Kind and name, joined by a colon."""
        return f"{self.kind}:{self.name}"

    def rank(self, hook: str) -> int:
        """Return its position among a hook's receivers: lower ones are called first."""
        return rank(self.kind, hook in self.after_module)

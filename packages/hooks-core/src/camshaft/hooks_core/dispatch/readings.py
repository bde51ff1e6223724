"""Readings of receivers: how their methods are called; see `resolve(read=...)`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

import attrs

from camshaft.hooks_core.catalogue import Catalogue
from camshaft.hooks_core.dispatch.binding import Argument
from camshaft.hooks_core.dispatch.faults import Fault
from camshaft.hooks_core.spec import HookSpec, Receiver


@attrs.frozen(kw_only=True)
class MethodReading:
    """A method that is called otherwise than the catalogue says.

    Attributes:
        hook: The hook that it is; it need not be in the catalogue.
        arguments: What it gets, under the names that hooks of the catalogue have for it.
        arguments_of_one_loader: What it gets in a stage with a single loader; None for the same.
        moments: The hooks of the catalogue with which it is called; empty for one that has a moment of its own.
        place: Its place among what is called with another hook: the lowest first, and negative ones before the hook.
        condition: When it is called with another hook, as an expression of that one's arguments; empty for always.
        fixed: Arguments that the hook's caller may leave out, with what they are then.
    """

    hook: HookSpec
    arguments: tuple[Argument, ...] = ()
    arguments_of_one_loader: tuple[Argument, ...] | None = None
    moments: tuple[str, ...] = ()
    place: int = 1
    condition: str = ""
    fixed: Mapping[str, Any] = attrs.field(factory=dict, hash=False)

    @property
    def name(self) -> str:
        """Name of the method, which is that of its hook."""
        return self.hook.name


@attrs.frozen
class ReceiverReading:
    """Reading of a receiver: how its methods are called. A reader may return an instance of a subclass that says more.

    Attributes:
        receiver: Its name.
        kind: What it is.
        methods: Its methods that are not called as the catalogue says, by name.
        of_today: Its methods that are, by name, each with its arguments. Others are bound by the catalogue.
        version: What it was written for; None for the catalogue's own protocol. Another receiver gets the index of a
            single loader, too, except in its steps.
        faults: What keeps it from running beside what `resolve` finds by itself.
        hooks: Hooks that its reader knows beside the catalogue's. They are attributes of the resolved hooks, too, and
            methods of these names are called only if they are in `methods`.
        names_are_own: Whether a method that looks like a hook and is none is a warning, and not a fault, because the
            receiver was written for something that leaves it alone.
    """

    names_are_own: ClassVar[bool] = False

    receiver: str
    kind: Receiver
    methods: Mapping[str, MethodReading] = attrs.field(factory=dict)
    of_today: Mapping[str, tuple[Argument, ...]] = attrs.field(factory=dict, repr=False)
    version: str | None = None
    faults: tuple[Fault, ...] = ()
    hooks: Mapping[str, HookSpec] = attrs.field(factory=dict, repr=False)

    @property
    def is_of_today(self) -> bool:
        """True if it was written for the catalogue's own protocol."""
        return self.version is None


ReadReceivers: TypeAlias = Callable[[Sequence[tuple[Receiver, object]], Catalogue], Sequence[ReceiverReading]]
"""Function that returns how the methods of receivers are called.

It gets all receivers of a run at once, each with its kind, in the order in which they are called, and the catalogue. It
returns a reading for each of them, in the same order, and calls none of their methods.
"""

"""Readings of receivers: how their methods are called; see `resolve(read=...)`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import attrs

from camshaft.hooks_core.catalogue import Catalogue
from camshaft.hooks_core.dispatch.binding import Argument
from camshaft.hooks_core.dispatch.faults import Fault
from camshaft.hooks_core.spec import Receiver


@attrs.frozen
class MethodReading:
    """A method that is called as an earlier era did.

    Attributes:
        name: Its name.
        era: The era whose arguments it gets.
        arguments: These, under the names that hooks of today have for them.
        moments: The hooks of today in whose moments it is called; empty for one that has a moment of its own.
    """

    name: str
    era: str
    arguments: tuple[Argument, ...]
    moments: tuple[str, ...] = ()


@attrs.frozen
class ReceiverReading:
    """Reading of a receiver: how its methods are called. A reader may return an instance of a subclass that says more.

    Attributes:
        receiver: Its name.
        kind: What it is.
        methods: Its methods that are not called as today, by name.
        of_today: Its methods that are called as today, by name, each with its arguments. Others are bound by the
            catalogue.
        version: The release or era that it was written for; None for one of today.
        faults: What keeps it from running beside what `resolve` finds by itself.
    """

    receiver: str
    kind: Receiver
    methods: Mapping[str, MethodReading] = attrs.field(factory=dict)
    of_today: Mapping[str, tuple[Argument, ...]] = attrs.field(factory=dict, repr=False)
    version: str | None = None
    faults: tuple[Fault, ...] = ()

    @property
    def is_of_today(self) -> bool:
        """True if it belongs to no earlier era."""
        return self.version is None


ReadReceivers: TypeAlias = Callable[[Sequence[tuple[Receiver, object]], Catalogue], Sequence[ReceiverReading]]
"""Function that returns how the methods of receivers are called.

It gets all receivers of a run at once, each with its kind, in the order in which they are called, and the catalogue. It
returns a reading for each of them, in the same order, and calls none of their methods.
"""

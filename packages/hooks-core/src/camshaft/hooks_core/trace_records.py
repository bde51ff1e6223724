"""What a trace is made of: calls that begin or end, and those whose calls they are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import attrs

from camshaft.hooks_core.spec import Receiver


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
        """The receiver with its kind, such as "callback:EarlyStopping"."""
        return f"{self.receiver_kind}:{self.receiver}"

    def __str__(self) -> str:
        return f"{self.kind} {self.hook} {self.label}" + (f" raised {self.raised}" if self.raised else "")


def _names(names: Iterable[str]) -> frozenset[str]:
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
        version: The version of an earlier era that it was written for; None for one of today, and in the trace of an
            era.
    """

    name: str
    kind: Receiver = attrs.field(converter=Receiver)
    hooks: frozenset[str] = attrs.field(converter=_names)
    after_module: frozenset[str] = attrs.field(default=frozenset(), converter=_names)
    manual: bool = False
    version: str | None = None

    @property
    def label(self) -> str:
        """The name with the kind, such as "callback:EarlyStopping"."""
        return f"{self.kind}:{self.name}"

    def rank(self, hook: str) -> int:
        """Where it stands among a hook's receivers: lower ones are called first."""
        if self.kind is Receiver.CALLBACK:
            return 3 if hook in self.after_module else 0
        return {Receiver.DATA: 1, Receiver.MODULE: 2, Receiver.STRATEGY: 4}[self.kind]

"""Unique names of the receivers of one run."""

from __future__ import annotations

from camshaft.hooks_core.dispatch.implementation import receiver_name


class ReceiverNames:
    """Unique names of receivers: the class's name, numbered from the second of a name on: "Watch", "Watch#2".

    It holds the receivers until it is cleared.
    """

    def __init__(self) -> None:
        self._named: list[tuple[object, str]] = []

    def name(self, receiver: object) -> str:
        """Return the receiver's name; always the same for the same object."""
        for known, name in self._named:
            if known is receiver:
                return name
        base = receiver_name(receiver).rpartition(".")[2]
        number = 1 + sum(name.partition("#")[0] == base for _, name in self._named)
        self._named.append((receiver, base if number == 1 else f"{base}#{number}"))
        return self._named[-1][1]

    def clear(self) -> None:
        """Forget the receivers; names begin anew."""
        self._named.clear()

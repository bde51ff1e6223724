"""Where a timeline finds time spent, and the exact sums of it."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import partial

import attrs

LOOP = "loop"
"""The kind of what is no receiver's: what the loop spends between the calls, and what it calls itself."""


class Tally:
    """The exact sums of one row."""

    __slots__ = ("max_ns", "num_calls", "self_ns", "total_ns")

    def __init__(self) -> None:
        self.num_calls = 0
        self.total_ns = 0
        self.self_ns = 0
        self.max_ns = 0

    def add(self, durations_ns: Sequence[int], enclosed_ns: int) -> None:
        """Count calls, which enclosed others for so long in all."""
        if not durations_ns:
            return
        total_ns = sum(durations_ns)
        self.num_calls += len(durations_ns)
        self.total_ns += total_ns
        self.self_ns += total_ns - enclosed_ns
        self.max_ns = max(self.max_ns, *durations_ns)

    def merge(self, other: Tally) -> None:
        """Add another's sums."""
        self.num_calls += other.num_calls
        self.total_ns += other.total_ns
        self.self_ns += other.self_ns
        self.max_ns = max(self.max_ns, other.max_ns)


@attrs.define(eq=False)
class Site:
    """Where time is spent: a hook of a receiver, or a span.

    Args:
        hook: The hook's or span's name.
        receiver: The receiver's name; empty for a span of the loop.
        kind: What the receiver is, or `LOOP`.

    Attributes:
        tally: Its sums.
        sanity_tally: Its sums in the sanity check, which calls the hooks of validation.
        durations_ns: Those of the newest calls, which are in neither of the two yet.
        enclosed_ns: How long these enclosed others.
    """

    hook: str
    receiver: str
    kind: str
    tally: Tally = attrs.field(factory=Tally, init=False)
    sanity_tally: Tally = attrs.field(factory=Tally, init=False)
    durations_ns: array[int] = attrs.field(factory=partial(array, "q"), init=False)
    enclosed_ns: int = attrs.field(default=0, init=False)

    def sum_up(self, *, is_sanity_check: bool) -> None:
        """Add the newest calls to the sums."""
        tally = self.sanity_tally if is_sanity_check else self.tally
        tally.add(self.durations_ns, self.enclosed_ns)
        del self.durations_ns[:]
        self.enclosed_ns = 0

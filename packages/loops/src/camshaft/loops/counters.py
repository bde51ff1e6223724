"""Counting batches, or epochs, by how far they got."""

from __future__ import annotations

import attrs


@attrs.define
class Counters:
    """How many there were.

    Attributes:
        ready: Those whose data was there.
        started: Those whose start hook had run.
        processed: Those that had been computed (and had updated the weights, where they do).
        completed: Those whose end hook had run.
    """

    ready: int = 0
    started: int = 0
    processed: int = 0
    completed: int = 0

    def reset(self) -> None:
        """Count from 0 again."""
        self.ready = self.started = self.processed = self.completed = 0

    def add(self, other: Counters) -> None:
        """Count what another one counted too."""
        self.ready += other.ready
        self.started += other.started
        self.processed += other.processed
        self.completed += other.completed

    def state_dict(self) -> dict[str, int]:
        """The counts by name."""
        return attrs.asdict(self)

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Take the counts back."""
        for name, count in state.items():
            setattr(self, name, int(count))

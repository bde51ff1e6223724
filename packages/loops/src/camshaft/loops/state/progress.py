"""How far training is."""

from __future__ import annotations

from typing import Any

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


@attrs.define(eq=False)
class FitProgress:
    """Counters of a fit. Every checkpoint holds them.

    Attributes:
        global_step: Number of optimizer updates so far, whatever the number of optimizers.
        epochs: The epochs so far.
        batches: The training batches of the current epoch; all 0 between epochs.
        earlier_batches: Those of the epochs before.
        elapsed_seconds: How long training had run when it was last saved or stopped.
        should_stop: Whether something asked training to stop; no part of the state.
    """

    global_step: int = 0
    epochs: Counters = attrs.field(factory=Counters)
    batches: Counters = attrs.field(factory=Counters)
    earlier_batches: Counters = attrs.field(factory=Counters)
    elapsed_seconds: float = 0.0
    should_stop: bool = attrs.field(default=False, init=False)

    @property
    def current_epoch(self) -> int:
        """Index of the epoch; after it has ended, of the next one."""
        return self.epochs.completed

    @property
    def total_batches(self) -> int:
        """Batches done in all epochs."""
        return self.earlier_batches.completed + self.batches.completed

    @property
    def is_inside_epoch(self) -> bool:
        """Whether an epoch has begun and is not over."""
        return self.batches.ready > 0

    def end_epoch(self) -> None:
        """Count the current epoch's batches among those of the epochs before."""
        self.earlier_batches.add(self.batches)
        self.batches.reset()

    def state_dict(self) -> dict[str, Any]:
        """The counters."""
        return {
            "current_epoch": self.current_epoch,
            "global_step": self.global_step,
            "epochs": self.epochs.state_dict(),
            "batches": self.batches.state_dict(),
            "earlier_batches": self.earlier_batches.state_dict(),
            "elapsed_seconds": self.elapsed_seconds,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the counters back."""
        self.global_step = int(state["global_step"])
        self.elapsed_seconds = float(state["elapsed_seconds"])
        for counters in ("epochs", "batches", "earlier_batches"):
            getattr(self, counters).load_state_dict(state[counters])

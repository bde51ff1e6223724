"""Progress of training: counters of epochs, batches and updates."""

from __future__ import annotations

from typing import Any

import attrs


@attrs.define
class Counters:
    """Counters of epochs or batches, by stage.

    Attributes:
        ready: Number whose data was there.
        started: Number whose start hook had run.
        processed: Number that was computed, updates included.
        completed: Number whose end hook had run.
    """

    ready: int = 0
    started: int = 0
    processed: int = 0
    completed: int = 0

    def reset(self) -> None:
        """Count from 0 again."""
        self.ready = self.started = self.processed = self.completed = 0

    def add(self, other: Counters) -> None:
        """Add the counts of another one."""
        for name, count in other.state_dict().items():
            setattr(self, name, getattr(self, name) + count)

    def state_dict(self) -> dict[str, int]:
        """Return the counts by name."""
        return attrs.asdict(self)

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Restore the counts."""
        for name, count in state.items():
            setattr(self, name, int(count))


_COUNTERS = ("epochs", "batches", "earlier_batches")


@attrs.define(eq=False)
class FitProgress:
    """Counters of a fit. Every checkpoint holds them.

    Attributes:
        global_step: Number of optimizer updates so far, whatever the number of optimizers.
        epochs: The epochs so far.
        batches: The training batches of the current epoch; all 0 between epochs.
        earlier_batches: The training batches of earlier epochs.
        elapsed_seconds: Time of training when it was last saved or stopped.
        should_stop: Whether training was asked to stop; no part of the state.
        last_batch_idx: Index of the last batch of the epoch before, -1 without one; no part of the state.
        logged_steps_ahead: Number by which the steps of logged values are ahead of `global_step`.
    """

    global_step: int = 0
    epochs: Counters = attrs.field(factory=Counters)
    batches: Counters = attrs.field(factory=Counters)
    earlier_batches: Counters = attrs.field(factory=Counters)
    elapsed_seconds: float = 0.0
    should_stop: bool = attrs.field(default=False, init=False)
    last_batch_idx: int = attrs.field(default=-1, init=False)
    logged_steps_ahead: int = attrs.field(default=0, init=False)

    @property
    def current_epoch(self) -> int:
        """Index of the epoch; after it has ended, of the next one. Set it for the next fit to begin there."""
        return self.epochs.completed

    @current_epoch.setter
    def current_epoch(self, value: int) -> None:
        self.epochs = Counters(value, value, value, value)

    @property
    def total_batches(self) -> int:
        """Batches done in all epochs."""
        return self.earlier_batches.completed + self.batches.completed

    @property
    def is_inside_epoch(self) -> bool:
        """True if an epoch has begun and is not over."""
        return self.batches.ready > 0

    def end_epoch(self) -> None:
        """Count the current epoch's batches among those of the epochs before."""
        self.last_batch_idx = self.batches.ready - 1
        self.earlier_batches.add(self.batches)
        self.batches.reset()

    def state_dict(self) -> dict[str, Any]:
        """Return the counters."""
        names = ("current_epoch", "global_step", "elapsed_seconds", "logged_steps_ahead")
        counters = {name: getattr(self, name).state_dict() for name in _COUNTERS}
        return {name: getattr(self, name) for name in names} | counters

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the counters."""
        self.global_step = int(state["global_step"])
        self.elapsed_seconds = float(state["elapsed_seconds"])
        self.logged_steps_ahead = int(state.get("logged_steps_ahead", 0))  # earlier checkpoints have none
        for counters in _COUNTERS:
            getattr(self, counters).load_state_dict(state[counters])

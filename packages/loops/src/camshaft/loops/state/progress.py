"""Progress of training: counters of epochs, batches and updates."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import attrs

from camshaft.hooks_core.known_attributes import check_attribute


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


@attrs.frozen
class BatchProgressView:
    """The counters of batches under the names of Lightning's progress, to be read.

    Args:
        _batches: Those of an epoch.
        _earlier: Those of the epochs before.
        is_last_batch: Whether the batch that runs is known to be its epoch's last.
    """

    _batches: Counters
    _earlier: Counters
    is_last_batch: bool = False

    @property
    def current(self) -> Counters:
        """Those of the epoch; for training all 0 between epochs."""
        return attrs.evolve(self._batches)

    @property
    def total(self) -> Counters:
        """Those of all epochs."""
        total = attrs.evolve(self._earlier)
        total.add(self._batches)
        return total


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
    """

    global_step: int = 0
    epochs: Counters = attrs.field(factory=Counters)
    batches: Counters = attrs.field(factory=Counters)
    earlier_batches: Counters = attrs.field(factory=Counters)
    elapsed_seconds: float = 0.0
    should_stop: bool = attrs.field(default=False, init=False)
    last_batch_idx: int = attrs.field(default=-1, init=False)

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
        """True if an epoch has begun and is not over."""
        return self.batches.ready > 0

    def end_epoch(self) -> None:
        """Count the current epoch's batches among those of the epochs before."""
        self.last_batch_idx = self.batches.ready - 1
        self.earlier_batches.add(self.batches)
        self.batches.reset()

    def state_dict(self) -> dict[str, Any]:
        """Return the counters."""
        return {
            "current_epoch": self.current_epoch,
            "global_step": self.global_step,
            "epochs": self.epochs.state_dict(),
            "batches": self.batches.state_dict(),
            "earlier_batches": self.earlier_batches.state_dict(),
            "elapsed_seconds": self.elapsed_seconds,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the counters."""
        self.global_step = int(state["global_step"])
        self.elapsed_seconds = float(state["elapsed_seconds"])
        for counters in ("epochs", "batches", "earlier_batches"):
            getattr(self, counters).load_state_dict(state[counters])


def _counter(name: str, doc: str, *, settable: bool = False) -> Any:
    """Return a property for a counter of epochs; setting one lets the next fit begin after so many whole epochs."""

    def set_(view: EpochProgressView, num_epochs: int) -> None:
        view._progress.epochs.load_state_dict(dict.fromkeys(Counters().state_dict(), num_epochs))

    return property(attrgetter(f"_progress.epochs.{name}"), set_ if settable else None, doc=doc)


class EpochProgressView:
    """The counters of a fit's epochs under the names of Lightning's progress.

    Args:
        progress: The progress of the fit.
    """

    def __init__(self, progress: FitProgress) -> None:
        self._progress = progress
        self._is_sealed = True

    def __setattr__(self, name: str, value: Any) -> None:
        check_attribute(self, name)
        object.__setattr__(self, name, value)

    ready: int = _counter("ready", "Epochs that were prepared.")
    started: int = _counter("started", "Epochs whose start hooks have run.")
    processed: int = _counter("processed", "Epochs whose batches have run.", settable=True)
    completed: int = _counter("completed", "Epochs that are over, their end hooks included.", settable=True)

    @property
    def current(self) -> EpochProgressView:
        """The counters themselves; the number of completed epochs can be set for the next fit."""
        return self

    total = current

    def reset(self) -> None:
        """Begin with the first epoch again; the number of updates stays."""
        self.completed = 0

    reset_on_run = reset_on_epoch = reset


@attrs.frozen
class UpdateProgressView:
    """The counters of a fit's updates, to be read: of an automatic or a manual optimization.

    Args:
        optimizer_steps: Number of updates, whatever the number of optimizers.
    """

    optimizer_steps: int

    @property
    def total(self) -> Counters:
        """Those of all epochs."""
        return Counters(*[self.optimizer_steps] * 4)

    @property
    def optim_progress(self) -> UpdateProgressView:
        """The counters themselves, as Lightning's automatic optimization names them; so is `optimizer.step`."""
        return self

    optimizer = step = optim_step_progress = optim_progress

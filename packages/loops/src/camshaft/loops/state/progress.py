"""Progress of training: counters of epochs, batches and updates."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import attrs

from camshaft.hooks_core.known_attributes import check_attribute
from camshaft.hooks_core.messages import must_be


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


class HeldCounters(Counters):
    """Counters of an epoch that runs, to be read.

    Raises:
        AttributeError: On setting a count to another value, which the epoch would not follow.
    """

    def __setattr__(self, name: str, value: int) -> None:
        if value != getattr(self, name, value):
            rule, action = f"{getattr(self, name)} while the epoch runs", "Limit the epoch by `limit_train_batches`."
            raise AttributeError(must_be(f"current.{name}", rule, value, "batch_progress", action))
        super().__setattr__(name, value)


def _in_all(name: str) -> Any:
    """Return a property for a count of all epochs; setting it changes that of the earlier ones."""

    def get(view: TotalView) -> int:
        count: int = getattr(view._earlier, name) + getattr(view._batches, name)
        return count

    def set_(view: TotalView, value: int) -> None:
        setattr(view._earlier, name, value - getattr(view._batches, name))

    return property(get, set_)


@attrs.define
class TotalView:
    """Counters of the batches of all epochs; a count that is set goes on from there.

    Args:
        _batches: Those of an epoch.
        _earlier: Those of the epochs before.
    """

    _batches: Counters
    _earlier: Counters
    ready = _in_all("ready")
    started = _in_all("started")
    processed = _in_all("processed")
    completed = _in_all("completed")

    def reset(self) -> None:
        """Count from 0 again."""
        self.ready = self.started = self.processed = self.completed = 0

    def state_dict(self) -> dict[str, int]:
        """Return the counts by name."""
        return {name: getattr(self, name) for name in attrs.fields_dict(Counters)}


@attrs.frozen
class BatchProgressView:
    """The counters of batches under the names of Lightning's progress.

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
        return HeldCounters(**self._batches.state_dict())

    @property
    def total(self) -> TotalView:
        """Those of all epochs."""
        return TotalView(self._batches, self._earlier)

    def reset(self) -> None:
        """Count from 0 again, between epochs."""
        self.current.reset()
        self.total.reset()


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
            "logged_steps_ahead": self.logged_steps_ahead,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the counters."""
        self.global_step = int(state["global_step"])
        self.elapsed_seconds = float(state["elapsed_seconds"])
        self.logged_steps_ahead = int(state.get("logged_steps_ahead", 0))  # earlier checkpoints have none
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


@attrs.define
class UpdateProgressView:
    """The counters of a fit's updates under the names of Lightning's automatic or manual optimization.

    Args:
        _progress: The progress of the fit.
        _counts: Whether this is the kind of optimization of the fit; else there are no updates to count.
    """

    _progress: FitProgress
    _counts: bool

    @property
    def completed(self) -> int:
        """Number of updates, whatever the number of optimizers; `global_step` goes on from a number that is set."""
        return self._progress.global_step if self._counts else 0

    @completed.setter
    def completed(self, num_updates: int) -> None:
        if self._counts:
            self._progress.global_step = num_updates

    ready = optimizer_steps = completed

    @property
    def total(self) -> UpdateProgressView:
        """The counters themselves: those of all epochs, of the only optimizer or of all."""
        return self

    optimizer = step = optim_progress = optim_step_progress = total

    def increment_completed(self) -> None:
        """Count an update."""
        self.completed += 1

    def increment_ready(self) -> None:
        """Do nothing: an update that is completed was ready."""

    def reset(self) -> None:
        """Count from 0 again."""
        self.completed = 0

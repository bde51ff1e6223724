"""The counters of loops under the names of Lightning's progress."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import attrs

from camshaft.hooks_core.support.messages import must_be
from camshaft.loops import Counters, FitProgress


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
        return int(getattr(view._earlier, name) + getattr(view._batches, name))

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
    ready, started, processed, completed = map(_in_all, attrs.fields_dict(Counters))

    def reset(self) -> None:
        """Count from 0 again."""
        self.ready = self.started = self.processed = self.completed = 0

    def state_dict(self) -> dict[str, int]:
        """Return the counts by name."""
        return {name: getattr(self, name) for name in attrs.fields_dict(Counters)}


@attrs.frozen
class BatchProgressView:
    """The counters of batches.

    Args:
        _batches: Those of an epoch.
        _earlier: Those of the epochs before.
        is_last_batch: Whether the batch that runs is known to be its epoch's last.
    """

    _batches: Counters
    _earlier: Counters
    is_last_batch: bool = False

    current = property(lambda view: HeldCounters(**view._batches.state_dict()))
    """Those of the epoch; for training all 0 between epochs."""
    total = property(lambda view: TotalView(view._batches, view._earlier))
    """Those of all epochs."""

    def reset(self) -> None:
        """Count from 0 again, between epochs."""
        self.current.reset()
        self.total.reset()


def _begin_at(view: EpochProgressView, num_epochs: int) -> None:
    view._progress.current_epoch = num_epochs


@attrs.define
class EpochProgressView:
    """The counters of a fit's epochs; setting those that are over lets the next fit begin after them.

    Args:
        _progress: The progress of the fit.
    """

    _progress: FitProgress
    ready = property(attrgetter("_progress.epochs.ready"))
    started = property(attrgetter("_progress.epochs.started"))
    processed = property(attrgetter("_progress.epochs.processed"), _begin_at)
    completed = property(attrgetter("_progress.epochs.completed"), _begin_at)

    current = total = property(lambda view: view)
    """The counters themselves."""

    def reset(self) -> None:
        """Begin with the first epoch again; the number of updates stays."""
        self._progress.current_epoch = 0

    reset_on_run = reset_on_epoch = reset


@attrs.define
class UpdateProgressView:
    """The counters of a fit's updates, of automatic or of manual optimization.

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

    total = optimizer = step = optim_progress = optim_step_progress = property(lambda view: view)
    """The counters themselves, those of all epochs, of the only optimizer or of all."""

    def increment_completed(self) -> None:
        """Count an update."""
        self.completed += 1

    def increment_ready(self) -> None:
        """Do nothing: an update that is completed was ready."""

    def reset(self) -> None:
        """Count from 0 again."""
        self.completed = 0

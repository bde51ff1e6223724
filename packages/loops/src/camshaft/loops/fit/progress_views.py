"""The counters of a fit under the names of Lightning's loops."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import attrs

from camshaft.hooks_core.known_attributes import check_attribute
from camshaft.loops.state.progress import Counters, FitProgress


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

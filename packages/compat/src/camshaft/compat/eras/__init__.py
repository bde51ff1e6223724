"""Receivers of earlier eras: which one each was written for, how its methods are called, and what runs them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from camshaft.compat.eras.reading import EraReading, conflicts, read_era, read_receivers
from camshaft.compat.eras.report import describe

if TYPE_CHECKING:
    from camshaft.loops import Run

__all__ = ["EraReading", "conflicts", "describe", "extend", "read_era", "read_receivers"]


def extend(run: Run) -> None:
    """Let a run, whose hooks are not resolved yet, call receivers of earlier eras as these were called then."""
    from camshaft.compat.eras.adapter import adapt  # it needs torch, which reading an era does not
    from camshaft.compat.eras.callback_states import ReturnedStates

    states = ReturnedStates(run)
    run.read = read_receivers
    run.call_wrappers.append(states)
    run.adapters += [states.attach, adapt]

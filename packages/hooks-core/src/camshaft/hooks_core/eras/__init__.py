"""Receivers of earlier eras: which era one belongs to, how its methods are called, and what that era did otherwise."""

from camshaft.hooks_core.eras.behaviour import TODAY, Behaviour, behaviour_of
from camshaft.hooks_core.eras.conflicts import Conflict, conflicts
from camshaft.hooks_core.eras.reading import EraReading, MethodReading, read_era
from camshaft.hooks_core.eras.report import describe

__all__ = [
    "TODAY",
    "Behaviour",
    "Conflict",
    "EraReading",
    "MethodReading",
    "behaviour_of",
    "conflicts",
    "describe",
    "read_era",
]

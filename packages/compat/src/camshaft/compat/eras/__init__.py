"""Receivers of earlier eras: which one each was written for, and what runs them as they were run then."""

from camshaft.compat.eras.adapter import adapt, extend
from camshaft.compat.eras.reading import EraReading, conflicts, read_era, read_receivers
from camshaft.compat.eras.releases import behaviour_in, release_of
from camshaft.compat.eras.report import describe

__all__ = [
    "EraReading",
    "adapt",
    "behaviour_in",
    "conflicts",
    "describe",
    "extend",
    "read_era",
    "read_receivers",
    "release_of",
]

"""Receivers of earlier eras: which one each was written for, and how its methods are called."""

from camshaft.compat.eras.reading import EraReading, conflicts, read_era, read_receivers
from camshaft.compat.eras.report import describe

__all__ = ["EraReading", "conflicts", "describe", "read_era", "read_receivers"]

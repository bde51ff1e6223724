"""Receivers of earlier eras: the release for which each was written, how its methods are called, and its runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from camshaft.compat.eras.reading import EraReading, conflicts, read_era, read_receivers
from camshaft.compat.eras.report import describe
from camshaft.hooks_core.support.on_demand import on_demand

if TYPE_CHECKING:
    from camshaft.compat.eras.adapter import extend
else:  # it needs torch, which reading an era does not
    __getattr__ = on_demand(__name__, {"extend": "adapter"})

__all__ = ["EraReading", "conflicts", "describe", "extend", "read_era", "read_receivers"]

"""The number formats that a model computes in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from camshaft.hooks_core.support.on_demand import on_demand
from camshaft.strategies.precision.formats import AutocastPrecision, Precision, TruePrecision, choose_precision

if TYPE_CHECKING:
    from camshaft.strategies.precision.gradient_scaling import ScaledPrecision
else:  # imported on first use
    __getattr__ = on_demand(__name__, {"ScaledPrecision": "gradient_scaling"})

__all__ = ["AutocastPrecision", "Precision", "ScaledPrecision", "TruePrecision", "choose_precision"]

"""How a module logs what it computes."""

from __future__ import annotations

from camshaft.loops.metrics import MetricLogging
from camshaft.trainer.attachment import Attached


class LogsMetrics(Attached, MetricLogging):
    """The part of a module that logs."""

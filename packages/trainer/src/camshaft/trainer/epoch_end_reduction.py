"""Reducing the values of a training epoch before callbacks that monitor them look."""

from __future__ import annotations

from typing import Any, ClassVar

from camshaft.hooks_core import Callback
from camshaft.loops.metrics.log import MetricLog


class EpochEndReduction(Callback):
    """Comes first among the callbacks that monitor, so that these see the values of all processes.

    A trainer of several processes has it. What the module logs in `on_train_epoch_end` is in these values.

    Args:
        metric_log: The trainer's.
    """

    monitors: ClassVar[bool] = True

    def __init__(self, metric_log: MetricLog) -> None:
        self._metric_log = metric_log

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        """Reduce them. Collective."""
        self._metric_log.reduce_epoch()

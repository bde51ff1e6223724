"""The metric log: values that modules and callbacks log, reduced over batches and processes, sent to loggers."""

from camshaft.loops.metrics.exchange import MetricMismatchError
from camshaft.loops.metrics.log import EpochEndReduction, MetricLog, MetricLogging, StandaloneLog
from camshaft.loops.metrics.reductions import ReduceFx, reduction_name
from camshaft.loops.metrics.sending import MetricWriter, Progress

__all__ = [
    "EpochEndReduction",
    "MetricLog",
    "MetricLogging",
    "MetricMismatchError",
    "MetricWriter",
    "Progress",
    "ReduceFx",
    "StandaloneLog",
    "reduction_name",
]

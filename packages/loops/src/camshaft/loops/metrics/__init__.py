"""The metric log: values that modules and callbacks log, reduced over batches and processes, sent to loggers."""

from camshaft.loops.metrics.epoch import MetricWriter, Progress
from camshaft.loops.metrics.exchange import MetricMismatchError
from camshaft.loops.metrics.log import EpochEndReduction, MetricLog, MetricLogging, StandaloneLog
from camshaft.loops.metrics.values import ReduceFx, reduction_name

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

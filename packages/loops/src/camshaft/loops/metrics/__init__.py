"""The metric log: values that modules and callbacks log, reduced over batches and processes, sent to loggers.

The way of a value, and the classes that it meets:

- `MetricLogging.log` of a module hands it to the `MetricLog` of the run (without one to a `StandaloneLog`).
- An `EpochLog` is one epoch of a stage. It has an `Entry` for each name, hook and loader, a `MetricEntry` where a
  torchmetrics metric is logged. An entry holds the `LogOptions` of its calls, the latest step's value, which
  `KeptTensors` keeps from changing, and a `Reduction` of the epoch's values. `MeasuredBatch` is their weight.
- An `EntryValue` is what readers (callbacks, loggers, progress bars) get of an entry: its value of a step or epoch.
- With several processes a `MetricExchange` sends `Record`s of entries, each with a `Part` of every value to be reduced.
- A `LoggerSender` decides when loggers (`MetricWriter`s) get values, and for which step of the run's `Progress`.
"""

from camshaft.loops.metrics.epoch import MetricWriter, Progress
from camshaft.loops.metrics.exchange import MetricMismatchError
from camshaft.loops.metrics.log import EpochEndReduction, MetricLog, MetricLogging, StandaloneLog, not_compiled
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
    "not_compiled",
    "reduction_name",
]

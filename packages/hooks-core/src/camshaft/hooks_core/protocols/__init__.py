"""What the packages expect of each other; whoever satisfies a protocol can take a part's place."""

from camshaft.hooks_core.protocols.logging import Logger, MetricSink, Moment
from camshaft.hooks_core.protocols.strategy import (
    Collectives,
    PendingSave,
    ReduceOp,
    Strategy,
)
from camshaft.hooks_core.protocols.trainer import TrainerProtocol

__all__ = [
    "Collectives",
    "Logger",
    "MetricSink",
    "Moment",
    "PendingSave",
    "ReduceOp",
    "Strategy",
    "TrainerProtocol",
]

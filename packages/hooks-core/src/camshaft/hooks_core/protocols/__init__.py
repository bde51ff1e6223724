"""What the packages expect of each other; whoever satisfies a protocol can take a part's place."""

from camshaft.hooks_core.protocols.logging import Logger, MetricSink, Moment
from camshaft.hooks_core.protocols.strategy import (
    Collectives,
    JoinProcesses,
    PendingSave,
    ReduceOp,
    Strategy,
    WrapReplica,
)
from camshaft.hooks_core.protocols.trainer import TrainerProtocol

__all__ = [
    "Collectives",
    "JoinProcesses",
    "Logger",
    "MetricSink",
    "Moment",
    "PendingSave",
    "ReduceOp",
    "Strategy",
    "TrainerProtocol",
    "WrapReplica",
]

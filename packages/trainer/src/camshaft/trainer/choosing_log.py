"""The metric log of a trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from camshaft.loops.metrics import EpochEndReduction, MetricLog

if TYPE_CHECKING:
    from camshaft.trainer.trainer import Trainer


def choose_metric_log(trainer: Trainer) -> MetricLog:
    """Make it; of several processes the trainer gets a callback, the first, that reduces the values of epochs."""
    metric_log = MetricLog(
        loggers=trainer.loggers,
        log_every_n_steps=trainer.log_every_n_steps,
        progress=trainer.fit_loop.progress,
        strategy=trainer.strategy,
    )
    if trainer.world_size > 1:
        trainer.callbacks.insert(0, EpochEndReduction(metric_log))
    return metric_log

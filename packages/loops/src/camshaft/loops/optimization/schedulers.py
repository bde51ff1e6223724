"""Stepping learning-rate schedulers."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextlib import suppress
from typing import Literal

from torch.optim.lr_scheduler import LRScheduler

from camshaft.hooks_core.support.messages import must_be, warn_user
from camshaft.loops.optimization.configuration import ConfiguredOptimizers, LRSchedulerConfig
from camshaft.loops.state.run import Run


class SchedulerSteps:
    """Steps the schedulers of a fit when their interval is over, unless the module does so by hand.

    Args:
        run: The run, for its hooks and its metrics.
        configured: The schedulers, and whether they are stepped here.

    Raises:
        TypeError: If the `step` of one takes other arguments than it will get, and no `lr_scheduler_step` passes them.
    """

    def __init__(self, run: Run, configured: ConfiguredOptimizers) -> None:
        self._run = run
        self._override = run.hooks.lr_scheduler_step
        self._passes_optimizer_idx = run.hooks.takes("lr_scheduler_step", "optimizer_idx")
        configs: Sequence[LRSchedulerConfig] = configured.schedulers if configured.steps_schedulers else ()
        if self._override is None:
            for config in configs:
                _check_step(config)
        self._configs = configs  # no copy: a callback may replace a scheduler, or add one that steps after epochs
        # so that the loop can skip the call where there is nothing to do
        of_steps = [config for config in configs if config.interval == "step"]
        self.after_update = any(config.monitor is None for config in of_steps)
        self.after_update_monitored = any(config.monitor is not None for config in of_steps)

    def step(
        self, interval: Literal["epoch", "step"], before: int, after: int, *, monitored: bool | None = None
    ) -> None:
        """Step the schedulers that are due, for each interval since; a split batch makes several updates.

        Hooks: lr_scheduler_step.

        Args:
            interval: Kind of the intervals that are over.
            before: Number of intervals that were over before.
            after: Number of intervals that are over in all.
            monitored: Whether to step those that monitor a value, or those that do not; None steps both.

        Raises:
            LookupError: If a strict scheduler monitors a value that was not logged.
        """
        for count in range(before + 1, after + 1):
            for config in self._configs:
                if config.interval != interval or monitored is (config.monitor is None) or count % config.frequency:
                    continue
                if config.monitor is None and self._override is None:
                    config.scheduler.step()
                else:
                    self._step(config)

    def _step(self, config: LRSchedulerConfig) -> None:
        metric, override = None, self._override
        if config.monitor is not None:
            metrics = {} if self._run.metrics is None else self._run.metrics.callback_metrics
            if config.monitor not in metrics:
                rule = f"a logged value ({', '.join(metrics) or 'nothing was logged'})"
                where = f"the configuration of {type(config.scheduler).__name__}"
                action = "Log it with `self.log`, or return 'strict': False to skip such steps."
                message = must_be("monitor", rule, config.monitor, where, action)
                if config.strict:
                    raise LookupError(message)
                warn_user(message)
                return
            metric = metrics[config.monitor]
        if override is None:
            config.scheduler.step(metric)
        elif self._passes_optimizer_idx:
            override(config.scheduler, metric, optimizer_idx=config.optimizer_idx)
        else:
            override(config.scheduler, metric)


def _check_step(config: LRSchedulerConfig) -> None:
    """Raise `TypeError` if a scheduler that is not torch's cannot be stepped with what it will get."""
    if isinstance(config.scheduler, LRScheduler):
        return
    with suppress(ValueError):  # a builtin without a signature
        signature = inspect.signature(config.scheduler.step)
        try:
            signature.bind(*([] if config.monitor is None else [None]))
        except TypeError as error:
            rule = "callable without arguments" if config.monitor is None else "callable with the monitored value"
            where, action = type(config.scheduler).__qualname__, "Override `lr_scheduler_step(scheduler, metric)`."
            raise TypeError(must_be("step", rule, f"step{signature}", where, action)) from error

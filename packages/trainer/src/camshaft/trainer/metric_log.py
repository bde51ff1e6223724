"""Collects what a module logs, and publishes it to callbacks, progress bars and loggers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from torch import Tensor

from camshaft.hooks_core.messages import must_be
from camshaft.hooks_core.protocols import Logger, Moment
from camshaft.trainer.metric_entry import Entry, MetricEntry, ReduceFx, resolve_options
from camshaft.trainer.metric_values import SeenBatch, Value, as_tensor, is_metric, to_floats
from camshaft.trainer.stage_log import StageLog


class Progress(Protocol):
    """Where training is, read when something is sent to loggers.

    Attributes:
        current_epoch: Index of the training epoch.
        global_step: Number of optimizer updates so far.
    """

    @property
    def current_epoch(self) -> int: ...

    @property
    def global_step(self) -> int: ...


class MetricLog:
    """The metric log of a run: what `TrainingModule.log` writes to and what loops tell where the run is.

    A logged tensor stays on its device. Nothing here waits for a device, except what sends values to loggers and what
    reads `progress_bar_metrics`; both take one transfer. Memory does not grow with the number of steps, unless a
    function of one's own reduces an epoch.

    Args:
        loggers: Where values are written; empty on every process but the one that writes.
        log_every_n_steps: Values of training steps are sent after every so many updates; 0 never sends them.
        progress: Where training is.
        world_size: Number of processes.

    Attributes:
        moment: See `MetricSink`, like the two others.
        batch: The batch that is worked on. The log replaces it by a `SeenBatch` when something is logged for it.
        dataloader_idx: Index of the loader that is worked on.
    """

    def __init__(
        self, *, loggers: Sequence[Logger], log_every_n_steps: int, progress: Progress, world_size: int = 1
    ) -> None:
        if log_every_n_steps < 0:
            action = "Pass 0 to send only the values of epochs."
            raise ValueError(must_be("log_every_n_steps", "0 or more", log_every_n_steps, "MetricLog", action))
        self.moment: Moment | None = None
        self.batch: Any = None
        self.dataloader_idx = 0
        self._loggers = loggers
        self._log_every_n_steps = log_every_n_steps
        self._progress = progress
        self._world_size = world_size
        self._next_send = math.inf  # in updates
        self._stages: dict[str, StageLog] = {}  # those whose epoch has begun and not ended
        self._current = StageLog("", 0, sends_steps=False)
        self._entries: dict[str, Entry] = {}  # by name alone, for the loader that logged last
        self._num_eval_steps: dict[tuple[str, int], int] = {}
        self._callback_metrics: dict[str, Tensor] = {}
        self._logged_metrics: dict[str, Tensor] = {}
        self._progress_bar_metrics: dict[str, float | int | str] = {}

    def log(
        self,
        name: str,
        value: Any,
        prog_bar: bool = False,
        logger: bool = True,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        reduce_fx: ReduceFx = "mean",
        batch_size: float | None = None,
        sync_dist: bool = False,
        add_dataloader_idx: bool = True,
    ) -> None:
        """Log a value; see `TrainingModule.log`. Does not wait for the value's device."""
        asked = (
            self.moment,
            self.dataloader_idx,
            prog_bar,
            logger,
            on_step,
            on_epoch,
            reduce_fx,
            sync_dist,
            add_dataloader_idx,
        )
        entry = self._entries.get(name)
        if entry is None or entry.asked != asked:
            entry = self._prepare_entry(name, value, asked)
        if entry.kept.borrows and type(value) is Tensor and not (value.ndim or value.is_inference() or value._version):
            kept: Value | None = value.detach()
        else:
            kept = entry.keep(value)
        if entry.reduction is not None and kept is not None:
            if batch_size is None:
                batch_size = 1
                if entry.needs_weight:
                    seen = self.batch
                    batch_size = (type(seen) is SeenBatch and seen.size) or self._see_batch().measure()
            entry.reduction.add(kept, batch_size)
        entry.step_value = kept
        if entry.sends_steps and kept is not None:
            self._see_batch()
            self._current.add_step_value(entry, kept)

    def _prepare_entry(self, name: str, value: Any, asked: tuple[Any, ...]) -> Entry:
        """The entry of a name for a call whose arguments are not those of the call before."""
        moment, dataloader_idx, prog_bar, logger, on_step, on_epoch, reduce_fx, sync_dist, add_dataloader_idx = asked
        options = resolve_options(
            name,
            self._current.stage,
            moment,
            prog_bar=prog_bar,
            logger=logger,
            on_step=on_step,
            on_epoch=on_epoch,
            reduce_fx=reduce_fx,
            sync_dist=sync_dist,
            add_dataloader_idx=add_dataloader_idx,
        )
        if sync_dist and self._world_size > 1:
            raise NotImplementedError(
                must_be(
                    "sync_dist",
                    f"False with several processes ({self._world_size})",
                    sync_dist,
                    f"log({name!r})",
                    "Averaging over processes is not there yet: log a torchmetrics metric, which does it itself.",
                )
            )
        entry = self._current.find(name, dataloader_idx if moment == "batch" else None)
        if entry is None:
            entry = self._current.add(name, value, options, dataloader_idx if moment == "batch" else None)
        entry.prepare(asked, options, moment)
        self._entries[name] = entry
        return entry

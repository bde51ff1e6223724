"""Keeps what a module logs while it has no metric log, as in a unit test."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from camshaft.trainer.log_options import ReduceFx, resolve_options
from camshaft.trainer.metric_entry import Entry
from camshaft.trainer.metric_values import Value, check_batch_size, check_number, is_metric


class StandaloneLog:
    """Takes the same calls as a `MetricLog`, checks them alike, and keeps the last value of each name."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}

    @property
    def logged_metrics(self) -> dict[str, Value]:
        """The last values: detached tensors where tensors were logged, else numbers.

        Of a metric, what it gave for its last batch, or what it computes if it was only updated.
        """
        return {name: value for name, entry in self._entries.items() if (value := entry.last_value) is not None}

    def log(
        self,
        name: str,
        value: Any,
        prog_bar: bool = False,
        logger: bool | None = True,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        reduce_fx: ReduceFx = "mean",
        batch_size: float | Tensor | None = None,
        sync_dist: bool | None = None,
        add_dataloader_idx: bool = True,
    ) -> None:
        """Keep a value. Does not wait for its device."""
        asked = (prog_bar, logger, on_step, on_epoch, reduce_fx, sync_dist, add_dataloader_idx)
        entry = self._entries.get(name)
        if entry is None or entry.asked != asked:
            options = resolve_options(
                name,
                "train",
                "batch",
                prog_bar=prog_bar,
                logger=logger,
                on_step=on_step,
                on_epoch=on_epoch,
                reduce_fx=reduce_fx,
                sync_dist=sync_dist,
                add_dataloader_idx=add_dataloader_idx,
            )
            entry = self._entries[name] = Entry(name, options, None)
            entry.asked = asked
        if batch_size is not None:
            check_batch_size(name, batch_size)
        if is_metric(value):
            of_batch = getattr(value, "_forward_cache", None)
            value = value.compute() if of_batch is None else of_batch
            value = value if isinstance(value, Tensor) else check_number(name, value)
        entry.step_value = entry.keep(value)

    def keep_graph(self, name: str, value: object) -> None:
        """Let the step's value that was just logged be differentiated; see `Entry.keep_graph`."""
        self._entries[name].keep_graph(value)

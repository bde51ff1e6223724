"""Logging from a module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from camshaft.loops.metrics.entry import ReduceFx, check_alone, check_metric_attribute
from camshaft.loops.metrics.stage_log import StandaloneLog
from camshaft.loops.metrics.values import Value, is_metric_collection
from camshaft.trainer.attachment import Attached


class LogsMetrics(Attached):
    """The part of a module that logs."""

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
        enable_graph: bool = False,
        metric_attribute: str | None = None,
        rank_zero_only: bool = False,
    ) -> None:
        """Log a value: to the step, to the epoch, or both (as `<name>_step` and `<name>_epoch`).

        Tensors stay on their device; this never waits for it. Callbacks read `trainer.callback_metrics`. Without a
        trainer the value is kept in `logged_metrics`.

        Args:
            name: Its name.
            value: A number, a tensor with one element, or a `torchmetrics.Metric`, which is reset when the epoch ends.
            prog_bar: Whether progress bars show it.
            logger: Whether loggers get it (None means true): of steps every `log_every_n_steps` updates, of epochs at
                their end.
            on_step: Whether to log it for the step; None means in hooks of a training batch only.
            on_epoch: Whether to reduce it over the epoch; None means everywhere but in hooks of a training batch.
            reduce_fx: How: "mean", "sum", "max", "min" (in any case), or a function of all values as a one-dimensional
                tensor, which are all kept for it. Leave it out for a metric.
            batch_size: Weight in the epoch's mean; None takes dimension 0 of the first tensor in the batch. A tensor
                with one element is read, which waits for its device.
            sync_dist: What several processes do. None reduces the epoch's value over all of them (a mean weighted by
                the sizes of all batches; a function of one's own gets the values of all), and leaves values of steps
                to each process: loggers get those of the first. True reduces values of steps as well, when they are
                sent to loggers (a mean then weighs all processes alike); log it at the same updates on all. False
                leaves the epoch's value to each process, too: callbacks that monitor it decide by the first one's.
                Until the epoch ends, whoever reads a value gets this process's own.
            add_dataloader_idx: Whether "/dataloader_idx_<n>" is added to the name where there are several loaders.
            enable_graph: Whether the step's value, as callbacks and the module read it until the next one is logged,
                can be differentiated; its graph stays in memory until then. An epoch's value never can.
            metric_attribute: The name of the module's attribute, such as "metrics.accuracy", that the value, a metric,
                is: nothing but a check, since metrics are found by themselves.
            rank_zero_only: Whether only the first process's call counts, and its value is reduced with nobody's.

        Raises:
            TypeError, ValueError: If the value cannot be logged, or the arguments contradict each other, the hook, or
                an earlier call for the name.
            RuntimeError: Where nothing can be logged, as in prediction.
            MetricMismatchError: When the epoch ends, on every process, if processes logged one name in different ways.
        """
        log = self._metric_log or self._log_alone()
        if rank_zero_only:
            check_alone(name, sync_dist)
            if self.global_rank != 0:
                return
            sync_dist = False
        if metric_attribute is not None:
            check_metric_attribute(self, metric_attribute, name, value)
        log.log(
            name,
            value,
            prog_bar,
            logger,
            on_step,
            on_epoch,
            reduce_fx,
            batch_size,
            sync_dist,
            add_dataloader_idx,
        )
        if enable_graph:
            log.keep_graph(name, value)

    def log_dict(
        self,
        dictionary: Mapping[str, Any],
        prog_bar: bool = False,
        logger: bool | None = True,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        reduce_fx: ReduceFx = "mean",
        batch_size: float | Tensor | None = None,
        sync_dist: bool | None = None,
        add_dataloader_idx: bool = True,
        enable_graph: bool = False,
        rank_zero_only: bool = False,
    ) -> None:
        """Log each value of a dictionary or `torchmetrics.MetricCollection`; see `log`."""
        items = dictionary.items()
        if is_metric_collection(dictionary):  # with its prefix, and without copying the states that metrics share
            items = dictionary.items(keep_base=False, copy_state=False)  # type: ignore[call-arg]
        for name, value in items:
            self.log(
                name,
                value,
                prog_bar,
                logger,
                on_step,
                on_epoch,
                reduce_fx,
                batch_size,
                sync_dist,
                add_dataloader_idx,
                enable_graph,
                None,
                rank_zero_only,
            )

    @property
    def logged_metrics(self) -> Mapping[str, Value]:
        """The last logged values by name, detached: without a trainer all of them, else those meant for loggers."""
        return (self._metric_log or self._log_alone()).logged_metrics

    def _log_alone(self) -> StandaloneLog:
        log = self.__dict__["_metric_log"] = StandaloneLog()
        return log

"""What a resumed fit needs beside weights, optimizers, progress and callbacks."""

from __future__ import annotations

import warnings
from typing import Any

from camshaft.hooks_core.user_warnings import warn_user
from camshaft.loops.batches import set_epoch
from camshaft.loops.fit_data import FitData
from camshaft.loops.metric_state import metric_states, restore_metric_states
from camshaft.loops.optimization_mode import OptimizationMode
from camshaft.loops.progress import FitProgress
from camshaft.loops.random_state import random_state, restore_random_state
from camshaft.loops.resume import gradients_of, restore_gradients
from camshaft.loops.run import Run


class FitState:
    """The position in the data, the accumulation window, metrics in flight and random numbers of a fit.

    Args:
        data: What it iterates over.
        mode: How its batches become updates; None while nothing is trained.
    """

    def __init__(self, data: FitData | None = None, mode: OptimizationMode | None = None) -> None:
        self._data = data
        self._mode = mode
        self._metrics: dict[str, Any] | None = None  # of an epoch that ended early, as they were before its end
        self._kept: dict[str, Any] | None = None

    def state_dict(self, run: Run) -> dict[str, Any]:
        """The state now, or when the fit ended.

        Returns:
            "fit" (the position in the data and how its loaders came about, the accumulation window with its gradients,
            metrics) and "rng".
        """
        if self._kept is not None:
            return self._kept
        data, mode = self._data, self._mode
        fit = dict(self._metrics if self._metrics is not None else _metrics_of(run))
        if data is not None and mode is not None:
            fit["loaders"] = data.origin
            fit["batches"] = data.batches.state_dict()
            fit["optimization"] = mode.state_dict()
            fit["gradients"] = gradients_of(run.module) if mode.keeps_gradients else {}
        return {"fit": fit, "rng": random_state(() if data is None else data.generators)}

    def keep_metrics(self, run: Run) -> None:
        """Remember the metrics in flight: the end of the epoch resets them, but it may go on in another run."""
        self._metrics = _metrics_of(run)

    def let_go(self, run: Run) -> None:
        """Keep the state that the fit ended with, but not its loaders with their worker processes."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of loaders without state: nobody has asked for a checkpoint yet
            self._kept = self.state_dict(run)
        self._data = self._mode = None

    def load_state_dict(self, run: Run, checkpoint: dict[str, Any], progress: FitProgress) -> None:
        """Go to the checkpoint's place in the data and in the accumulation window.

        Raises:
            ValueError: If a loader cannot go on there.
        """
        data, mode, fit = self._data, self._mode, checkpoint["fit"]
        if data is None or mode is None or "batches" not in fit:
            return
        batches = progress.batches
        if batches.ready != batches.completed:
            warn_user(
                f"The checkpoint was taken inside of batch {batches.ready - 1} of epoch {progress.current_epoch}, as "
                "after an error: that batch is left out, so the run differs from one that was not stopped."
            )
        set_epoch(data.loader, progress.current_epoch)
        data.batches.load_state_dict(fit["batches"], batches.ready)
        if progress.is_inside_epoch:
            mode.num_batches = data.num_batches
            mode.load_state_dict(fit["optimization"])
        else:
            mode.load_accumulation(fit["optimization"])
        restore_gradients(run, fit["gradients"])

    def stay(self, run: Run, checkpoint: dict[str, Any]) -> None:
        """Be what a checkpoint is after which there is nothing left to train."""
        if run.metrics is not None:
            run.metrics.start_epoch("train")
        self.restore_moment(run, checkpoint, is_inside_epoch=False)
        if run.metrics is not None:
            run.metrics.moment = None
        self._kept = {"fit": checkpoint["fit"], "rng": checkpoint["rng"]}

    def restore_moment(self, run: Run, checkpoint: dict[str, Any], *, is_inside_epoch: bool) -> None:
        """Take metrics and random numbers back, right before training goes on."""
        fit = checkpoint["fit"]
        if run.metrics is not None and fit["metrics"] is not None:
            run.metrics.load_state_dict(fit["metrics"])
            run.metrics.moment = "batch" if is_inside_epoch else "epoch"
        restore_metric_states(run.module, fit["metric_states"])
        restore_random_state(checkpoint["rng"], () if self._data is None else self._data.generators)


def _metrics_of(run: Run) -> dict[str, Any]:
    """Logged values, and the states of the module's metrics."""
    return {
        "metrics": None if run.metrics is None else run.metrics.state_dict(),
        "metric_states": metric_states(run.module),
    }

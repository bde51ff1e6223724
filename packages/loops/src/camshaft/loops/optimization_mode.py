"""How batches become updates: automatically, by the module's hand, or not at all."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Protocol

from torch.optim import Optimizer

from camshaft.hooks_core.messages import must_be
from camshaft.loops.automatic import AutomaticOptimization
from camshaft.loops.fit_limits import FitLimits
from camshaft.loops.manual import ManualOptimization, NoOptimization
from camshaft.loops.progress import FitProgress
from camshaft.loops.run import Run


class OptimizationMode(Protocol):
    """How a batch becomes an update.

    Attributes:
        holds_gradients: Whether gradients of earlier batches wait for the update that ends their window.
    """

    holds_gradients: bool

    def run_batch(self, batch: Any, batch_idx: int, is_last: bool) -> Any:
        """Run a batch. Returns what `training_step` returned."""

    def close(self) -> None:
        """Leave the optimizers as they were."""


def choose_mode(
    run: Run,
    optimizers: Sequence[Optimizer],
    progress: FitProgress,
    limits: FitLimits,
    *,
    num_batches: int | float,
    accumulate_grad_batches: int,
    gradient_clip_val: float | None,
    gradient_clip_algorithm: str,
) -> OptimizationMode:
    """Choose by the module's `automatic_optimization` and its optimizers.

    Raises:
        ValueError: If what was asked for contradicts the module's kind of optimization.
    """
    where = type(run.module).__qualname__
    if not optimizers:
        if limits.epoch_limit == float("inf"):
            rule = "set if there is no optimizer, since no update will ever be counted"
            raise ValueError(must_be("max_epochs", rule, limits.max_epochs, where, "Pass a number of epochs."))
        warnings.warn("`configure_optimizers` returned no optimizer: nothing will be updated.", stacklevel=2)
        return NoOptimization(run)
    if not getattr(run.module, "automatic_optimization", True):
        for name, value, neutral in (
            ("accumulate_grad_batches", accumulate_grad_batches, 1),
            ("gradient_clip_val", gradient_clip_val, None),
        ):
            if value != neutral:
                rule = f"{neutral} under manual optimization"
                raise ValueError(must_be(name, rule, value, where, "Do it in `training_step`."))
        return ManualOptimization(run, optimizers, progress)
    if len(optimizers) > 1:
        rule = "1 under automatic optimization"
        action = "Set `automatic_optimization = False` and step them in `training_step`."
        raise ValueError(must_be("number of optimizers", rule, len(optimizers), where, action))
    return AutomaticOptimization(
        run,
        optimizers[0],
        progress,
        num_batches=num_batches,
        accumulate_grad_batches=accumulate_grad_batches,
        gradient_clip_val=gradient_clip_val,
        gradient_clip_algorithm=gradient_clip_algorithm,
    )

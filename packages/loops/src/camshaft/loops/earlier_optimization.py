"""Optimization modes of modules whose era counts batches: `global_step` is one more after each that ends a window."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.optim import Optimizer

from camshaft.hooks_core.optimizer_step import replace_step
from camshaft.loops.automatic import AutomaticOptimization, TruncatedOptimization
from camshaft.loops.era_arguments import with_arguments
from camshaft.loops.manual import ManualOptimization
from camshaft.loops.per_optimizer import PerOptimizerOptimization
from camshaft.loops.progress import FitProgress
from camshaft.loops.run import Run


class BatchCount(AutomaticOptimization):
    """Counts one update for a batch, however many its splits make."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._of_fit, self._progress = self._progress, FitProgress()

    def run_batch(self, batch: Any, batch_idx: int, is_last: bool) -> Any:
        """As the mode's own."""
        num_before = self._progress.global_step
        outputs = super().run_batch(batch, batch_idx, is_last)
        if self._progress.global_step != num_before:
            self._of_fit.global_step += 1
        return outputs


class BatchCountedTruncatedOptimization(BatchCount, TruncatedOptimization):
    """`TruncatedOptimization` whose updates are counted by batches."""


class BatchCountedPerOptimizerOptimization(BatchCount, PerOptimizerOptimization):
    """`PerOptimizerOptimization` whose updates, and the optimizers' turns, are counted by batches.

    Where splits are accumulated, a window may lie in two batches: turns are then those of the windows, as ever.

    Args:
        turns_by_epoch: Whether turns begin anew with each epoch.
        arguments, keywords: Those of `PerOptimizerOptimization`.
    """

    def __init__(self, *arguments: Any, turns_by_epoch: bool, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._turns_by_epoch = turns_by_epoch
        self._all_turns = self._turns

    def run_batch(self, batch: Any, batch_idx: int, is_last: bool) -> Any:
        """As `PerOptimizerOptimization.run_batch`, with the turn of the batch."""
        turns = self._all_turns
        if self._split is None or not self._accumulates:
            num_earlier = self._of_fit.global_step
            if self._turns_by_epoch:
                num_earlier = batch_idx // self._window.length
            self._turns = [turns[num_earlier % len(turns)]]
        else:
            self._turns = turns
        return super().run_batch(batch, batch_idx, is_last)


class BatchCountedManualOptimization(ManualOptimization):
    """`ManualOptimization` that counts every batch, and gives `training_step` the first index if it asks for one.

    Args:
        run: The run.
        optimizers: The optimizers.
        arguments, keywords: The further ones of `ManualOptimization`.
        zeroes_after_step: Whether an optimizer's gradients are zeroed after each of its steps, and its step takes
            `make_optimizer_step`, which may leave it at the closure.
    """

    def __init__(
        self,
        run: Run,
        optimizers: list[Optimizer],
        *arguments: Any,
        zeroes_after_step: bool,
        **keywords: Any,
    ) -> None:
        super().__init__(run, optimizers, *arguments, **keywords)
        self._of_fit, self._progress = self._progress, FitProgress()
        self._training_step = with_arguments(run.hooks, "training_step", optimizer_idx=0)
        self._on_before_zero_grad = run.hooks.on_before_zero_grad
        if zeroes_after_step:
            self._step_hooks += [
                optimizer.register_step_post_hook(partial(self._zero, optimizer)) for optimizer in optimizers
            ]
        self._restore_steps = [replace_step(optimizer, _optional_step) for optimizer in optimizers if zeroes_after_step]

    def run_batch(self, batch: Any, batch_idx: int, is_last: bool) -> Any:
        """As `ManualOptimization.run_batch`. Hooks: also on_before_zero_grad, if gradients are zeroed after steps."""
        outputs = super().run_batch(batch, batch_idx, is_last)
        self._of_fit.global_step += 1
        return outputs

    def close(self) -> None:
        """Leave the optimizers as they were."""
        super().close()
        for restore in self._restore_steps:
            restore()

    def _zero(self, optimizer: Optimizer, *_: Any) -> None:
        self._on_before_zero_grad(optimizer)
        optimizer.zero_grad()


def _optional_step(original: Callable[..., Any]) -> Callable[..., Any]:
    """A step that takes `make_optimizer_step`, and does no more than call its closure where that is false."""

    def step(_: Optimizer, *args: Any, make_optimizer_step: bool | None = None, **kwargs: Any) -> Any:
        if make_optimizer_step is None or make_optimizer_step:
            return original(*args, **kwargs)
        closure = args[0] if args else kwargs.get("closure")
        if closure is None:
            return None
        with torch.enable_grad():
            return closure()

    return step

"""Manual optimization: the module differentiates and steps by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.optim import Optimizer

from camshaft.loops.progress import FitProgress
from camshaft.loops.run import Run


class ManualOptimization:
    """Runs `training_step`, and counts one update for each batch in which any optimizer stepped.

    Args:
        run: The run.
        optimizers: The optimizers that the module steps.
        progress: Counts the updates.
    """

    holds_gradients = False  # the module sees to its gradients by itself

    def __init__(self, run: Run, optimizers: Sequence[Optimizer], progress: FitProgress) -> None:
        self._hooks = run.hooks
        self._progress = progress
        self._stepped = False
        self._step_hooks = [optimizer.register_step_pre_hook(self._before_step) for optimizer in optimizers]

    def close(self) -> None:
        """Leave the optimizers as they were."""
        for step_hook in self._step_hooks:
            step_hook.remove()

    def run_batch(self, batch: Any, batch_idx: int, is_last: bool) -> Any:
        """Run the module's own optimization of a batch.

        Hooks: training_step; on_before_optimizer_step whenever the module steps an optimizer in it.

        Returns:
            What `training_step` returned.
        """
        self._stepped = False
        outputs = self._hooks.training_step(batch, batch_idx)  # type: ignore[misc]
        if self._stepped:
            self._progress.global_step += 1
        return outputs

    def _before_step(self, optimizer: Optimizer, arguments: Any, keywords: Any) -> None:
        self._stepped = True
        self._hooks.on_before_optimizer_step(optimizer)


class NoOptimization:
    """Runs `training_step` for its effects: `configure_optimizers` returned no optimizer.

    Args:
        run: The run.
    """

    holds_gradients = False

    def __init__(self, run: Run) -> None:
        self._hooks = run.hooks

    def close(self) -> None:
        """Nothing to leave."""

    def run_batch(self, batch: Any, batch_idx: int, is_last: bool) -> Any:
        """Run the step. Returns what it returned. Hooks: training_step."""
        return self._hooks.training_step(batch, batch_idx)  # type: ignore[misc]

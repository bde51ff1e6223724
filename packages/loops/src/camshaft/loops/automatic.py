"""Automatic optimization: the loop differentiates the loss and steps the optimizers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from camshaft.hooks_core.messages import must_be
from camshaft.loops.accumulation import AccumulationWindow
from camshaft.loops.optimizer_update import OptimizerUpdate
from camshaft.loops.progress import FitProgress


class AutomaticOptimization:
    """What automatic optimization remembers from batch to batch, whatever its optimizers and splits.

    Args:
        updates: The updates, one for each optimizer.
        window: The accumulation window that they share.
        progress: Counts the updates.

    Attributes:
        num_batches: Batches of the epoch that runs; infinite if unknown.
    """

    def __init__(self, updates: Sequence[OptimizerUpdate], window: AccumulationWindow, progress: FitProgress) -> None:
        self.num_batches: int | float = float("inf")
        self._updates = list(updates)
        self._window = window
        self._accumulates = window.length != 1
        self._progress = progress

    @property
    def holds_gradients(self) -> bool:
        """Whether gradients of earlier steps wait for the update that ends their window."""
        return any(update.holds_gradients for update in self._updates)

    @property
    def keeps_gradients(self) -> bool:
        """Whether gradients belong in a checkpoint: as long as they wait."""
        return self.holds_gradients

    def start_epoch(self) -> None:
        """Begin an epoch; gradients that an earlier one left waiting are dropped."""
        self._window.reset()
        for update in self._updates:
            update.drop()

    def close(self) -> None:
        """Leave the optimizers as they were."""
        for update in self._updates:
            update.close()

    def state_dict(self) -> dict[str, Any]:
        """The accumulation window, as plain values."""
        return {"window": self._window.state_dict(), "updates": [update.state_dict() for update in self._updates]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on inside an epoch.

        Raises:
            ValueError: If the state is not that of automatic optimization with as many optimizers, or was saved inside
                an accumulation window of another length.
        """
        if len(state.get("updates", ())) != len(self._updates):
            rule = f"that of automatic optimization with as many optimizers ({len(self._updates)})"
            action = "Optimize as when the checkpoint was saved, or fit without `ckpt_path`."
            raise ValueError(must_be("optimization", rule, state, "the checkpoint", action))
        self._window.load_state_dict(state["window"])
        for update, its_state in zip(self._updates, state["updates"], strict=True):
            update.load_state_dict(its_state)


class SingleOptimizerOptimization(AutomaticOptimization):
    """One optimizer, on whole batches."""

    def __init__(self, update: OptimizerUpdate, window: AccumulationWindow, progress: FitProgress) -> None:
        super().__init__([update], window, progress)
        self._update = update

    def run_batch(self, batch: Any, batch_idx: int, is_last: bool) -> Any:
        """Compute a batch's gradients, and update the weights if it ends an accumulation window. Collective.

        Hooks: those of `OptimizerUpdate`.

        Args:
            batch: The batch, on its device.
            batch_idx: Its index in the epoch.
            is_last: Whether it is known to be the epoch's last.

        Returns:
            What `training_step` returned.
        """
        window, update = self._window, self._update
        if self._accumulates:
            window.enter(1 if is_last else self.num_batches - batch_idx)
        outputs = update.run(batch, batch_idx, window.is_complete)
        if update.has_updated:
            self._progress.global_step += 1
        return outputs

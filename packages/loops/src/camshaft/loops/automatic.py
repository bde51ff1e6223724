"""Automatic optimization with one optimizer: the loop differentiates the loss and steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from camshaft.hooks_core.messages import must_be
from camshaft.hooks_core.protocols import MetricSink, Strategy
from camshaft.loops.accumulation import AccumulationWindow, check_accumulation
from camshaft.loops.optimizer_update import OptimizerUpdate
from camshaft.loops.progress import FitProgress
from camshaft.loops.step_outputs import next_hiddens, with_hiddens


class AutomaticOptimization:
    """What automatic optimization remembers from batch to batch, whatever its optimizers and splits.

    Args:
        updates: The updates, one for each optimizer.
        window: The accumulation window that they share.
        progress: Counts the updates.
        strategy: Is told which steps end a window of several.
        where: The module's class, for errors.

    Attributes:
        num_batches: Batches of the epoch that runs; infinite if unknown.
    """

    def __init__(
        self,
        updates: Sequence[OptimizerUpdate],
        window: AccumulationWindow,
        progress: FitProgress,
        strategy: Strategy,
        where: str,
    ) -> None:
        self.num_batches: int | float = float("inf")
        self._updates = list(updates)
        self._window = window
        self._accumulates = window.length != 1
        self._progress = progress
        self._set_gradient_sync = strategy.set_gradient_sync
        self._where = where

    @property
    def accumulate_grad_batches(self) -> int:
        """Steps of an accumulation window, from the next beginning of an epoch's steps on.

        Raises:
            ValueError: On setting what the optimizers cannot do.
        """
        return self._window.next_length

    @accumulate_grad_batches.setter
    def accumulate_grad_batches(self, length: int) -> None:
        check_accumulation(length, [update.optimizer for update in self._updates], self._where)
        self._window.next_length = length

    def set_clipping(self, gradient_clip_val: float | None, gradient_clip_algorithm: str) -> None:
        """Clip gradients otherwise from the next update on."""
        for update in self._updates:
            update.set_clipping(gradient_clip_val, gradient_clip_algorithm)

    @property
    def holds_gradients(self) -> bool:
        """Whether gradients of steps before wait for the update that ends their window."""
        return any(update.holds_gradients for update in self._updates)

    @property
    def keeps_gradients(self) -> bool:
        """Whether gradients belong in a checkpoint: as long as they wait."""
        return self.holds_gradients

    def start_epoch(self) -> None:
        """Begin an epoch; gradients that the one before left waiting are dropped."""
        if not self._window.is_complete:
            self._set_gradient_sync(True)  # the windows to come may be of one step, for which nothing is switched
        self._window.reset()
        for update in self._updates:
            update.drop()

    def begin_steps(self) -> None:
        """Begin the steps of an epoch, with the accumulation that is set now."""
        if self._window.length != self._window.next_length:
            self._window.begin_steps()
            self._follow_window()

    def run_batch(self, batch: Any, batch_idx: int, is_last: bool) -> Any:
        """Run a batch, as each mode does it."""
        raise NotImplementedError

    def enter_window(self, num_remaining: int | float) -> None:
        """Take the next step of the epoch into the accumulation window; `num_remaining` are left from it on."""
        self._window.enter(num_remaining)
        self._set_gradient_sync(self._window.is_complete)

    def close(self) -> None:
        """Leave the optimizers as they were."""
        for update in self._updates:
            update.close()
        if self._accumulates:
            self._set_gradient_sync(True)

    def _follow_window(self) -> None:
        """Adapt to the window's length, where that has changed."""
        self._accumulates = self._window.length != 1
        for update in self._updates:
            update.follow_window()

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
        self._follow_window()
        for update, its_state in zip(self._updates, state["updates"], strict=True):
            update.load_state_dict(its_state)

    def load_accumulation(self, state: dict[str, Any]) -> None:
        """Take back, between epochs, the accumulation that was set in the run that was saved.

        Raises:
            ValueError: If the optimizers cannot do it.
        """
        if "window" in state:
            self._window.load_next_length(state["window"])
            self.accumulate_grad_batches = self._window.next_length


class SingleOptimizerOptimization(AutomaticOptimization):
    """One optimizer, on whole batches."""

    def __init__(
        self, update: OptimizerUpdate, window: AccumulationWindow, progress: FitProgress, strategy: Strategy, where: str
    ) -> None:
        super().__init__([update], window, progress, strategy, where)
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
            self.enter_window(1 if is_last else self.num_batches - batch_idx)
        outputs = update.run(batch, batch_idx, window.is_complete)
        if update.has_updated:
            self._progress.global_step += 1
        return outputs


class TruncatedOptimization(AutomaticOptimization):
    """One optimizer, on batches that are split along time.

    A split is what a whole batch is elsewhere: accumulation windows, updates and `global_step` count splits. The hidden
    state goes from split to split, without its graph; it is None at a batch's start.

    Args:
        update: The optimizer's update.
        window: The accumulation window.
        progress: Counts the updates.
        strategy: Is told which steps end a window of several.
        split: Splits a batch along time.
        module: The module, for errors.
        metrics: Is told of each update within a batch; the loop that runs the batch tells it of the last.
    """

    def __init__(
        self,
        update: OptimizerUpdate,
        window: AccumulationWindow,
        progress: FitProgress,
        strategy: Strategy,
        *,
        split: Callable[[Any], Sequence[Any]],
        module: nn.Module,
        metrics: MetricSink | None,
    ) -> None:
        super().__init__([update], window, progress, strategy, type(module).__qualname__)
        self._update = update
        self._split = split
        self._module = module
        self._metrics = metrics

    def run_batch(self, batch: Any, batch_idx: int, is_last: bool) -> Any:
        """Compute a batch's gradients split by split, and update the weights wherever a window ends. Collective.

        Hooks: tbptt_split_batch; for each split those of `OptimizerUpdate`.

        Args:
            batch: The batch, on its device.
            batch_idx: Its index in the epoch.
            is_last: Whether it is known to be the epoch's last.

        Returns:
            What `training_step` returned for the last split, hidden state detached.
        """
        window, update, metrics = self._window, self._update, self._metrics
        splits = self._split(batch)
        num_remaining = len(splits) if is_last else float("inf")
        outputs = hiddens = None
        for split_idx, split in enumerate(splits):
            outputs = None  # lets go of the graph before the next one is built
            if split_idx and metrics is not None:
                metrics.end_train_batch(update.has_updated)
            if self._accumulates:
                self.enter_window(num_remaining)
                num_remaining -= 1
            update.hiddens = hiddens
            outputs = update.run(split, batch_idx, window.is_complete)
            hiddens = next_hiddens(outputs, hiddens, self._module)
            if update.has_updated:
                self._progress.global_step += 1
        return with_hiddens(outputs, hiddens)

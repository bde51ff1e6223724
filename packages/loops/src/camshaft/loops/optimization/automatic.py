"""Automatic optimization with one optimizer: the loop differentiates the loss and steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from camshaft.hooks_core.dispatch.implementation import implementation
from camshaft.hooks_core.messages import must_be
from camshaft.hooks_core.protocols import MetricSink, Strategy
from camshaft.hooks_core.transfer import split_along_time
from camshaft.loops.optimization.toggling import OptimizerToggle
from camshaft.loops.optimization.update import (
    AccumulationWindow,
    OptimizerUpdate,
    check_accumulation,
    next_hiddens,
    with_hiddens,
    without_graph,
)
from camshaft.loops.state.progress import FitProgress
from camshaft.loops.state.run import Run


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


class PerOptimizerOptimization(AutomaticOptimization):
    """Every optimizer that is due runs `training_step` and updates by itself, one after the other, split by split.

    While one is at work, only its parameters require gradients, as `toggle` has it. A split is what a whole
    batch is elsewhere: accumulation windows, updates and `global_step` count splits. Each optimizer carries its own
    hidden state from split to split, None at a batch's start: its pass over a sequence does not depend on what other
    optimizers returned.

    Args:
        updates: The updates, one for each optimizer, in their order.
        window: The accumulation window that they share.
        progress: Counts the updates.
        strategy: Is told which steps end a window of several.
        module: The module, for errors.
        toggle: Lets the parameters of the optimizer at work alone require gradients.
        frequencies: For how many windows running each optimizer is due, in turn and from each epoch's start; empty if
            all are due in every window.
        split: Splits a batch along time; None leaves batches whole.
        metrics: Is told of each update within a batch; the loop that runs the batch tells it of the last.
    """

    def __init__(
        self,
        updates: Sequence[OptimizerUpdate],
        window: AccumulationWindow,
        progress: FitProgress,
        strategy: Strategy,
        *,
        module: nn.Module,
        toggle: OptimizerToggle,
        frequencies: Sequence[int],
        split: Callable[[Any], Sequence[Any]] | None,
        metrics: MetricSink | None,
    ) -> None:
        super().__init__(updates, window, progress, strategy, type(module).__qualname__)
        self._metrics = metrics
        self._module = module
        self._split = split
        in_turn = zip(self._updates, frequencies, strict=True) if frequencies else ()
        self._turns = [[update] for update, frequency in in_turn for _ in range(frequency)] or [self._updates]
        self._toggle = toggle

    @property
    def keeps_gradients(self) -> bool:
        """True if gradients belong in a checkpoint: while they wait; always, where one optimizer's reach another's."""
        return self.holds_gradients or not self._toggle.isolates

    def run_batch(self, batch: Any, batch_idx: int, is_last: bool) -> Any:
        """Compute a batch's gradients, and update the weights wherever an accumulation window ends. Collective.

        Hooks: tbptt_split_batch; for each split and optimizer those of `OptimizerUpdate`.

        Args:
            batch: The batch, on its device.
            batch_idx: Its index in the epoch.
            is_last: Whether it is known to be the epoch's last.

        Returns:
            An item for each optimizer that had a loss in the last split, in their order: a dictionary with the loss and
            perhaps the hidden state, detached.
        """
        window, progress, split_batch, toggle = self._window, self._progress, self._split, self._toggle
        turns, metrics = self._turns, self._metrics
        splits = (batch,) if split_batch is None else split_batch(batch)
        for update in self._updates:
            update.hiddens = None
        num_remaining = self._num_remaining(len(splits), batch_idx, is_last)
        outputs: list[Any] = []
        is_update = False
        for split_idx, split in enumerate(splits):
            outputs.clear()  # lets go of the graphs before the next ones are built
            if split_idx and metrics is not None:
                metrics.end_train_batch(is_update)
            if self._accumulates:
                self.enter_window(num_remaining)
                num_remaining -= 1
            else:
                window.num_begun += 1  # a window of one step is always complete
            is_update = False
            for update in turns[(window.num_begun - 1) % len(turns)]:
                toggle.toggle(update.optimizer)
                try:
                    returned = update.run(split, batch_idx, window.is_complete)
                finally:
                    toggle.untoggle()
                is_update |= update.has_updated
                if split_batch is not None:
                    update.hiddens = next_hiddens(returned, update.hiddens, self._module)
                    returned = with_hiddens(returned, update.hiddens)
                if returned is not None:
                    outputs.append(without_graph(returned))
                returned = None
            if is_update:
                progress.global_step += 1
        return outputs

    def _num_remaining(self, num_splits: int, batch_idx: int, is_last: bool) -> int | float:
        """How many steps the epoch has from a batch's first on, as far as it is known."""
        if is_last:
            return num_splits
        return float("inf") if self._split is not None else self.num_batches - batch_idx


def split_size_of(run: Run, truncated_bptt_steps: int | None) -> int | None:
    """Time steps of a split, as the loop's argument or the module's attribute `truncated_bptt_steps` has it.

    Args:
        run: The run; an attribute of its module of None or 0 asks for nothing.
        truncated_bptt_steps: The loop's argument.

    Returns:
        The number, or None if batches stay whole.

    Raises:
        TypeError: If the attribute is neither an int nor None.
        ValueError: If the attribute is negative, or both are given and differ, or `training_step` does not name
            `hiddens` although batches are to be split.
    """
    module = run.module
    where = type(module).__qualname__
    of_module = getattr(module, "truncated_bptt_steps", None)
    if of_module is not None and (isinstance(of_module, bool) or not isinstance(of_module, int)):
        raise TypeError(must_be("truncated_bptt_steps", "an int or None", of_module, where, "Set an int."))
    if of_module is not None and of_module < 0:
        raise ValueError(must_be("truncated_bptt_steps", "at least 0", of_module, where, "Set 0 for no splits."))
    if of_module and truncated_bptt_steps is not None and of_module != truncated_bptt_steps:
        rule = f"that of the fit ({truncated_bptt_steps}) or not set"
        raise ValueError(must_be("truncated_bptt_steps", rule, of_module, where, "Leave one of the two out."))
    split_size = truncated_bptt_steps or of_module or None
    if split_size is not None and not run.hooks.takes("training_step", "hiddens"):
        step = implementation(module, "training_step")
        rule = f"one that names `hiddens`, since batches are split into {split_size} time steps each"
        action = "Take `hiddens` (None at a batch's start) and return it beside the loss, or do not split."
        raise ValueError(must_be("training_step", rule, step, where, action))
    return split_size


class BatchSplitter:
    """Splits batches along time, as the module's `tbptt_split_batch` does it or else by dimension 1 of every tensor.

    Args:
        run: The run.
        split_size: Time steps of a split.
    """

    def __init__(self, run: Run, split_size: int) -> None:
        self._override = run.hooks.tbptt_split_batch
        self._module = run.module
        self._split_size = split_size

    def __call__(self, batch: Any) -> Sequence[Any]:
        """Split a batch. Hooks: tbptt_split_batch.

        Raises:
            ValueError: If the batch cannot be split along time, or there is no split.
            TypeError: If the override returned something other than a list or tuple.
        """
        if self._override is None:
            return split_along_time(batch, self._split_size, "the default split of a batch")
        splits = self._override(batch, self._split_size)
        where = f"{type(self._module).__qualname__}.tbptt_split_batch"
        if not isinstance(splits, (list, tuple)):
            raise TypeError(must_be("return value", "a list of splits", splits, where, "Return a list."))
        if not splits:
            raise ValueError(must_be("return value", "at least one split", splits, where, "Return one or more."))
        return splits

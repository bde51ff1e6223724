"""Automatic optimization: the loop differentiates the loss and steps the optimizers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from camshaft.hooks_core.dispatch.implementation import implementation
from camshaft.hooks_core.support.messages import must_be
from camshaft.hooks_core.support.transfer import split_along_time
from camshaft.loops.optimization.settings import OptimizationSettings
from camshaft.loops.optimization.toggling import OptimizerToggle
from camshaft.loops.optimization.update import (
    OptimizerUpdate,
    UpdateContext,
    next_hiddens,
    with_hiddens,
    without_graph,
)
from camshaft.loops.optimization.window import check_accumulation
from camshaft.loops.state.of_ranks import OfRanks
from camshaft.loops.state.run import Run


class AutomaticOptimization:
    """The state of automatic optimization from batch to batch, for any number of optimizers and splits.

    Args:
        context: The parts that all updates share.
        updates: The updates, one for each optimizer, in their order.

    Attributes:
        num_batches: Batches of the epoch that runs; infinite if unknown.
        settings: The settings; accumulation counts from the next `begin_steps` on.
    """

    def __init__(self, context: UpdateContext, updates: Sequence[OptimizerUpdate]) -> None:
        self.num_batches: int | float = float("inf")
        self.settings, self._window, self._progress = context.settings, context.window, context.progress
        self._updates = list(updates)
        self._accumulates = context.window.length != 1
        self._module, self._metrics = context.run.module, context.run.metrics
        self._set_gradient_sync = context.run.strategy.set_gradient_sync
        self._where = context.where

    def follow(self, settings: OptimizationSettings) -> None:
        """Take other settings: clipping counts from the next update on, accumulation from the next `begin_steps` on.

        Raises:
            ValueError: If the optimizers cannot accumulate gradients.
        """
        check_accumulation(settings.accumulate_grad_batches, [one.optimizer for one in self._updates], self._where)
        self._window.next_length = settings.accumulate_grad_batches
        self.settings = settings
        for update in self._updates:
            update.preparation.follow(settings)

    @property
    def holds_gradients(self) -> bool:
        """True if gradients of earlier steps wait for the update that ends their window."""
        return any(update.holds_gradients for update in self._updates)

    @property
    def has_differentiated(self) -> bool:
        """True if there was any loss so far."""
        return any(update.preparation.average.is_weighted is not None for update in self._updates)

    @property
    def keeps_gradients(self) -> bool:
        """True if gradients belong in a checkpoint, as long as they wait."""
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
        """Run a batch; each subclass implements it.

        Args:
            batch: The batch, on its device.
            batch_idx: Its index in the epoch.
            is_last: Whether it is known to be the epoch's last.

        Returns:
            The outputs of `training_step`.
        """
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
            update.preparation.follow(self.settings)

    def _follow_loaded_window(self) -> None:
        """Take the accumulation that the window restored into the settings."""
        self.follow(attrs.evolve(self.settings, accumulate_grad_batches=self._window.next_length))

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the accumulation window, as plain values."""
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
        self._follow_loaded_window()
        for update, its_state in zip(self._updates, state["updates"], strict=True):
            update.load_state_dict(its_state)
        self._follow_window()

    def reweigh_window(self, ratio: float) -> float:
        """Weigh the steps so far of an open window; see `AccumulationWindow.reweigh`.

        Those of weighted losses count by their weights, whatever the ratio.

        Raises:
            ValueError: If only some of several optimizers have weighted losses.
        """
        factor = self._window.reweigh(ratio)
        if self._window.is_complete:
            return factor
        averages = [update.preparation.average for update in self._updates]
        factors = {one.ratio if one.is_weighted else factor for one in averages}
        if len(factors) > 1:
            rule = "those of the checkpoint inside an accumulation window of which some losses are weighted"
            action = "Use as many, or resume from the end of a window."
            raise ValueError(must_be("processes", rule, self._where, "fit", action))
        return factors.pop()

    def load_accumulation(self, state: dict[str, Any]) -> None:
        """Restore, between epochs, the accumulation that was set during the saved run.

        Raises:
            ValueError: If the optimizers cannot do it.
        """
        if "window" in state:
            self._window.load_next_length(state["window"])
            self._follow_loaded_window()
            for update, its_state in zip(self._updates, state["updates"], strict=False):
                update.preparation.average.load_state_dict(its_state.get("weights", {}), is_inside=False)


class SingleOptimizerOptimization(AutomaticOptimization):
    """Optimization of whole batches by one optimizer."""

    def run_batch(self, batch: Any, batch_idx: int, is_last: bool) -> Any:
        """Compute a batch's gradients, and update the weights if it ends an accumulation window. Collective.

        Hooks: those of `OptimizerUpdate`.

        Args:
            batch: The batch, on its device.
            batch_idx: Its index in the epoch.
            is_last: Whether it is known to be the epoch's last.

        Returns:
            The outputs of `training_step`.
        """
        window, update = self._window, self._updates[0]
        if self._accumulates:
            self.enter_window(1 if is_last else self.num_batches - batch_idx)
        outputs = update.run(batch, batch_idx, window.is_complete)
        if update.has_updated:
            self._progress.global_step += 1
        return outputs


class PerOptimizerOptimization(AutomaticOptimization):
    """Optimization by several optimizers, or of batches that are split along time.

    Each optimizer that is due runs `training_step` and updates, one after the other. While one is at work, only its
    parameters require gradients, as `toggle` has it. If batches are split along time, a split takes the place of a
    batch: accumulation windows, updates and `global_step` count splits. Each optimizer carries its own hidden state
    from split to split, without its graph; it is None at a batch's start.

    With frequencies, each optimizer is due for that many windows running, in turn and from each epoch's start; else all
    are due in every window.

    Args:
        context: The parts that all updates share.
        updates: The updates, one for each optimizer, in their order.
        toggle: Lets the parameters of the optimizer at work alone require gradients; None for a single optimizer.
    """

    def __init__(
        self, context: UpdateContext, updates: Sequence[OptimizerUpdate], *, toggle: OptimizerToggle | None
    ) -> None:
        super().__init__(context, updates)
        self._split = context.split
        self._toggle = toggle
        frequencies = context.configured.frequencies
        in_turn = zip(self._updates, frequencies, strict=True) if frequencies else ()
        self._turns = [[update] for update, frequency in in_turn for _ in range(frequency)] or [self._updates]

    @property
    def keeps_gradients(self) -> bool:
        """True if gradients belong in a checkpoint, while they wait, or always where one's reach another's."""
        return self.holds_gradients or (self._toggle is not None and not self._toggle.isolates)

    def run_batch(self, batch: Any, batch_idx: int, is_last: bool) -> Any:
        """Compute a batch's gradients, and update the weights wherever an accumulation window ends. Collective.

        Hooks: tbptt_split_batch; for each split and optimizer those of `OptimizerUpdate`.

        Args:
            batch: The batch, on its device.
            batch_idx: Its index in the epoch.
            is_last: Whether it is known to be the epoch's last.

        Returns:
            An item for each optimizer that had a loss in the last split, in their order; of a single optimizer the item
            itself, or None. It is a dictionary with the loss and perhaps the hidden state, detached.
        """
        window, progress, split_batch, toggle = self._window, self._progress, self._split, self._toggle
        turns, metrics = self._turns, self._metrics
        splits = (batch,) if split_batch is None else split_batch(batch)
        for update in self._updates:
            update.hiddens = None
        num_remaining = float("inf") if split_batch is not None else self.num_batches - batch_idx  # steps of the epoch
        if is_last:
            num_remaining = len(splits)
        outputs: list[Any] = []
        is_update = False
        for split_idx, split in enumerate(splits):
            outputs.clear()  # frees the graphs before the next ones are built
            if split_idx and metrics is not None:
                metrics.end_train_batch(is_update)
            if self._accumulates:
                self.enter_window(num_remaining)
                num_remaining -= 1
            else:
                window.num_begun += 1  # a window of one step is always complete
            is_update = False
            for update in turns[(window.num_begun - 1) % len(turns)]:
                if toggle is not None:
                    toggle.toggle(update.optimizer)
                try:
                    returned = update.run(split, batch_idx, window.is_complete)
                finally:
                    if toggle is not None:
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
        if toggle is None:
            return outputs[0] if outputs else None
        return outputs


def batch_splitter(run: Run, settings: OptimizationSettings) -> Callable[[Any], Sequence[Any]] | None:
    """Return the function that splits batches along time, or None if they stay whole.

    It splits as the module's `tbptt_split_batch` does or else by dimension 1 of every tensor. The time steps of a split
    are `truncated_bptt_steps` of the settings or of the module, where None and 0 ask for nothing.

    Raises:
        TypeError: If the module's attribute is neither an int nor None; on splitting, if `tbptt_split_batch` returned
            something other than a list or tuple.
        ValueError: If the attribute is negative, or both are given and differ, or `training_step` does not name
            `hiddens` although batches are to be split; on splitting, if a batch cannot be split along time, or there is
            no split.
    """
    module, asked, override = run.module, settings.truncated_bptt_steps, run.hooks.tbptt_split_batch
    name, where = "truncated_bptt_steps", type(module).__qualname__
    of_module = getattr(module, name, None)
    if of_module is not None and (isinstance(of_module, bool) or not isinstance(of_module, int)):
        raise TypeError(must_be(name, "an int or None", of_module, where, "Set an int."))
    if of_module is not None and of_module < 0:
        raise ValueError(must_be(name, "at least 0", of_module, where, "Set 0 for no splits."))
    if of_module and asked is not None and of_module != asked:
        raise ValueError(must_be(name, f"that of the fit ({asked}) or not set", of_module, where, "Leave one out."))
    split_size = asked or of_module or None
    if split_size is None:
        return None
    if not run.hooks.takes("training_step", "hiddens"):
        step, action = implementation(module, "training_step"), "Take `hiddens` and return it beside the loss."
        rule = f"one that names `hiddens`, since batches are split into {split_size} time steps each"
        raise ValueError(must_be("training_step", rule, step, where, action))

    def split(batch: Any) -> Sequence[Any]:
        if type(batch) is OfRanks:
            return run.logical.split(split, batch, where)  # type: ignore[union-attr]
        if override is None:
            return split_along_time(batch, split_size, "the default split of a batch")
        splits = override(batch, split_size)
        if not isinstance(splits, (list, tuple)) or not splits:
            kind = ValueError if isinstance(splits, (list, tuple)) else TypeError
            rule, action = "a list of at least one split", "Return a list."
            raise kind(must_be("return value", rule, splits, f"{where}.tbptt_split_batch", action))
        return splits

    return split

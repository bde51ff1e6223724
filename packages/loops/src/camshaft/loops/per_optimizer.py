"""Automatic optimization with several optimizers, each in its turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from camshaft.hooks_core.protocols import MetricSink, Strategy
from camshaft.loops.accumulation import AccumulationWindow
from camshaft.loops.automatic import AutomaticOptimization
from camshaft.loops.optimizer_update import OptimizerUpdate
from camshaft.loops.progress import FitProgress
from camshaft.loops.step_outputs import next_hiddens, with_hiddens, without_graph
from camshaft.loops.toggling import OptimizerToggle


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

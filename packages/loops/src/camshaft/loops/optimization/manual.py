"""Manual optimization: the module differentiates and steps by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch.optim import Optimizer

from camshaft.hooks_core.messages import must_be
from camshaft.loops.optimization.update import next_hiddens, with_arguments, with_hiddens
from camshaft.loops.state.progress import FitProgress
from camshaft.loops.state.run import Run


class ManualOptimization:
    """Runs `training_step`, and counts one update for each batch or split in which any optimizer stepped.

    Args:
        run: The run.
        optimizers: The optimizers that the module steps; none if it is run for its effects alone.
        progress: Counts the updates.
        split: Splits a batch along time; None leaves batches whole.
        accumulate_grad_batches: What the fit was given; without optimizers it makes no difference.

    Attributes:
        num_batches: Batches of the epoch that runs; makes no difference here.
        holds_gradients: False: the module sees to its gradients by itself.
        keeps_gradients: True: whether it still needs its gradients after a batch, nobody else knows.
    """

    holds_gradients = False
    keeps_gradients = True

    def __init__(
        self,
        run: Run,
        optimizers: Sequence[Optimizer],
        progress: FitProgress,
        *,
        split: Callable[[Any], Sequence[Any]] | None = None,
        accumulate_grad_batches: int = 1,
    ) -> None:
        self.num_batches: int | float = float("inf")
        self._training_step: Any = run.hooks.training_step
        self._module = run.module
        self._metrics = run.metrics
        self._progress = progress
        self._split = split
        self._accumulate_grad_batches = accumulate_grad_batches
        self._stepped = False
        self._step_hooks = []
        for optimizer_idx, optimizer in enumerate(optimizers):
            announce = with_arguments(run.hooks, "on_before_optimizer_step", optimizer_idx=optimizer_idx)
            self._step_hooks.append(optimizer.register_step_pre_hook(partial(self._before_step, announce)))

    @property
    def accumulate_grad_batches(self) -> int:
        """What was given or set; 1 where there are optimizers.

        Raises:
            ValueError: On setting another one where there are: the module accumulates by itself.
        """
        return self._accumulate_grad_batches

    @accumulate_grad_batches.setter
    def accumulate_grad_batches(self, num_batches: int) -> None:
        if num_batches != 1 and self._step_hooks:
            rule, where = "1 under manual optimization", type(self._module).__qualname__
            action = "Do it in `training_step`."
            raise ValueError(must_be("accumulate_grad_batches", rule, num_batches, where, action))
        self._accumulate_grad_batches = num_batches

    def set_clipping(self, gradient_clip_val: float | None, gradient_clip_algorithm: str) -> None:
        """Refuse to clip with `ValueError`: the module does it by itself."""
        if gradient_clip_val is not None and self._step_hooks:
            rule, where = "None under manual optimization", type(self._module).__qualname__
            action = "Call `clip_gradients` in `training_step`."
            raise ValueError(must_be("gradient_clip_val", rule, gradient_clip_val, where, action))

    def run_batch(self, batch: Any, batch_idx: int, is_last: bool) -> Any:
        """Run the module's own optimization of a batch, split by split if it is split along time.

        Hooks: tbptt_split_batch, training_step; on_before_optimizer_step whenever the module steps an optimizer in it.

        Returns:
            What `training_step` returned, for the last split and with its hidden state detached if the batch is split.
        """
        if self._split is None:
            self._stepped = False
            outputs = self._training_step(batch, batch_idx)
            if self._stepped:
                self._progress.global_step += 1
            return outputs
        hiddens = outputs = None
        for split_idx, split in enumerate(self._split(batch)):
            outputs = None  # lets go of the graph before the next one is built
            if split_idx and self._metrics is not None:
                self._metrics.end_train_batch(self._stepped)  # the last split is told of with its batch
            self._stepped = False
            outputs = self._training_step(split, batch_idx, hiddens=hiddens)
            hiddens = next_hiddens(outputs, hiddens, self._module)
            if self._stepped:
                self._progress.global_step += 1
        return with_hiddens(outputs, hiddens)

    def start_epoch(self) -> None:
        """Nothing is left from the epoch before."""

    def begin_steps(self) -> None:
        """Nothing depends on what an epoch's start has set."""

    def state_dict(self) -> dict[str, Any]:
        """Nothing is remembered from batch to batch."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on inside an epoch.

        Raises:
            ValueError: If the state is not that of manual optimization.
        """
        if state:
            action = "Optimize as when the checkpoint was saved, or fit without `ckpt_path`."
            raise ValueError(must_be("optimization", "that of manual optimization", state, "the checkpoint", action))

    def load_accumulation(self, state: dict[str, Any]) -> None:
        """Nothing is accumulated here."""

    def close(self) -> None:
        """Leave the optimizers as they were."""
        for step_hook in self._step_hooks:
            step_hook.remove()

    def _before_step(self, announce: Any, optimizer: Optimizer, arguments: Any, keywords: Any) -> None:
        self._stepped = True
        announce(optimizer)

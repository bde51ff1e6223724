"""Automatic optimization: the loop differentiates the loss and steps the optimizer."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from camshaft.hooks_core.dispatch import nobody
from camshaft.hooks_core.messages import must_be
from camshaft.loops.optimizers import needs_closure
from camshaft.loops.progress import FitProgress
from camshaft.loops.run import Run


class AutomaticOptimization:
    """One optimizer, one update per accumulation window.

    The gradients of a window are zeroed after its first `training_step` and before its first backward. Each loss is
    divided by the window's length, so that an update follows the mean; a window that the epoch's end cuts short is
    averaged over its real length.

    Args:
        run: The run.
        optimizer: The optimizer.
        progress: Counts the updates.
        num_batches: Batches of an epoch; infinite if unknown.
        accumulate_grad_batches: Batches of a window.
        gradient_clip_val: The largest norm or absolute value of the gradients; None clips nothing.
        gradient_clip_algorithm: "norm" or "value".
    """

    def __init__(
        self,
        run: Run,
        optimizer: Optimizer,
        progress: FitProgress,
        *,
        num_batches: float,
        accumulate_grad_batches: int,
        gradient_clip_val: float | None,
        gradient_clip_algorithm: str,
    ) -> None:
        self._run = run
        self._hooks = run.hooks
        self._strategy = run.strategy
        self._optimizer = optimizer
        self._progress = progress
        self._num_batches = num_batches
        self._window = accumulate_grad_batches
        self._clip_val = gradient_clip_val
        self._clip_algorithm = gradient_clip_algorithm
        self._backward = run.hooks.backward or run.strategy.backward
        self._has_work_before_update = (
            accumulate_grad_batches != 1
            or gradient_clip_val is not None
            or run.hooks.configure_gradient_clipping is not None
            or run.hooks.on_before_optimizer_step is not nobody
        )
        self._with_closure = run.hooks.optimizer_step is not None or needs_closure(optimizer)
        self._zeroed = False
        self.holds_gradients = False
        self._divisor: float = accumulate_grad_batches
        self._loss: Tensor | None = None
        self._stepped = False
        self._step_hook: Any = None
        if needs_closure(optimizer) and accumulate_grad_batches != 1:
            rule = f"1 with {type(optimizer).__name__}, which evaluates the loss several times per update"
            raise ValueError(
                must_be("accumulate_grad_batches", rule, accumulate_grad_batches, "fit", "Use another optimizer, or 1.")
            )
        if self._with_closure:
            self._step_hook = optimizer.register_step_post_hook(self._count_step)

    def close(self) -> None:
        """Leave the optimizer as it was."""
        if self._step_hook is not None:
            self._step_hook.remove()

    def run_batch(self, batch: Any, batch_idx: int, is_last: bool) -> Any:
        """Compute a batch's gradients, and update the weights if it ends an accumulation window. Collective.

        Hooks: training_step, on_before_zero_grad, optimizer_zero_grad, on_before_backward, backward,
        on_after_backward, on_before_optimizer_step, configure_gradient_clipping; around all of these, at a window's
        end, optimizer_step if it is overridden.

        Args:
            batch: The batch, on its device.
            batch_idx: Its index in the epoch.
            is_last: Whether it is known to be the epoch's last.

        Returns:
            What `training_step` returned.
        """
        ends_window = True
        if self._window == 1:
            self._zeroed = self.holds_gradients = False
        else:
            ends_window = self._enter_window(batch_idx, is_last)
        if ends_window and self._with_closure:
            return self._update_with_closure(batch, batch_idx, is_last)
        outputs = self._forward_backward(batch, batch_idx)
        if ends_window and self.holds_gradients:
            if self._has_work_before_update:
                self._before_update(batch_idx, is_last)
            self._strategy.optimizer_step(self._optimizer)
            self._progress.global_step += 1
            self.holds_gradients = False
        return outputs

    def _enter_window(self, batch_idx: int, is_last: bool) -> bool:
        """Begin a window where it is due. Returns whether the batch ends one."""
        position = batch_idx % self._window
        if position == 0:
            self._zeroed = self.holds_gradients = False
            self._divisor = min(self._window, self._num_batches - batch_idx)
        return is_last or position == self._window - 1

    def _forward_backward(self, batch: Any, batch_idx: int) -> Any:
        hooks = self._hooks
        outputs = hooks.training_step(batch, batch_idx)  # type: ignore[misc]
        loss = outputs if isinstance(outputs, Tensor) else self._loss_of(outputs)
        if self._with_closure:
            self._loss = loss
        if loss is None:
            return outputs
        if not self._zeroed:
            self._zero_gradients(batch_idx)
        if self._divisor != 1:
            loss = loss / self._divisor
        if hooks.on_before_backward is not nobody:
            hooks.on_before_backward(loss)
        self._backward(loss)
        self.holds_gradients = True
        if hooks.on_after_backward is not nobody:
            hooks.on_after_backward()
        return outputs

    def _zero_gradients(self, batch_idx: int) -> None:
        if self._hooks.on_before_zero_grad is not nobody:
            self._hooks.on_before_zero_grad(self._optimizer)
        if self._hooks.optimizer_zero_grad is not None:
            self._hooks.optimizer_zero_grad(self._progress.current_epoch, batch_idx, self._optimizer)
        else:
            self._optimizer.zero_grad()
        self._zeroed = True

    def _before_update(self, batch_idx: int, is_last: bool) -> None:
        if is_last and self._window != 1:
            self._average_over_real_length(batch_idx % self._window + 1)
        self._hooks.on_before_optimizer_step(self._optimizer)
        if self._hooks.configure_gradient_clipping is not None:
            self._hooks.configure_gradient_clipping(self._optimizer, self._clip_val, self._clip_algorithm)
        elif self._clip_val is not None:
            self._strategy.clip_gradients(self._optimizer, self._clip_val, self._clip_algorithm)

    def _update_with_closure(self, batch: Any, batch_idx: int, is_last: bool) -> Any:
        """The update as its owner wants it: an override of `optimizer_step`, or an optimizer that needs a closure."""
        outputs: Any = None
        executed = False

        def closure() -> Tensor | None:
            nonlocal outputs, executed
            executed = True
            if self._window == 1:
                self._zeroed = self.holds_gradients = False
            outputs = self._forward_backward(batch, batch_idx)
            if self.holds_gradients:
                self._before_update(batch_idx, is_last)
            elif not self._zeroed:
                self._zero_gradients(batch_idx)  # so that the step that follows has nothing to apply
            return self._loss

        self._stepped = False
        if self._hooks.optimizer_step is not None:
            self._hooks.optimizer_step(self._progress.current_epoch, batch_idx, self._optimizer, closure)
        else:
            self._strategy.optimizer_step(self._optimizer, closure)
        if not executed:
            raise RuntimeError(
                "`optimizer_closure` must be called in `optimizer_step`, but got no call of it in "
                f"{type(self._run.module).__qualname__}.optimizer_step. Pass it on: "
                "`optimizer.step(closure=optimizer_closure)`."
            )
        if self._stepped and self.holds_gradients:
            self._progress.global_step += 1
        self.holds_gradients = False
        return outputs

    def _count_step(self, *_: Any) -> None:
        self._stepped = True

    def _average_over_real_length(self, length: int) -> None:
        """Correct gradients that were divided by another length before the epoch's end was known."""
        if length == self._divisor:
            return
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.mul_(self._divisor / length)

    def _loss_of(self, outputs: Any) -> Tensor | None:
        if outputs is None:
            return None
        loss = outputs.get("loss") if isinstance(outputs, dict) else None
        if isinstance(loss, Tensor):
            return loss
        got = f"a dictionary with {sorted(map(str, outputs))}" if isinstance(outputs, dict) else repr(outputs)
        raise TypeError(
            f"`training_step` must return a tensor, a dictionary with a tensor as 'loss', or None, but got {got} "
            f"({type(outputs).__name__}) in {type(self._run.module).__qualname__}. Return the loss."
        )

"""The hooks of a module, with what happens where nobody overrides them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from camshaft.hooks_core.transfer import split_along_time


class ModelHooks:
    """Hooks that a module may override; every one is optional.

    It needs no trainer and no torch: mix it into whatever holds the model.
    """

    __hook_base__: ClassVar[bool] = True

    def configure_sharded_model(self) -> None:
        """After `setup`, in the strategy's context: create or shard submodules.

        Called in every stage, so idempotent.
        """

    def configure_model(self) -> None:
        """After `configure_sharded_model`, in the strategy's context.

        Called in every stage, so idempotent.
        """

    def on_fit_start(self) -> None:
        """At the very beginning of fit, on every process, after the module is on its device.

        Also received by callbacks and the strategy.
        """

    def on_sanity_check_start(self) -> None:
        """Before the sanity check: a few validation batches ahead of training.

        Also received by callbacks and the strategy.
        """

    def on_sanity_check_end(self) -> None:
        """After the sanity check. Also received by callbacks and the strategy."""

    def on_exception(self, exception: BaseException) -> None:
        """When anything raises during a verb, before `teardown`.

        Also received by callbacks, the data module and the strategy.
        """

    def on_fit_end(self) -> None:
        """At the very end of fit, on every process. Also received by callbacks and the strategy."""

    def on_before_zero_grad(self, optimizer: Any) -> None:
        """Before the gradients are zeroed; by default that is after `training_step`.

        Also received by callbacks.
        """

    def on_before_backward(self, loss: Any) -> None:
        """Before the loss is differentiated. Also received by callbacks."""

    def on_after_backward(self) -> None:
        """After the loss is differentiated; with a gradient scaler, gradients are still scaled.

        Also received by callbacks.
        """

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        """Before an optimizer updates: once per accumulation window, gradients unscaled and not yet clipped.

        Also received by callbacks.
        """

    def on_train_start(self) -> None:
        """When training begins: after the sanity check, before it in 0.8.

        Also received by callbacks and the strategy.
        """

    def on_train_epoch_start(self) -> None:
        """When a training epoch begins. Also received by callbacks."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        """Before anything happens for a training batch.

        Also received by callbacks and the strategy. Returns: -1 skips the rest of the epoch; its end hooks
        and epoch schedulers still run.
        """

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """After a training batch and its update. Also received by callbacks."""

    def on_train_epoch_end(self) -> None:
        """When a training epoch ends: callbacks that do not monitor, the module, callbacks that monitor.

        Also received by callbacks.
        """

    def on_train_end(self) -> None:
        """When training ends, before loggers are closed. Also received by callbacks and the strategy."""

    def on_validation_start(self) -> None:
        """When validation begins. Also received by callbacks and the strategy."""

    def on_validation_epoch_start(self) -> None:
        """When a validation epoch begins. Also received by callbacks and the strategy."""

    def on_validation_batch_start(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Before anything happens for a validation batch. Also received by callbacks and the strategy."""

    def on_validation_batch_end(self, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """After a validation batch. Also received by callbacks and the strategy."""

    def on_validation_epoch_end(self) -> None:
        """When a validation epoch ends. Also received by callbacks and the strategy."""

    def on_validation_end(self) -> None:
        """When validation ends. Also received by callbacks and the strategy."""

    def on_test_start(self) -> None:
        """When test begins. Also received by callbacks and the strategy."""

    def on_test_epoch_start(self) -> None:
        """When a test epoch begins. Also received by callbacks and the strategy."""

    def on_test_batch_start(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Before anything happens for a test batch. Also received by callbacks and the strategy."""

    def on_test_batch_end(self, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """After a test batch. Also received by callbacks and the strategy."""

    def on_test_epoch_end(self) -> None:
        """When a test epoch ends. Also received by callbacks and the strategy."""

    def on_test_end(self) -> None:
        """When test ends. Also received by callbacks and the strategy."""

    def on_predict_start(self) -> None:
        """When predict begins. Also received by callbacks and the strategy."""

    def on_predict_epoch_start(self) -> None:
        """When a predict epoch begins. Also received by callbacks."""

    def on_predict_batch_start(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Before anything happens for a predict batch. Also received by callbacks."""

    def on_predict_batch_end(self, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """After a predict batch. Also received by callbacks."""

    def on_predict_epoch_end(self) -> None:
        """When a predict epoch ends. Also received by callbacks."""

    def on_predict_end(self) -> None:
        """When predict ends. Also received by callbacks and the strategy."""

    # what the loop does by default, for `super()` in an override

    def optimizer_step(
        self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Callable[[], Any] | None = None
    ) -> None:
        """Update the weights: `optimizer.step(closure=optimizer_closure)`.

        An override is entered before `training_step`; the closure runs forward, zeroing and backward, then
        `on_before_optimizer_step` and clipping, so it must be called, by the optimizer or directly.

        Args:
            epoch: Index of the epoch.
            batch_idx: Index of the batch within the epoch.
            optimizer: The optimizer to step.
            optimizer_closure: Computes and returns the loss, with gradients in place.
        """
        optimizer.step(closure=optimizer_closure)

    def tbptt_split_batch(self, batch: Any, split_size: int) -> Sequence[Any]:
        """Split a batch along time for truncated backpropagation: tensors along their dimension 1.

        Each split is to the optimization what a whole batch is elsewhere: it gets its own `training_step`, backward
        and update. Override it where time is another dimension, or where more is to be cut.

        Args:
            batch: The batch, on its device. Tensors of at least two dimensions and lists with a list of time steps for
                each sequence are cut, in lists, tuples and dictionaries of any nesting; all else stands whole in every
                split.
            split_size: Time steps of a split; the last split is shorter if they do not divide the length.

        Returns:
            The splits, in the order of time.

        Raises:
            ValueError: If `split_size` is less than 1, nothing in the batch has a time dimension, lengths in time
                differ or are 0, or it holds a `PackedSequence`.
        """
        return split_along_time(batch, split_size, f"{type(self).__name__}.tbptt_split_batch")

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Any) -> None:
        """Zero the gradients: `optimizer.zero_grad()`."""
        optimizer.zero_grad()

    def backward(self, loss: Any) -> None:
        """Differentiate the loss: `loss.backward()`. The loss is already scaled for accumulation."""
        loss.backward()

    def configure_gradient_clipping(
        self,
        optimizer: Any,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip the gradients of one optimizer as the run was told to, after `on_before_optimizer_step`.

        Args:
            optimizer: The optimizer whose gradients are clipped.
            gradient_clip_val: The largest norm or absolute value; None clips nothing.
            gradient_clip_algorithm: "norm" (None means the same) or "value".

        Raises:
            ValueError: If the algorithm is neither.
        """
        self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)

    def clip_gradients(
        self,
        optimizer: Any,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip the gradients of one optimizer, for use in `configure_gradient_clipping` (no hook)."""
        if gradient_clip_val is None:
            return
        from torch.nn import utils

        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if gradient_clip_algorithm in (None, "norm"):
            utils.clip_grad_norm_(parameters, gradient_clip_val)
        elif gradient_clip_algorithm == "value":
            utils.clip_grad_value_(parameters, gradient_clip_val)
        else:
            raise ValueError(
                "`gradient_clip_algorithm` must be 'norm' or 'value', but got "
                f"{gradient_clip_algorithm!r} ({type(gradient_clip_algorithm).__name__}) in "
                f"{type(self).__name__}.clip_gradients. Pass one of the two."
            )

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        """Step a learning-rate scheduler: with the monitored value if it has one, else without.

        Args:
            scheduler: The scheduler.
            metric: The value that its configuration monitors, or None.
        """
        if metric is None:
            scheduler.step()
        else:
            scheduler.step(metric)

    # modes; the loop itself restores each submodule's own mode unless these are overridden

    def on_validation_model_eval(self) -> None:
        """Put the module into evaluation mode before validation."""
        self.eval()  # type: ignore[attr-defined]

    def on_validation_model_train(self) -> None:
        """Put the module back into training mode after validation."""
        self.train()  # type: ignore[attr-defined]

    def on_test_model_eval(self) -> None:
        """Put the module into evaluation mode before test."""
        self.eval()  # type: ignore[attr-defined]

    def on_test_model_train(self) -> None:
        """Put the module back into training mode after test."""
        self.train()  # type: ignore[attr-defined]

    def on_predict_model_eval(self) -> None:
        """Put the module into evaluation mode before predict."""
        self.eval()  # type: ignore[attr-defined]

    def on_predict_model_train(self) -> None:
        """Put the module back into training mode after predict."""
        self.train()  # type: ignore[attr-defined]

    def on_validation_model_zero_grad(self) -> None:
        """Free the gradients before validation inside training."""
        self.zero_grad()  # type: ignore[attr-defined]

"""The hooks of a strategy."""

from __future__ import annotations

from typing import Any, ClassVar


class StrategyHooks:
    """Hooks that a strategy may override; every one is optional. A strategy receives hooks and never emits them."""

    __hook_base__: ClassVar[bool] = True

    def on_fit_start(self) -> None:
        """At the very beginning of fit, on every process, after the module is on its device.

        Also received by callbacks and the module.
        """

    def on_sanity_check_start(self) -> None:
        """Before the sanity check: a few validation batches ahead of training.

        Also received by callbacks and the module.
        """

    def on_sanity_check_end(self) -> None:
        """After the sanity check. Also received by callbacks and the module."""

    def on_exception(self, exception: BaseException) -> None:
        """When anything raises during a verb, before `teardown`.

        Also received by callbacks, the data module and the module.
        """

    def on_fit_end(self) -> None:
        """At the very end of fit, on every process. Also received by callbacks and the module."""

    def on_train_start(self) -> None:
        """When training begins: after the sanity check, before it in 0.8.

        Also received by callbacks and the module.
        """

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        """Before anything happens for a training batch.

        Also received by callbacks and the module. Returns: -1 skips the rest of the epoch; its end hooks and
        epoch schedulers still run.
        """

    def on_train_end(self) -> None:
        """When training ends, before loggers are closed. Also received by callbacks and the module."""

    def on_validation_start(self) -> None:
        """When validation begins. Also received by callbacks and the module."""

    def on_validation_epoch_start(self) -> None:
        """When a validation epoch begins. Also received by callbacks and the module."""

    def on_validation_batch_start(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Before anything happens for a validation batch. Also received by callbacks and the module."""

    def on_validation_batch_end(self, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """After a validation batch. Also received by callbacks and the module."""

    def on_validation_epoch_end(self) -> None:
        """When a validation epoch ends. Also received by callbacks and the module."""

    def on_validation_end(self) -> None:
        """When validation ends. Also received by callbacks and the module."""

    def on_test_start(self) -> None:
        """When test begins. Also received by callbacks and the module."""

    def on_test_epoch_start(self) -> None:
        """When a test epoch begins. Also received by callbacks and the module."""

    def on_test_batch_start(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Before anything happens for a test batch. Also received by callbacks and the module."""

    def on_test_batch_end(self, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """After a test batch. Also received by callbacks and the module."""

    def on_test_epoch_end(self) -> None:
        """When a test epoch ends. Also received by callbacks and the module."""

    def on_test_end(self) -> None:
        """When test ends. Also received by callbacks and the module."""

    def on_predict_start(self) -> None:
        """When predict begins. Also received by callbacks and the module."""

    def on_predict_end(self) -> None:
        """When predict ends. Also received by callbacks and the module."""

"""The hooks of a callback."""

from __future__ import annotations

from typing import Any, ClassVar

from camshaft.hooks_core.messages import must_be


class Callback:
    """Base class of callbacks; every hook is optional, and one that is not overridden costs nothing.

    A hook gets the trainer and the module first. Callbacks run in the order in which they were passed, before the
    module, unless the class says otherwise:

    Attributes:
        monitors: Whether it reads metrics, so that in `on_train_epoch_end` it runs after the module, which may log
            there.
        after_module: Names of further hooks for which it runs after the module.

    A callback may also have a method `wrap_call(self, hook: str, kind: Receiver, receiver: object, function)`, which is
    no hook: it sees every call of a run without touching the receivers. Whoever resolves hooks asks it once for each
    receiver of each hook, in the order of the calls, and calls what it returns in place of `function`: with the same
    arguments, for the same result, letting through whatever `function` raises. A step comes as the strategy wrapped it.
    Of several such callbacks the last is outermost. Where no callback has one, calls are what they would be without it.
    """

    __hook_base__: ClassVar[bool] = True

    _logging_module: Any = None  # set for a run, past any `__setattr__` of a subclass

    monitors: ClassVar[bool] = False
    after_module: ClassVar[frozenset[str]] = frozenset()

    def setup(self, trainer: Any, module: Any, stage: str) -> None:
        """At the beginning of every verb, on every process.

        Also received by the data module and the module.
        """

    def on_fit_start(self, trainer: Any, module: Any) -> None:
        """At the very beginning of fit, on every process, after the module is on its device.

        Also received by the module and the strategy.
        """

    def on_sanity_check_start(self, trainer: Any, module: Any) -> None:
        """Before the sanity check: a few validation batches ahead of training.

        Also received by the module and the strategy.
        """

    def on_sanity_check_end(self, trainer: Any, module: Any) -> None:
        """After the sanity check. Also received by the module and the strategy."""

    def on_load_checkpoint(self, trainer: Any, module: Any, checkpoint: dict[str, Any]) -> None:
        """When a checkpoint is loaded, before its contents are restored.

        Also received by the data module and the module.
        """

    def on_save_checkpoint(self, trainer: Any, module: Any, checkpoint: dict[str, Any]) -> None:
        """When a checkpoint is about to be written: add to it or change it.

        Also received by the data module and the module.
        """

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        """When anything raises during a verb, before `teardown`.

        Also received by the data module, the module and the strategy.
        """

    def on_fit_end(self, trainer: Any, module: Any) -> None:
        """At the very end of fit, on every process. Also received by the module and the strategy."""

    def teardown(self, trainer: Any, module: Any, stage: str) -> None:
        """At the end of every verb, also after an exception, once.

        Also received by the data module and the module.
        """

    def on_before_zero_grad(self, trainer: Any, module: Any, optimizer: Any) -> None:
        """Before the gradients are zeroed; by default that is after `training_step`.

        Also received by the module.
        """

    def on_before_backward(self, trainer: Any, module: Any, loss: Any) -> None:
        """Before the loss is differentiated. Also received by the module."""

    def on_after_backward(self, trainer: Any, module: Any) -> None:
        """After the loss is differentiated; with a gradient scaler, gradients are still scaled.

        Also received by the module.
        """

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        """Before an optimizer updates: once per accumulation window, gradients unscaled and not yet clipped.

        Also received by the module.
        """

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """When training begins: after the sanity check, before it in 0.8.

        Also received by the module and the strategy.
        """

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        """When a training epoch begins. Also received by the module."""

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> int | None:
        """Before anything happens for a training batch.

        Also received by the module and the strategy. Returns: -1 skips the rest of the epoch; its end hooks
        and epoch schedulers still run.
        """

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """After a training batch and its update. Also received by the module."""

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        """When a training epoch ends: callbacks that do not monitor, the module, callbacks that monitor.

        Also received by the module.
        """

    def on_train_end(self, trainer: Any, module: Any) -> None:
        """When training ends, before loggers are closed. Also received by the module and the strategy."""

    def on_validation_start(self, trainer: Any, module: Any) -> None:
        """When validation begins. Also received by the module and the strategy."""

    def on_validation_epoch_start(self, trainer: Any, module: Any) -> None:
        """When a validation epoch begins. Also received by the module and the strategy."""

    def on_validation_batch_start(
        self, trainer: Any, module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Before anything happens for a validation batch. Also received by the module and the strategy."""

    def on_validation_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """After a validation batch. Also received by the module and the strategy."""

    def on_validation_epoch_end(self, trainer: Any, module: Any) -> None:
        """When a validation epoch ends. Also received by the module and the strategy."""

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        """When validation ends. Also received by the module and the strategy."""

    def on_test_start(self, trainer: Any, module: Any) -> None:
        """When test begins. Also received by the module and the strategy."""

    def on_test_epoch_start(self, trainer: Any, module: Any) -> None:
        """When a test epoch begins. Also received by the module and the strategy."""

    def on_test_batch_start(
        self, trainer: Any, module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Before anything happens for a test batch. Also received by the module and the strategy."""

    def on_test_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """After a test batch. Also received by the module and the strategy."""

    def on_test_epoch_end(self, trainer: Any, module: Any) -> None:
        """When a test epoch ends. Also received by the module and the strategy."""

    def on_test_end(self, trainer: Any, module: Any) -> None:
        """When test ends. Also received by the module and the strategy."""

    def on_predict_start(self, trainer: Any, module: Any) -> None:
        """When predict begins. Also received by the module and the strategy."""

    def on_predict_epoch_start(self, trainer: Any, module: Any) -> None:
        """When a predict epoch begins. Also received by the module."""

    def on_predict_batch_start(
        self, trainer: Any, module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Before anything happens for a predict batch. Also received by the module."""

    def on_predict_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """After a predict batch. Also received by the module."""

    def on_predict_epoch_end(self, trainer: Any, module: Any) -> None:
        """When a predict epoch ends. Also received by the module."""

    def on_predict_end(self, trainer: Any, module: Any) -> None:
        """When predict ends. Also received by the module and the strategy."""

    def log(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        """Log a value in a hook, as the module's own `log` does there: same arguments, same defaults by hook.

        Args:
            name: Its name.
            value: The value.
            args, kwargs: What the module's `log` takes beside these.

        Raises:
            RuntimeError: Outside of a run, where nothing can be logged, and if the module has no `log`.
            TypeError, ValueError: As the module's `log`.
        """
        self._of_module("log")(name, value, *args, **kwargs)

    def log_dict(self, dictionary: Any, *args: Any, **kwargs: Any) -> None:
        """Log each value of a dictionary; see `log`."""
        self._of_module("log_dict")(dictionary, *args, **kwargs)

    def _of_module(self, method: str) -> Any:
        module, where = self._logging_module, f"{type(self).__qualname__}.{method}"
        if module is None:
            action = "Move the call to a hook, or write to a logger."
            raise RuntimeError(must_be("log", "called in a hook of a run that holds the callback", None, where, action))
        found = getattr(module, method, None)
        if found is None:
            action = "Write to a logger."
            raise RuntimeError(must_be("module", f"one with `{method}`", type(module).__qualname__, where, action))
        return found

    def __getstate__(self) -> Any:
        """Copies and pickles leave the module of a run behind."""
        state = super().__getstate__()
        if isinstance(state, dict):
            return {name: value for name, value in state.items() if name != "_logging_module"}
        return state

    def state_dict(self) -> dict[str, Any]:
        """This callback's memory, put into every checkpoint: tensors and plain values. Empty by default."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take back what `state_dict` returned."""

    @property
    def state_key(self) -> str:
        """The name under which a checkpoint keeps this callback's memory; unique among a run's callbacks."""
        return type(self).__qualname__

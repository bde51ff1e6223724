"""The classes that people subclass. Each hook of today is stated here once: by a documented method with `@hook`.

The module's method is the statement; that of `Callback` (with `trainer` and `module` before its arguments) agrees with
it. The catalogue and the types of `Hooks` are derived from these methods.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from camshaft.hooks_core.spec import Receiver, hook
from camshaft.hooks_core.support.messages import must_be
from camshaft.hooks_core.support.transfer import move_to_device, split_along_time

_CALLBACK, _DATA, _MODULE, _STRATEGY = Receiver.CALLBACK, Receiver.DATA, Receiver.MODULE, Receiver.STRATEGY

_TO_END_HOOK = "anything; handed to the batch's end hook"
_LOADERS = "a loader or a list of loaders"
_CALLBACKS = "a callback or a list of callbacks; one of the same type as a callback of the trainer replaces it"
_OPTIMIZERS = "an optimizer, a list of them, two lists (optimizers, schedulers), a dictionary, or None"
_LOSS = "the loss, a dictionary with `loss`, or None to skip the update; anything under manual optimization"
_SKIPS_EPOCH = "-1 skips the rest of the epoch; its end hooks and epoch schedulers still run"
_STATE = "a dictionary of tensors and plain values"
_WHEN_SAVED = "When a checkpoint is put together: the receiver's own state."
_WHEN_LOADED = "When a verb begins with a checkpoint, after its weights are loaded: what `state_dict` returned."


class ModuleSteps:
    """Steps and configuration that a module defines with a signature of its own.

    They are stated here and are no part of `ModelHooks`: a module's `training_step(self, batch)` is as good, and one
    that is missing is an error at set-up.
    """

    __hook_base__: ClassVar[bool] = True

    @hook(_MODULE, kind="provide", stage="setup", returns=_CALLBACKS)
    def configure_callbacks(self) -> Any:
        """Before `setup`: the module adds callbacks of its own."""

    @hook(_MODULE, kind="provide", stage="setup", returns=_OPTIMIZERS)
    def configure_optimizers(self) -> Any:
        """After the module is on its device: choose optimizers and learning-rate schedulers."""

    @hook(_MODULE, kind="step", stage="train", returns=_LOSS)
    def training_step(self, batch: Any, batch_idx: int, *, optimizer_idx: int = 0, hiddens: Any = None) -> Any:
        """Compute the loss of a batch."""

    @hook(_MODULE, kind="step", stage="validate", returns=_TO_END_HOOK)
    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
        """Compute what validation needs of a batch."""

    @hook(_MODULE, kind="step", stage="test", returns=_TO_END_HOOK)
    def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
        """Compute what test needs of a batch."""

    @hook(_MODULE, kind="step", stage="predict", returns="the prediction")
    def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
        """Compute the prediction for a batch."""


class RunHooks:
    """Hooks that modules and strategies have alike."""

    __hook_base__: ClassVar[bool] = True

    @hook(_CALLBACK, _MODULE, _STRATEGY)
    def on_fit_start(self) -> None:
        """At the very beginning of fit, on every process, after the module is on its device."""

    @hook(_CALLBACK, _MODULE, _STRATEGY)
    def on_sanity_check_start(self) -> None:
        """Before the sanity check: a few validation batches ahead of training."""

    @hook(_CALLBACK, _MODULE, _STRATEGY)
    def on_sanity_check_end(self) -> None:
        """After the sanity check."""

    @hook(_CALLBACK, _DATA, _MODULE, _STRATEGY, stage="exception", isolated=True)
    def on_exception(self, exception: BaseException) -> None:
        """When anything raises during a verb, before `teardown`."""

    @hook(_CALLBACK, _MODULE, _STRATEGY)
    def on_fit_end(self) -> None:
        """At the very end of fit, on every process."""

    @hook(_CALLBACK, _MODULE, _STRATEGY, stage="train")
    def on_train_start(self) -> None:
        """When training begins: after the sanity check."""

    @hook(_CALLBACK, _MODULE, _STRATEGY, stage="train", returns=_SKIPS_EPOCH)
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        """Before anything happens for a training batch.

        Returns:
            -1 to skip the rest of the epoch; its end hooks and epoch schedulers still run.
        """

    @hook(_CALLBACK, _MODULE, _STRATEGY, stage="train")
    def on_train_end(self) -> None:
        """When training ends, before loggers are closed."""

    @hook(_CALLBACK, _MODULE, _STRATEGY, stage="validate")
    def on_validation_start(self) -> None:
        """When validation begins."""

    @hook(_CALLBACK, _MODULE, _STRATEGY, stage="validate")
    def on_validation_epoch_start(self) -> None:
        """When a validation epoch begins."""

    @hook(_CALLBACK, _MODULE, _STRATEGY, stage="validate")
    def on_validation_batch_start(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Before anything happens for a validation batch."""

    @hook(_CALLBACK, _MODULE, _STRATEGY, stage="validate")
    def on_validation_batch_end(self, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """After a validation batch."""

    @hook(_CALLBACK, _MODULE, _STRATEGY, stage="validate")
    def on_validation_epoch_end(self) -> None:
        """When a validation epoch ends."""

    @hook(_CALLBACK, _MODULE, _STRATEGY, stage="validate")
    def on_validation_end(self) -> None:
        """When validation ends."""

    @hook(_CALLBACK, _MODULE, _STRATEGY, stage="test")
    def on_test_start(self) -> None:
        """When test begins."""

    @hook(_CALLBACK, _MODULE, _STRATEGY, stage="test")
    def on_test_epoch_start(self) -> None:
        """When a test epoch begins."""

    @hook(_CALLBACK, _MODULE, _STRATEGY, stage="test")
    def on_test_batch_start(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Before anything happens for a test batch."""

    @hook(_CALLBACK, _MODULE, _STRATEGY, stage="test")
    def on_test_batch_end(self, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """After a test batch."""

    @hook(_CALLBACK, _MODULE, _STRATEGY, stage="test")
    def on_test_epoch_end(self) -> None:
        """When a test epoch ends."""

    @hook(_CALLBACK, _MODULE, _STRATEGY, stage="test")
    def on_test_end(self) -> None:
        """When test ends."""

    @hook(_CALLBACK, _MODULE, _STRATEGY, stage="predict")
    def on_predict_start(self) -> None:
        """When predict begins."""

    @hook(_CALLBACK, _MODULE, _STRATEGY, stage="predict")
    def on_predict_end(self) -> None:
        """When predict ends."""


class ModelHooks(RunHooks):
    """Hooks that a module may override; every one is optional.

    It needs no trainer and no torch: mix it into whatever holds the model.
    """

    __hook_base__: ClassVar[bool] = True

    @hook(_MODULE, stage="setup")
    def configure_sharded_model(self) -> None:
        """After `setup`, in the strategy's context: create or shard submodules. Called in every stage, so
        idempotent.
        """

    @hook(_MODULE, stage="setup")
    def configure_model(self) -> None:
        """After `configure_sharded_model`, in the strategy's context. Called in every stage, so idempotent."""

    @hook(_CALLBACK, _MODULE, stage="train")
    def on_before_zero_grad(self, optimizer: Any) -> None:
        """Before the gradients are zeroed; by default that is after `training_step`."""

    @hook(_CALLBACK, _MODULE, stage="train")
    def on_before_backward(self, loss: Any) -> None:
        """Before the loss is differentiated."""

    @hook(_CALLBACK, _MODULE, stage="train")
    def on_after_backward(self) -> None:
        """After the loss is differentiated; with a gradient scaler, gradients are still scaled."""

    @hook(_CALLBACK, _MODULE, stage="train")
    def on_before_optimizer_step(self, optimizer: Any) -> None:
        """Before an optimizer updates: once per accumulation window, gradients unscaled and not yet clipped."""

    @hook(_CALLBACK, _MODULE, stage="train")
    def on_train_epoch_start(self) -> None:
        """When a training epoch begins."""

    @hook(_CALLBACK, _MODULE, stage="train")
    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """After a training batch and its update."""

    @hook(_CALLBACK, _MODULE, stage="train")
    def on_train_epoch_end(self) -> None:
        """When a training epoch ends: callbacks that do not monitor, the module, callbacks that monitor."""

    @hook(_CALLBACK, _MODULE, stage="predict")
    def on_predict_epoch_start(self) -> None:
        """When a predict epoch begins."""

    @hook(_CALLBACK, _MODULE, stage="predict")
    def on_predict_batch_start(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Before anything happens for a predict batch."""

    @hook(_CALLBACK, _MODULE, stage="predict")
    def on_predict_batch_end(self, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """After a predict batch."""

    @hook(_CALLBACK, _MODULE, stage="predict")
    def on_predict_epoch_end(self) -> None:
        """When a predict epoch ends."""

    # what the loop does by default, for `super()` in an override

    @hook(_MODULE, kind="override", stage="train")
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

    @hook(_MODULE, kind="override", stage="train", returns="a sequence of splits")
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

    @hook(_MODULE, kind="override", stage="train")
    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Any) -> None:
        """Zero the gradients: `optimizer.zero_grad()`."""
        optimizer.zero_grad()

    @hook(_MODULE, kind="override", stage="train")
    def backward(self, loss: Any) -> None:
        """Differentiate the loss: `loss.backward()`. The loss is already scaled for accumulation."""
        loss.backward()

    @hook(_MODULE, kind="override", stage="train")
    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        """Clip the gradients of one optimizer by the run's settings, after `on_before_optimizer_step`.

        Args:
            optimizer: The optimizer whose gradients are clipped.
            gradient_clip_val: The largest norm or absolute value; None clips nothing.
            gradient_clip_algorithm: "norm" (None means the same) or "value".

        Raises:
            ValueError: If the algorithm is neither.
        """
        self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)

    def clip_gradients(
        self, optimizer: Any, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        """Clip the gradients of one optimizer, for use in `configure_gradient_clipping` (no hook).

        Args:
            optimizer: The optimizer.
            gradient_clip_val: The largest norm, or absolute value; None clips nothing.
            gradient_clip_algorithm: "norm" or "value"; None is "norm".

        Raises:
            ValueError: If there is no such algorithm.
        """
        if gradient_clip_val is None:
            return
        from torch.nn import utils

        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if gradient_clip_algorithm in (None, "norm"):
            utils.clip_grad_norm_(parameters, gradient_clip_val)
        elif gradient_clip_algorithm == "value":
            utils.clip_grad_value_(parameters, gradient_clip_val)
        else:
            where, action = f"{type(self).__name__}.clip_gradients", "Pass one of the two."
            rule = "'norm' or 'value'"
            raise ValueError(must_be("gradient_clip_algorithm", rule, gradient_clip_algorithm, where, action))

    @hook(_MODULE, kind="override", stage="train")
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

    @hook(_MODULE, kind="override", stage="validate")
    def on_validation_model_eval(self) -> None:
        """Put the module into evaluation mode before validation."""
        self.eval()  # type: ignore[attr-defined]

    @hook(_MODULE, kind="override", stage="validate")
    def on_validation_model_train(self) -> None:
        """Put the module back into training mode after validation."""
        self.train()  # type: ignore[attr-defined]

    @hook(_MODULE, kind="override", stage="test")
    def on_test_model_eval(self) -> None:
        """Put the module into evaluation mode before test."""
        self.eval()  # type: ignore[attr-defined]

    @hook(_MODULE, kind="override", stage="test")
    def on_test_model_train(self) -> None:
        """Put the module back into training mode after test."""
        self.train()  # type: ignore[attr-defined]

    @hook(_MODULE, kind="override", stage="predict")
    def on_predict_model_eval(self) -> None:
        """Put the module into evaluation mode before predict."""
        self.eval()  # type: ignore[attr-defined]

    @hook(_MODULE, kind="override", stage="predict")
    def on_predict_model_train(self) -> None:
        """Put the module back into training mode after predict."""
        self.train()  # type: ignore[attr-defined]

    @hook(_MODULE, kind="override", stage="validate")
    def on_validation_model_zero_grad(self) -> None:
        """Free the gradients before validation inside training."""
        self.zero_grad()  # type: ignore[attr-defined]


class DataHooks:
    """Hooks about data, for a data module or a module; every one is optional."""

    __hook_base__: ClassVar[bool] = True

    @hook(_DATA, _MODULE, stage="setup")
    def prepare_data(self) -> None:
        """Before anything else, on one process only: download or preprocess to disk; assign no state."""

    @hook(_CALLBACK, _DATA, _MODULE, stage="setup")
    def setup(self, stage: str) -> None:
        """At the beginning of every verb, on every process."""

    @hook(_CALLBACK, _DATA, _MODULE, stage="setup", isolated=True)
    def teardown(self, stage: str) -> None:
        """At the end of every verb, also after an exception, once."""

    @hook(_DATA, _MODULE, kind="provide", stage="data", returns=_LOADERS)
    def train_dataloader(self) -> Any:
        """When training data is first needed."""

    @hook(_DATA, _MODULE, kind="provide", stage="data", returns=_LOADERS)
    def val_dataloader(self) -> Any:
        """When validation data is first needed."""

    @hook(_DATA, _MODULE, kind="provide", stage="data", returns=_LOADERS)
    def test_dataloader(self) -> Any:
        """When test data is first needed."""

    @hook(_DATA, _MODULE, kind="provide", stage="data", returns=_LOADERS)
    def predict_dataloader(self) -> Any:
        """When prediction data is first needed."""

    @hook(_DATA, _MODULE, kind="transform", stage="data", returns="the batch to go on with")
    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Change a batch before it is moved to its device.

        A data module's override is taken before a module's.

        Returns:
            The batch to go on with.
        """
        return batch

    @hook(_DATA, _MODULE, kind="transform", stage="data", returns="the batch on the device")
    def transfer_batch_to_device(self, batch: Any, device: Any, dataloader_idx: int) -> Any:
        """Move a batch to its device.

        The default moves tensors in any nesting of lists, tuples and dictionaries, and whatever has a `to` method.
        A data module's override is taken before a module's.

        Args:
            batch: The batch as the loader gave it.
            device: The `torch.device` to move it to.
            dataloader_idx: Index of the loader.

        Returns:
            The batch on the device.
        """
        return move_to_device(batch, device)

    @hook(_DATA, _MODULE, kind="transform", stage="data", returns="the batch to go on with")
    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Change a batch after it was moved to its device.

        A data module's override is taken before a module's.

        Returns:
            The batch to go on with.
        """
        return batch


class CheckpointHooks:
    """Hooks that add to a checkpoint or read from it; both are optional."""

    __hook_base__: ClassVar[bool] = True

    @hook(_CALLBACK, _DATA, _MODULE, stage="checkpoint")
    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """When a checkpoint is loaded, before its contents are restored."""

    @hook(_CALLBACK, _DATA, _MODULE, stage="checkpoint")
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """When a checkpoint is about to be written: add to it or change it."""


class _OfClass:
    """An attribute of a class that its instances do not have."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __get__(self, instance: object, owner: type) -> Any:
        if instance is not None:
            raise AttributeError(f"instances of {owner.__qualname__} do not show their fields. Ask their class.")
        return self.value


class Callback:
    """Base class of callbacks; every hook is optional, and one that is not overridden costs nothing.

    A hook gets the trainer and the module first. Callbacks run in the order in which they were passed, before the
    module, unless the class says otherwise:

    Attributes:
        monitors: Whether it reads metrics, so that in `on_train_epoch_end` it runs after the module, which may log
            there.
        after_module: Names of further hooks for which it runs after the module.
        only_observes: Whether weights and data are the same without it, as it saves, logs, shows, measures or keeps
            time. A replay of a run leaves it out, and runs all others.

    A callback may also have a method `wrap_call(self, hook: str, kind: Receiver, receiver: object, function)`, which is
    no hook: it sees every call of a run without touching the receivers. `resolve` calls it once for each receiver of
    each hook, in the order of the calls, and its result is called in place of `function`: with the same arguments, for
    the same result, letting through whatever `function` raises. A step comes as the strategy wrapped it. Of several
    such callbacks the last is outermost. Without one, nothing is added to any call.
    """

    __hook_base__: ClassVar[bool] = True

    _logging_module: Any = None  # set for a run, past any `__setattr__` of a subclass
    _of_run: ClassVar[tuple[str, ...]] = ()  # names of attributes that copies and pickles have as None

    monitors: ClassVar[bool] = False
    after_module: ClassVar[frozenset[str]] = frozenset()
    only_observes: bool = False

    def __attrs_pre_init__(self) -> None:
        """Let configuration libraries, such as OmegaConf, take a callback made by attrs for the object that it is."""
        for klass in type(self).__mro__:
            fields = vars(klass).get("__attrs_attrs__")
            if fields is not None and not isinstance(fields, _OfClass):
                klass.__attrs_attrs__ = _OfClass(fields)  # type: ignore[attr-defined]

    def setup(self, trainer: Any, module: Any, stage: str) -> None:
        """At the beginning of every verb, on every process."""

    def on_fit_start(self, trainer: Any, module: Any) -> None:
        """At the very beginning of fit, on every process, after the module is on its device."""

    def on_sanity_check_start(self, trainer: Any, module: Any) -> None:
        """Before the sanity check: a few validation batches ahead of training."""

    def on_sanity_check_end(self, trainer: Any, module: Any) -> None:
        """After the sanity check."""

    def on_load_checkpoint(self, trainer: Any, module: Any, checkpoint: dict[str, Any]) -> None:
        """When a checkpoint is loaded, before its contents are restored."""

    def on_save_checkpoint(self, trainer: Any, module: Any, checkpoint: dict[str, Any]) -> None:
        """When a checkpoint is about to be written: add to it or change it."""

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        """When anything raises during a verb, before `teardown`."""

    def on_fit_end(self, trainer: Any, module: Any) -> None:
        """At the very end of fit, on every process."""

    def teardown(self, trainer: Any, module: Any, stage: str) -> None:
        """At the end of every verb, also after an exception, once."""

    def on_before_zero_grad(self, trainer: Any, module: Any, optimizer: Any) -> None:
        """Before the gradients are zeroed; by default that is after `training_step`."""

    def on_before_backward(self, trainer: Any, module: Any, loss: Any) -> None:
        """Before the loss is differentiated."""

    def on_after_backward(self, trainer: Any, module: Any) -> None:
        """After the loss is differentiated; with a gradient scaler, gradients are still scaled."""

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        """Before an optimizer updates: once per accumulation window, gradients unscaled and not yet clipped."""

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """When training begins: after the sanity check."""

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        """When a training epoch begins."""

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> int | None:
        """Before anything happens for a training batch."""

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """After a training batch and its update."""

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        """When a training epoch ends: callbacks that do not monitor, the module, callbacks that monitor."""

    def on_train_end(self, trainer: Any, module: Any) -> None:
        """When training ends, before loggers are closed."""

    def on_validation_start(self, trainer: Any, module: Any) -> None:
        """When validation begins."""

    def on_validation_epoch_start(self, trainer: Any, module: Any) -> None:
        """When a validation epoch begins."""

    def on_validation_batch_start(
        self, trainer: Any, module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Before anything happens for a validation batch."""

    def on_validation_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """After a validation batch."""

    def on_validation_epoch_end(self, trainer: Any, module: Any) -> None:
        """When a validation epoch ends."""

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        """When validation ends."""

    def on_test_start(self, trainer: Any, module: Any) -> None:
        """When test begins."""

    def on_test_epoch_start(self, trainer: Any, module: Any) -> None:
        """When a test epoch begins."""

    def on_test_batch_start(
        self, trainer: Any, module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Before anything happens for a test batch."""

    def on_test_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """After a test batch."""

    def on_test_epoch_end(self, trainer: Any, module: Any) -> None:
        """When a test epoch ends."""

    def on_test_end(self, trainer: Any, module: Any) -> None:
        """When test ends."""

    def on_predict_start(self, trainer: Any, module: Any) -> None:
        """When predict begins."""

    def on_predict_epoch_start(self, trainer: Any, module: Any) -> None:
        """When a predict epoch begins."""

    def on_predict_batch_start(
        self, trainer: Any, module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Before anything happens for a predict batch."""

    def on_predict_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """After a predict batch."""

    def on_predict_epoch_end(self, trainer: Any, module: Any) -> None:
        """When a predict epoch ends."""

    def on_predict_end(self, trainer: Any, module: Any) -> None:
        """When predict ends."""

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
        if not hasattr(module, method):
            told = must_be("module", f"one with `{method}`", type(module).__qualname__, where, "Write to a logger.")
            raise RuntimeError(told)
        return getattr(module, method)

    def __getstate__(self) -> Any:
        """Exclude run state from pickles: the module of a run, and what `_of_run` names."""
        state = super().__getstate__()
        if not isinstance(state, dict):
            return state
        kept = {name: value for name, value in state.items() if name != "_logging_module"}
        return kept | dict.fromkeys(name for name in self._of_run if name in kept)

    @hook(_CALLBACK, _DATA, when=_WHEN_SAVED, kind="state", stage="checkpoint", returns=_STATE)
    def state_dict(self) -> dict[str, Any]:
        """Return the callback's own state for a checkpoint: tensors and plain values. Empty by default."""
        return {}

    @hook(_CALLBACK, _DATA, when=_WHEN_LOADED, kind="state", stage="checkpoint")
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""

    @property
    def state_key(self) -> str:
        """Key of the callback's state in a checkpoint; unique among a run's callbacks."""
        return type(self).__qualname__

    def _generate_state_key(self, **arguments: Any) -> str:
        """Return a key for `state_key`: the class's name, and arguments that tell two of its callbacks apart."""
        return f"{type(self).__qualname__}{arguments!r}"


class StrategyHooks(RunHooks):
    """Hooks that a strategy may override; every one is optional. A strategy receives hooks and never emits them."""

    __hook_base__: ClassVar[bool] = True

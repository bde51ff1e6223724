"""Resolved hooks of one run, as a loop calls them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from camshaft.hooks_core.dispatch.calls import HookCall
from camshaft.hooks_core.dispatch.readings import ReceiverReading
from camshaft.hooks_core.support.messages import must_be

if TYPE_CHECKING:
    from typing import Concatenate, Generic, ParamSpec, TypeVar

    from camshaft.hooks_core.bases import CheckpointHooks, DataHooks, ModelHooks, ModuleSteps

    _Arguments = ParamSpec("_Arguments")
    _Result = TypeVar("_Result")

    class _Event(Generic[_Arguments, _Result]):
        """Type of an event's attribute: always callable, and any callable may take its place."""

        def __init__(self, method: Callable[Concatenate[Any, _Arguments], _Result]) -> None: ...

        def __get__(self, hooks: Hooks, owner: type[Hooks]) -> Callable[_Arguments, _Result]: ...

        def __set__(self, hooks: Hooks, function: Callable[..., Any]) -> None: ...

    class _OneOwner(Generic[_Arguments, _Result]):
        """Type of the attribute of a hook with one owner: None where no receiver implements it."""

        def __init__(self, method: Callable[Concatenate[Any, _Arguments], _Result]) -> None: ...

        def __get__(self, hooks: Hooks, owner: type[Hooks]) -> Callable[_Arguments, _Result] | None: ...

        def __set__(self, hooks: Hooks, function: Callable[..., Any] | None) -> None: ...


class Hooks:
    """Each hook of a run as one attribute; `resolve` makes it.

    An event is always callable and reaches every receiver that implements it. A step, an override, something provided
    or a transform is the callable of its one owner, or None where no receiver implements it. Hooks that a third
    party registered are attributes as well, and so are those that a reader of receivers knows.

    Attributes:
        readings: Readings of the receivers that were written for another protocol.
    """

    readings: tuple[ReceiverReading, ...] = ()
    _calls: Mapping[str, Sequence[HookCall]] = MappingProxyType({})
    _with_one_loader: Mapping[str, Callable[..., Any]] = MappingProxyType({})

    if TYPE_CHECKING:  # a run's hooks take the arguments of the methods that state them
        # around a run
        prepare_data = _Event(DataHooks.prepare_data)
        configure_callbacks = _OneOwner(ModuleSteps.configure_callbacks)
        setup = _Event(DataHooks.setup)
        configure_sharded_model = _Event(ModelHooks.configure_sharded_model)
        configure_model = _Event(ModelHooks.configure_model)
        configure_optimizers = _OneOwner(ModuleSteps.configure_optimizers)
        on_fit_start = _Event(ModelHooks.on_fit_start)
        on_sanity_check_start = _Event(ModelHooks.on_sanity_check_start)
        on_sanity_check_end = _Event(ModelHooks.on_sanity_check_end)
        on_load_checkpoint = _Event(CheckpointHooks.on_load_checkpoint)
        on_save_checkpoint = _Event(CheckpointHooks.on_save_checkpoint)
        on_exception = _Event(ModelHooks.on_exception)
        on_fit_end = _Event(ModelHooks.on_fit_end)
        teardown = _Event(DataHooks.teardown)

        # data
        train_dataloader = _OneOwner(DataHooks.train_dataloader)
        val_dataloader = _OneOwner(DataHooks.val_dataloader)
        test_dataloader = _OneOwner(DataHooks.test_dataloader)
        predict_dataloader = _OneOwner(DataHooks.predict_dataloader)
        on_before_batch_transfer = _OneOwner(DataHooks.on_before_batch_transfer)
        transfer_batch_to_device = _OneOwner(DataHooks.transfer_batch_to_device)
        on_after_batch_transfer = _OneOwner(DataHooks.on_after_batch_transfer)

        # optimization
        optimizer_step = _OneOwner(ModelHooks.optimizer_step)
        on_before_zero_grad = _Event(ModelHooks.on_before_zero_grad)
        optimizer_zero_grad = _OneOwner(ModelHooks.optimizer_zero_grad)
        on_before_backward = _Event(ModelHooks.on_before_backward)
        backward = _OneOwner(ModelHooks.backward)
        on_after_backward = _Event(ModelHooks.on_after_backward)
        on_before_optimizer_step = _Event(ModelHooks.on_before_optimizer_step)
        configure_gradient_clipping = _OneOwner(ModelHooks.configure_gradient_clipping)
        lr_scheduler_step: Callable[..., Any] | None  # gets `optimizer_idx` as well where `takes` returns true

        # training
        on_train_start = _Event(ModelHooks.on_train_start)
        on_train_epoch_start = _Event(ModelHooks.on_train_epoch_start)
        on_train_batch_start = _Event(ModelHooks.on_train_batch_start)
        tbptt_split_batch = _OneOwner(ModelHooks.tbptt_split_batch)
        training_step = _OneOwner(ModuleSteps.training_step)
        on_train_batch_end = _Event(ModelHooks.on_train_batch_end)
        on_train_epoch_end = _Event(ModelHooks.on_train_epoch_end)
        on_train_end = _Event(ModelHooks.on_train_end)

        # validation
        on_validation_model_zero_grad = _OneOwner(ModelHooks.on_validation_model_zero_grad)
        on_validation_model_eval = _OneOwner(ModelHooks.on_validation_model_eval)
        on_validation_start = _Event(ModelHooks.on_validation_start)
        on_validation_epoch_start = _Event(ModelHooks.on_validation_epoch_start)
        on_validation_batch_start = _Event(ModelHooks.on_validation_batch_start)
        validation_step = _OneOwner(ModuleSteps.validation_step)
        on_validation_batch_end = _Event(ModelHooks.on_validation_batch_end)
        on_validation_epoch_end = _Event(ModelHooks.on_validation_epoch_end)
        on_validation_end = _Event(ModelHooks.on_validation_end)
        on_validation_model_train = _OneOwner(ModelHooks.on_validation_model_train)

        # test
        on_test_model_eval = _OneOwner(ModelHooks.on_test_model_eval)
        on_test_start = _Event(ModelHooks.on_test_start)
        on_test_epoch_start = _Event(ModelHooks.on_test_epoch_start)
        on_test_batch_start = _Event(ModelHooks.on_test_batch_start)
        test_step = _OneOwner(ModuleSteps.test_step)
        on_test_batch_end = _Event(ModelHooks.on_test_batch_end)
        on_test_epoch_end = _Event(ModelHooks.on_test_epoch_end)
        on_test_end = _Event(ModelHooks.on_test_end)
        on_test_model_train = _OneOwner(ModelHooks.on_test_model_train)

        # prediction
        on_predict_model_eval = _OneOwner(ModelHooks.on_predict_model_eval)
        on_predict_start = _Event(ModelHooks.on_predict_start)
        on_predict_epoch_start = _Event(ModelHooks.on_predict_epoch_start)
        on_predict_batch_start = _Event(ModelHooks.on_predict_batch_start)
        predict_step = _OneOwner(ModuleSteps.predict_step)
        on_predict_batch_end = _Event(ModelHooks.on_predict_batch_end)
        on_predict_epoch_end = _Event(ModelHooks.on_predict_epoch_end)
        on_predict_end = _Event(ModelHooks.on_predict_end)
        on_predict_model_train = _OneOwner(ModelHooks.on_predict_model_train)

        def __setattr__(self, name: str, value: Any) -> None: ...  # hooks that a third party registered

    def for_loaders(self, num_loaders: int) -> Hooks:
        """Return the hooks as a stage of validation, test or prediction with so many loaders calls them.

        They are called alike, with the loader's index. With a single loader they hand it on only to receivers that
        require it: one that takes it by `*args`, `**kwargs` or with a default gets it where there are several. Those
        that `resolve` returns are for several.

        Args:
            num_loaders: Number of loaders of the stage.
        """
        if num_loaders > 1 or not self._with_one_loader:
            return self
        hooks = Hooks()
        hooks.__dict__ |= self.__dict__
        hooks.__dict__ |= self._with_one_loader
        return hooks

    def wrap(self, hook: str, wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Wrap a hook, for any number of loaders; do nothing where no receiver implements it.

        Args:
            hook: The hook's name.
            wrapper: Called with the hook; returns what is called in its place.
        """
        function = getattr(self, hook)
        if function is not None:
            setattr(self, hook, wrapper(function))
        if hook in self._with_one_loader:
            self._with_one_loader = {**self._with_one_loader, hook: wrapper(self._with_one_loader[hook])}

    def takes(self, hook: str, argument: str) -> bool:
        """Return whether some receiver of a hook gets an argument; a caller need not compute it otherwise.

        Args:
            hook: The hook's name.
            argument: The argument's name today, whatever a receiver calls it.

        Raises:
            AttributeError: If the run was resolved without such a hook.
        """
        if hook not in self._calls:
            getattr(self, hook)  # raises if there is no such hook
        return any(argument == one.source for call in self._calls.get(hook, ()) for one in call.arguments)

    def methods(self, hook: str) -> list[Callable[..., Any]]:
        """Return the methods that a hook calls, in order, without what wraps them."""
        return [call.function for call in self._calls.get(hook, ())]

    def __getattr__(self, name: str) -> Any:
        rule = "a hook of the catalogue that this run was resolved with"
        raise AttributeError(must_be("name", rule, name, "Hooks", "Register the hook before the run starts."))

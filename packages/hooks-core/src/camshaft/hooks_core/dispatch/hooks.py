"""The resolved hooks of one run, as a loop calls them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from camshaft.hooks_core.dispatch.readings import ReceiverReading

_Event = Callable[..., Any]
_OneOwner = Callable[..., Any] | None

_NONE: Mapping[str, Callable[..., Any]] = MappingProxyType({})


class Hooks:
    """Each hook of a run as one attribute; `resolve` makes it.

    An event is always callable and reaches every receiver that implements it. A step, an override, something provided
    or a transform is the callable of its one owner, or None where nobody implements it. Hooks that a third party
    registered are attributes as well, and so are those hooks of earlier eras that have no moment of today: whoever runs
    eras calls them. The others come with the hook of their moment.

    Attributes:
        readings: What the reader of receivers found out about those that are not of today.
    """

    readings: tuple[ReceiverReading, ...] = ()
    _taken: Mapping[str, frozenset[str]] = MappingProxyType({})
    _with_one_loader = _NONE

    # around a run
    prepare_data: _Event
    configure_callbacks: _OneOwner
    setup: _Event
    configure_sharded_model: _Event
    configure_model: _Event
    configure_optimizers: _OneOwner
    on_fit_start: _Event
    on_sanity_check_start: _Event
    on_sanity_check_end: _Event
    on_load_checkpoint: _Event
    on_save_checkpoint: _Event
    on_exception: _Event
    on_fit_end: _Event
    teardown: _Event

    # data
    train_dataloader: _OneOwner
    val_dataloader: _OneOwner
    test_dataloader: _OneOwner
    predict_dataloader: _OneOwner
    on_before_batch_transfer: _OneOwner
    transfer_batch_to_device: _OneOwner
    on_after_batch_transfer: _OneOwner

    # optimization
    optimizer_step: _OneOwner
    on_before_zero_grad: _Event
    optimizer_zero_grad: _OneOwner
    on_before_backward: _Event
    backward: _OneOwner
    on_after_backward: _Event
    on_before_optimizer_step: _Event
    configure_gradient_clipping: _OneOwner
    lr_scheduler_step: _OneOwner

    # training
    on_train_start: _Event
    on_train_epoch_start: _Event
    on_train_batch_start: _Event
    tbptt_split_batch: _OneOwner
    training_step: _OneOwner
    on_train_batch_end: _Event
    on_train_epoch_end: _Event
    on_train_end: _Event

    # validation
    on_validation_model_zero_grad: _OneOwner
    on_validation_model_eval: _OneOwner
    on_validation_start: _Event
    on_validation_epoch_start: _Event
    on_validation_batch_start: _Event
    validation_step: _OneOwner
    on_validation_batch_end: _Event
    on_validation_epoch_end: _Event
    on_validation_end: _Event
    on_validation_model_train: _OneOwner

    # test
    on_test_model_eval: _OneOwner
    on_test_start: _Event
    on_test_epoch_start: _Event
    on_test_batch_start: _Event
    test_step: _OneOwner
    on_test_batch_end: _Event
    on_test_epoch_end: _Event
    on_test_end: _Event
    on_test_model_train: _OneOwner

    # prediction
    on_predict_model_eval: _OneOwner
    on_predict_start: _Event
    on_predict_epoch_start: _Event
    on_predict_batch_start: _Event
    predict_step: _OneOwner
    on_predict_batch_end: _Event
    on_predict_epoch_end: _Event
    on_predict_end: _Event
    on_predict_model_train: _OneOwner

    # of earlier eras; called by whoever runs these
    on_init_start: _Event
    on_init_end: _Event
    on_post_move_to_device: _Event
    init_ddp_connection: _OneOwner
    init_optimizers: _OneOwner
    configure_apex: _OneOwner
    configure_ddp: _OneOwner
    summarize: _OneOwner
    restore_weights: _OneOwner
    training_step_end: _OneOwner
    on_tng_metrics: _Event
    get_progress_bar_dict: _OneOwner
    training_epoch_end: _OneOwner
    validation_step_end: _OneOwner
    validation_epoch_end: _OneOwner
    test_step_end: _OneOwner
    test_epoch_end: _OneOwner

    def for_loaders(self, num_loaders: int) -> Hooks:
        """Return the hooks as a stage of validation, test or prediction with so many loaders calls them.

        They are called alike, with the loader's index. With a single loader they hand it on only to receivers that
        require it: to who takes it by `*args`, `**kwargs` or with a default it says that there are several loaders. The
        hooks as `resolve` returns them are those for several.

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
        """Put something around a hook, whatever the number of loaders is; nothing happens where nobody implements it.

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
        """Whether some receiver of a hook gets an argument, so that whoever calls the hook need not find it otherwise.

        Args:
            hook: The hook's name.
            argument: The argument's name today, whatever a receiver calls it.

        Raises:
            AttributeError: If the run was resolved without such a hook.
        """
        if hook not in self._taken:
            getattr(self, hook)  # says that there is no such hook
        return argument in self._taken.get(hook, ())

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"`name` must be a hook of the catalogue that this run was resolved with, but got {name!r} (str) in Hooks. "
            "Register the hook before the run starts."
        )

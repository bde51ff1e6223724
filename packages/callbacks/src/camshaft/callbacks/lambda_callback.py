"""Callback that is made from plain functions."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from typing import Any, ClassVar

from camshaft.hooks_core import CATALOGUE, Callback, Receiver
from camshaft.hooks_core.support.messages import must_be


class LambdaCallback(Callback):
    """Calls functions as hooks; hooks without a function cost nothing.

    Each function gets the arguments of the hook, or fewer: the trainer, the module, and those that the hook adds.

        LambdaCallback(on_train_epoch_end=lambda trainer: print(trainer.callback_metrics))

    Args:
        functions: Functions by position, in the order of `POSITIONS`.
        hooks: Functions by the names of hooks that callbacks receive, registered ones too; None is no function.

    Raises:
        TypeError: If a name is not that of such a hook, its value is no function, or a hook is given twice.
    """

    POSITIONS: ClassVar[tuple[str, ...]] = (
        *("setup", "teardown", "on_fit_start", "on_fit_end", "on_sanity_check_start", "on_sanity_check_end"),
        *("on_train_batch_start", "on_train_batch_end", "on_train_epoch_start", "on_train_epoch_end"),
        *("on_validation_epoch_start", "on_validation_epoch_end", "on_test_epoch_start", "on_test_epoch_end"),
        *("on_validation_batch_start", "on_validation_batch_end", "on_test_batch_start", "on_test_batch_end"),
        *("on_train_start", "on_train_end", "on_validation_start", "on_validation_end", "on_test_start", "on_test_end"),
        *("on_exception", "on_save_checkpoint", "on_load_checkpoint", "on_before_backward", "on_after_backward"),
        *("on_before_optimizer_step", "on_before_zero_grad", "on_predict_start", "on_predict_end"),
        *("on_predict_batch_start", "on_predict_batch_end", "on_predict_epoch_start", "on_predict_epoch_end"),
    )
    """The hooks that may be given by position, as Lightning orders them."""

    def __init__(self, *functions: Callable[..., Any] | None, **hooks: Callable[..., Any] | None) -> None:
        where = type(self).__name__
        if len(functions) > len(self.POSITIONS):
            rule, action = f"at most {len(self.POSITIONS)} by position", "Pass the others by name."
            raise TypeError(must_be("functions", rule, len(functions), where, action))
        given = dict(zip(self.POSITIONS, functions, strict=False))
        for name in given.keys() & hooks.keys():
            raise TypeError(must_be(name, "given once", hooks[name], where, "Pass it only by name."))
        hooks = {**given, **hooks}
        known = [spec.name for spec in CATALOGUE.received_by(Receiver.CALLBACK)]
        for name, function in hooks.items():
            if name not in known:
                near = get_close_matches(name, known, n=1, cutoff=0.0)[0]
                rule, action = "a hook of callbacks", f"The closest one is `{near}`."
                raise TypeError(must_be("hooks", rule, name, where, action))
            if function is None:
                continue
            if not callable(function):
                raise TypeError(must_be(name, "a function", function, where, "Pass a function."))
            setattr(self, name, function)

"""A callback from plain functions."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

from camshaft.hooks_core import CATALOGUE, Callback, Receiver
from camshaft.hooks_core.messages import must_be


class LambdaCallback(Callback):
    """Calls the functions that it is given as hooks; what is not given costs nothing.

    Each gets what the method of that name gets, or fewer arguments: the trainer, the module, and what the hook adds.

        LambdaCallback(on_train_epoch_end=lambda trainer: print(trainer.callback_metrics))

    Args:
        hooks: Functions by the names of the hooks that callbacks receive, also of ones that were registered; None gives
            none.

    Raises:
        TypeError: If a name is no such hook's, or its value is no function.
    """

    def __init__(self, **hooks: Callable[..., Any] | None) -> None:
        known = [spec.name for spec in CATALOGUE.received_by(Receiver.CALLBACK) if spec.is_current]
        where = type(self).__name__
        for name, function in hooks.items():
            if name not in known:
                near = get_close_matches(name, known, n=1, cutoff=0.0)[0]
                rule, action = "named as a hook that callbacks receive", f"The closest one is `{near}`."
                raise TypeError(must_be("hooks", rule, name, where, action))
            if function is None:
                continue
            if not callable(function):
                raise TypeError(must_be(name, "a function", function, where, "Pass a function."))
            setattr(self, name, function)

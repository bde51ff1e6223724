"""States of callbacks of 1.x, which `on_save_checkpoint` returns and `on_load_checkpoint` gets."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from camshaft.hooks_core import no_op
from camshaft.hooks_core.dispatch.binding import parameter_names
from camshaft.hooks_core.dispatch.implementation import implementation
from camshaft.hooks_core.spec import Receiver
from camshaft.loops import Run
from camshaft.loops.state.callback_state import check_state_keys, has_state_dict, state_key

_NO_STATE = frozenset({"trainer", "module", "pl_module", "checkpoint"})
_STATE = frozenset({"callback_state", "checkpointed_state"})
"""Names in 1.x of the parameter of a callback's `on_load_checkpoint` that is its state."""


def takes_state(callback: object) -> bool:
    """Return whether a callback's `on_load_checkpoint` gets back, as in 1.x, what its `on_save_checkpoint` returned.

    It does if a parameter of it is named so, or if it has a single one that stands for nothing else.
    """
    load = implementation(callback, "on_load_checkpoint")
    if load is None:
        return False
    names = parameter_names(load)
    return bool(names & _STATE) or (len(names) == 1 and not names & _NO_STATE)


class ReturnedStates:
    """A wrapper of `on_save_checkpoint` and `on_load_checkpoint` that gives callbacks the state of 1.x.

    The return value of `on_save_checkpoint` is the callback's state, unless it has a `state_dict`; an
    `on_load_checkpoint` that takes a state gets it, and is not called without one. As in every release of Lightning,
    callbacks' `on_save_checkpoint` is not called for a checkpoint of the weights alone. It is one of
    `Run.call_wrappers`.

    Args:
        run: The run that saves and loads.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._returned: dict[str, Any] = {}
        self._saves_weights_only = False

    def wrap_call(
        self, hook: str, kind: Receiver, receiver: object, function: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Return what is called in place of a receiver's hook: for all but these two hooks of callbacks, the same."""
        if kind is not Receiver.CALLBACK:
            return function
        if hook == "on_save_checkpoint":
            return self._saving(receiver, function)
        if hook == "on_load_checkpoint" and takes_state(receiver):
            return self._loading(receiver, function)
        return function

    def attach(self, run: Run) -> None:
        """Put the returned states into the checkpoints of the run; one of `Run.adapters`.

        Raises:
            ValueError: If two callbacks would save their states under one key.
        """
        check_state_keys(run.callbacks, run.verb, lambda callback: has_state_dict(callback) or takes_state(callback))
        save = run.hooks.on_save_checkpoint

        def on_save_checkpoint(checkpoint: dict[str, Any]) -> None:
            self._returned.clear()
            self._saves_weights_only = "callbacks" not in checkpoint
            save(checkpoint)
            if not self._saves_weights_only:
                checkpoint["callbacks"].update(self._returned)

        if save is not no_op:
            run.hooks.on_save_checkpoint = on_save_checkpoint

    def _saving(self, callback: object, function: Callable[..., Any]) -> Callable[..., Any]:
        returns_state = implementation(callback, "state_dict") is None

        def on_save_checkpoint(*arguments: Any, **keywords: Any) -> None:
            state = None if self._saves_weights_only else function(*arguments, **keywords)
            if state and returns_state:
                self._returned[state_key(callback)] = state

        return on_save_checkpoint

    def _loading(self, callback: object, function: Callable[..., Any]) -> Callable[..., Any]:
        has_trainer = len(parameter_names(function)) > 1

        def on_load_checkpoint(*_: Any, **__: Any) -> None:
            run = self._run
            state = ((run.checkpoint or {}).get("callbacks") or {}).get(state_key(callback))
            if state:
                function(*((run.trainer, run.module) if has_trainer else ()), copy.deepcopy(state))

        return on_load_checkpoint

"""The adaptation of a run to receivers of earlier eras."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, cast

from torch import nn

from camshaft.callbacks import ModelSummary
from camshaft.compat.eras.evidence import takes_index, takes_state
from camshaft.compat.eras.optimization import EraOptimization
from camshaft.compat.eras.outputs import ReadReturned, adapt_outputs
from camshaft.compat.eras.processes import delegate
from camshaft.compat.eras.reading import EraReading, read_era, read_receivers
from camshaft.compat.eras.releases import behaviour_in, may_log_with_other_options
from camshaft.compat.eras.report import describe
from camshaft.hooks_core import no_op
from camshaft.hooks_core.dispatch.binding import parameter_names
from camshaft.hooks_core.dispatch.implementation import implementation
from camshaft.hooks_core.eras.hooks import MODULE_ONLY_ERAS
from camshaft.hooks_core.spec import Receiver
from camshaft.loops import FitOrder, Run
from camshaft.loops.metrics import MetricLog
from camshaft.loops.state.callback_state import check_state_keys, has_state_dict, state_key

_announced: set[str] = set()
"""The texts about classes that this process has printed."""


def extend(run: Run, read_returned: ReadReturned | None = None, *, is_earlier: bool = False) -> None:
    """Let a run, whose hooks are not resolved yet, call receivers of earlier eras as their releases did.

    Args:
        run: The run.
        read_returned: A reader of the return values of steps; see `adapt_outputs`.
        is_earlier: Whether the program is known to be written for an earlier release; see `read_receivers`.
    """
    calls = CallbackCalls(run)
    run.read = partial(read_receivers, is_earlier=is_earlier)
    run.call_wrappers.append(calls)
    run.adapters += [calls.attach, partial(adapt, read_returned=read_returned)]


def adapt(run: Run, read_returned: ReadReturned | None = None) -> None:
    """Run receivers of earlier eras as their releases did; see `Run.adapters`.

    Raises:
        NotImplementedError: If several processes run, and the module overrides a set-up that has no place in the
            strategy.
    """
    announce_eras(run)
    if any(reading.kind is Receiver.CALLBACK for reading in run.hooks.readings):
        import_module("camshaft.compat.callback")  # so that they can call `super()`
    behaviour = behaviour_in(run)
    run.order = FitOrder(
        train_start_first=behaviour.train_start_comes_first, epoch_end_first=behaviour.epoch_ends_before_validation
    )
    if isinstance(run.metrics, MetricLog):
        run.metrics.takes_options = may_log_with_other_options(run)
    adapt_outputs(run, read_returned)
    _adapt_set_up(run)
    if run.optimization_factory is None:
        run.optimization_factory = EraOptimization()
    if getattr(run.strategy, "finds_unused_in", finds_unused) is None:
        run.strategy.finds_unused_in = finds_unused  # type: ignore[attr-defined]
    delegate(run.hooks, run.strategy)


def announce_eras(run: Run) -> None:
    """Print the receivers of earlier eras, and how their methods are called, on rank 0 and once for each class."""
    if run.strategy.global_rank != 0:
        return
    for reading in run.hooks.readings:
        text = describe(cast(EraReading, reading))
        if text not in _announced:
            _announced.add(text)
            print(text)


def finds_unused(module: nn.Module) -> bool:
    """Return whether a loss of a module may leave parameters unused: as the default of its era, and always with
    several optimizers, as each freezes the others' parameters."""
    return takes_index(module) or read_era(module, Receiver.MODULE).behaviour.finds_unused_parameters


class CallbackCalls:
    """A wrapper of callbacks' hooks that calls them as earlier eras did. It is one of `Run.call_wrappers`.

    The return value of `on_save_checkpoint` is the callback's state, unless it has a `state_dict`; an
    `on_load_checkpoint` that takes a state gets it, and is not called without one. As in every release of Lightning,
    callbacks' `on_save_checkpoint` is not called for a checkpoint of the weights alone. A `ModelSummary` is left out
    where the module has `summarize`.

    Args:
        run: The run of the callbacks.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._returned: dict[str, Any] = {}
        self._saves_weights_only = False

    def wrap_call(
        self, hook: str, kind: Receiver, receiver: object, function: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Return what is called in place of a receiver's hook: for all but these hooks of callbacks, the same."""
        if kind is not Receiver.CALLBACK:
            return function
        if hook == "on_save_checkpoint":
            return self._saving(receiver, function)
        if hook == "on_load_checkpoint" and takes_state(receiver):
            return self._loading(receiver, function)
        if hook != "on_fit_start" or not isinstance(receiver, ModelSummary):
            return function

        def on_fit_start(*arguments: Any, **keywords: Any) -> None:
            if self._run.hooks.summarize is None:
                function(*arguments, **keywords)

        return on_fit_start

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


def summarize(run: Run) -> None:
    """Call the module's `summarize` on rank 0, in place of a callback, and print its return value. Hooks: summarize.

    Its argument is the trainer's `weights_summary`, or "top" if the trainer has none; None summarizes nothing.
    """
    override = run.hooks.summarize
    mode = getattr(run.trainer, "weights_summary", "top")
    if override is None or mode is None or run.strategy.global_rank != 0:
        return
    if (summary := override(mode)) is not None:
        print(summary)


def _adapt_set_up(run: Run) -> None:
    """Call `prepare_data`, `summarize` and `restore_weights` as the module's era did.

    Before 1.0 data is prepared on rank 0 alone, unless the data module or module has `prepare_data_per_node`.
    """
    hooks, asked = run.hooks, [getattr(one, "prepare_data_per_node", None) for one in (run.data, run.module)]
    is_once = behaviour_in(run).era in MODULE_ONLY_ERAS and all(one is None for one in asked)
    if is_once and run.strategy.global_rank != 0 and hooks.prepare_data is not no_op:
        hooks.prepare_data = _do_nothing
    if run.verb == "fit" and hooks.restore_weights is not None:
        run.restores_weights = False

    def starting(fit_start: Callable[[], None]) -> Callable[[], None]:
        def started() -> None:
            summarize(run)
            if hooks.restore_weights is not None:
                hooks.restore_weights(run.module)
            fit_start()

        return started

    if hooks.summarize is not None or hooks.restore_weights is not None:
        hooks.wrap("on_fit_start", starting)


def _do_nothing() -> None:
    """Do nothing: rank 0 prepares the data."""

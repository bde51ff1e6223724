"""The adaptation of a run to receivers of earlier eras."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, cast

import attrs
from torch import nn

from camshaft.callbacks import ModelSummary
from camshaft.compat.eras.callback_states import ReturnedStates
from camshaft.compat.eras.evidence import takes_index
from camshaft.compat.eras.optimization import EraOptimization
from camshaft.compat.eras.outputs import ReadReturned, adapt_outputs
from camshaft.compat.eras.processes import delegate
from camshaft.compat.eras.reading import EraReading, read_era, read_receivers
from camshaft.compat.eras.releases import behaviour_in, may_log_with_other_options
from camshaft.compat.eras.report import describe
from camshaft.hooks_core import no_op
from camshaft.hooks_core.eras.hooks import MODULE_ONLY_ERAS
from camshaft.hooks_core.spec import Receiver
from camshaft.loops import FitOrder, Run
from camshaft.loops.metrics import MetricLog

_announced: set[str] = set()
"""The texts about classes that this process has printed."""


def extend(run: Run, read_returned: ReadReturned | None = None, *, is_earlier: bool = False) -> None:
    """Let a run, whose hooks are not resolved yet, call receivers of earlier eras as their releases did.

    Args:
        run: The run.
        read_returned: A reader of the return values of steps; see `adapt_outputs`.
        is_earlier: Whether the program is known to be written for an earlier release; see `read_receivers`.
    """
    states = ReturnedStates(run)
    run.read = partial(read_receivers, is_earlier=is_earlier)
    run.call_wrappers += [states, OwnSummary(run)]
    run.adapters += [states.attach, partial(adapt, read_returned=read_returned)]


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


@attrs.frozen
class OwnSummary:
    """A wrapper that leaves out a `ModelSummary` where the module has `summarize`; one of `Run.call_wrappers`.

    Args:
        run: The run of the module.
    """

    run: Run

    def wrap_call(
        self, hook: str, kind: Receiver, receiver: object, function: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Return what is called in place of a receiver's hook: for all but this one of summaries, the same."""
        if hook != "on_fit_start" or kind is not Receiver.CALLBACK or not isinstance(receiver, ModelSummary):
            return function

        def on_fit_start(*arguments: Any, **keywords: Any) -> None:
            if self.run.hooks.summarize is None:
                function(*arguments, **keywords)

        return on_fit_start


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

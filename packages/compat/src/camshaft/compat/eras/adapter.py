"""What puts all that runs earlier eras on a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from torch import nn

from camshaft.compat.eras.optimization import EraOptimization
from camshaft.compat.eras.outputs import adapt_outputs
from camshaft.compat.eras.processes import delegate
from camshaft.compat.eras.reading import EraReading, read_era
from camshaft.compat.eras.releases import behaviour_in
from camshaft.compat.eras.report import describe
from camshaft.hooks_core.catalogue import CATALOGUE
from camshaft.hooks_core.dispatch.binding import parameter_names
from camshaft.hooks_core.dispatch.implementation import implementation
from camshaft.hooks_core import no_op
from camshaft.hooks_core.spec import MODULE_ONLY_ERAS, Receiver
from camshaft.loops import FitOrder, Run

_announced: set[str] = set()
"""What was printed about classes in this process."""


def adapt(run: Run) -> None:
    """Run receivers of earlier eras as they were run then; see `Run.adapters`.

    Raises:
        NotImplementedError: If several processes run, and the module overrides a set-up that has no place in the
            strategy.
    """
    announce_eras(run)
    behaviour = behaviour_in(run)
    run.order = FitOrder(
        train_start_first=behaviour.train_start_comes_first, epoch_end_first=behaviour.epoch_ends_before_validation
    )
    adapt_outputs(run)
    _adapt_set_up(run)
    if run.optimization_factory is None:
        run.optimization_factory = EraOptimization()
    strategy = run.strategy
    if getattr(strategy, "finds_unused_in", finds_unused) is None:
        strategy.finds_unused_in = finds_unused  # type: ignore[attr-defined]
    delegate(run.hooks, strategy)


def announce_eras(run: Run) -> None:
    """Print which receivers belong to earlier eras, and how their methods are called: on the first process, and for
    each class once."""
    if run.strategy.global_rank != 0:
        return
    for reading in run.hooks.readings:
        text = describe(cast(EraReading, reading))
        if text not in _announced:
            _announced.add(text)
            print(text)


def finds_unused(module: nn.Module) -> bool:
    """Return whether a loss of a module may depend on some parameters only, where nobody says so: as its era had it,
    and with optimizers that take turns, since each freezes what is the others'."""
    step = implementation(module, "training_step")
    if step is not None and "optimizer_idx" in parameter_names(step):
        return True
    return read_era(module, Receiver.MODULE, CATALOGUE).behaviour.finds_unused_parameters


def summarize(run: Run) -> None:
    """Let the module summarize itself, on the first process, in place of what a callback shows. Hooks: summarize.

    It gets the trainer's `weights_summary` if it has one, and "top" otherwise; None summarizes nothing. What it returns
    is printed.
    """
    override = run.hooks.summarize
    mode = getattr(run.trainer, "weights_summary", "top")
    if override is None or mode is None or run.strategy.global_rank != 0:
        return
    summary = override(mode)
    if summary is not None:
        print(summary)


def _adapt_set_up(run: Run) -> None:
    """Prepare data where the module's era did, and let the module summarize itself and restore its weights.

    Before 1.0 data is prepared on the first of all processes, unless the attribute `prepare_data_per_node` of data
    module or module says otherwise.
    """
    hooks, asked = run.hooks, [getattr(one, "prepare_data_per_node", None) for one in (run.data, run.module)]
    is_once = behaviour_in(run).era in MODULE_ONLY_ERAS and all(one is None for one in asked)
    if is_once and run.strategy.global_rank != 0 and hooks.prepare_data is not no_op:
        hooks.prepare_data = _do_nothing
    if run.verb == "fit" and hooks.restore_weights is not None:
        run.restores_weights = False
    if hooks.summarize is None and hooks.restore_weights is None:
        return

    def starting(fit_start: Callable[[], None]) -> Callable[[], None]:
        def started() -> None:
            summarize(run)
            if hooks.restore_weights is not None:
                hooks.restore_weights(run.module)
            fit_start()

        return started

    hooks.wrap("on_fit_start", starting)


def _do_nothing() -> None:
    """The data is prepared by another process."""

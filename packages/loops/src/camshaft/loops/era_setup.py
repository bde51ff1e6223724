"""What modules of earlier eras override of a run's set-up."""

from __future__ import annotations

from camshaft.hooks_core.dispatch import nobody
from camshaft.hooks_core.eras.report import describe
from camshaft.hooks_core.messages import must_be
from camshaft.hooks_core.spec import MODULE_ONLY_ERAS
from camshaft.loops.optimizers import Optimization, read_configuration
from camshaft.loops.run import Run

_announced: set[str] = set()
"""What was printed about classes in this process."""


def announce_eras(run: Run) -> None:
    """Print which receivers belong to earlier eras, and how their methods are called: on the first process, and for
    each class once."""
    if run.strategy.global_rank != 0:
        return
    for reading in run.hooks.readings:
        text = describe(reading)
        if text not in _announced:
            _announced.add(text)
            print(text)


def prepare_data(run: Run) -> None:
    """Prepare the data on one process, while the others wait. Collective.

    That is the first process of each machine; for a module of an era before 1.0 the first of all. The attribute
    `prepare_data_per_node` of data module or module says otherwise. Hooks: prepare_data.
    """
    if run.hooks.prepare_data is nobody:
        return
    strategy, receivers = run.strategy, (run.data, run.module)
    asked = [getattr(receiver, "prepare_data_per_node", None) for receiver in receivers]
    asked = [one for one in asked if one is not None]
    is_per_node = any(asked) if asked else run.hooks.behaviour.era not in MODULE_ONLY_ERAS
    if (strategy.local_rank if is_per_node else strategy.global_rank) == 0:
        run.hooks.prepare_data()
    if strategy.world_size > 1:
        strategy.barrier()


def configure_optimizers(run: Run) -> Optimization:
    """The optimizers and schedulers, as the module's era makes them of what it configures.

    Hooks: configure_optimizers, init_optimizers.

    Raises:
        TypeError: If `init_optimizers` returns anything else than optimizers, schedulers and perhaps frequencies; or as
            `read_configuration` raises it.
        ValueError: As `read_configuration` raises it, or if there is not one frequency for each optimizer.
    """
    hooks, behaviour = run.hooks, run.hooks.behaviour
    assert hooks.configure_optimizers is not None
    is_manual = not getattr(run.module, "automatic_optimization", True)
    configured = hooks.configure_optimizers()
    if hooks.init_optimizers is None:
        return read_configuration(configured, behaviour, is_manual=is_manual)
    returned = hooks.init_optimizers(configured)
    where = f"{type(run.module).__qualname__}.init_optimizers"
    if not isinstance(returned, tuple) or len(returned) not in (2, 3):
        rule = "the optimizers and the schedulers, and perhaps the optimizers' frequencies"
        raise TypeError(must_be("return value", rule, returned, where, "Return a tuple of two lists, or of three."))
    optimizers, schedulers, *further = returned
    optimization = read_configuration((list(optimizers), list(schedulers or ())), behaviour, is_manual=is_manual)
    frequencies = [frequency for frequency in (further[0] if further else None) or () if frequency is not None]
    if frequencies and len(frequencies) != len(optimization.optimizers):
        rule = f"one for each of the {len(optimization.optimizers)} optimizers, or none"
        raise ValueError(must_be("frequencies", rule, further[0], where, "Return a list as long as the first."))
    optimization.frequencies = frequencies
    return optimization


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


def restore_weights(run: Run) -> None:
    """Let the module restore its weights before training, in place of the default. Hooks: restore_weights."""
    if run.hooks.restore_weights is not None:
        run.hooks.restore_weights(run.module)


def restores_itself(run: Run) -> bool:
    """Whether the module restores its weights itself before it is trained, also those of a checkpoint."""
    return run.verb == "fit" and run.hooks.restore_weights is not None

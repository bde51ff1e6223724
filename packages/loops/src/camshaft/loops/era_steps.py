"""What earlier eras do around the steps of a module: they end them with a hook, and log what they return."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from camshaft.hooks_core.dispatch import nobody
from camshaft.loops.returned_logs import log_returned
from camshaft.loops.run import Run

_BATCHES_BETWEEN_METRICS = 10
_STEPS = ("training_step", "validation_step", "test_step")

returned_readers: list[Callable[[Run, str, Any], Any]] = []
"""Who reads what steps return, before loops and hooks do, and gives what counts as returned: functions of the run, the
step's name and what it returned. Whoever imports what steps of an earlier era returned adds one; else there is none."""


def adapt_steps(run: Run) -> None:
    """Let the steps of a module of an earlier era end as they did there; those of a module of today stay as they are.

    After a step comes its end hook, with what the step returned; what that returns is used in its place, unless it is
    None. What a training step returned to be logged is logged, in the eras that do.

    Args:
        run: A run with its hooks resolved, whose steps nobody has bound yet.
    """
    hooks = run.hooks
    for name in _STEPS:
        end = getattr(hooks, f"{name}_end")
        if end is not None:
            hooks.wrap(name, partial(_ended, end=end))
        for read in returned_readers:
            hooks.wrap(name, partial(_read, read=partial(read, run, name)))
    if hooks.behaviour.returns_logs and run.metrics is not None:
        hooks.wrap("training_step", partial(_logged, run=run))
    if hooks.on_tng_metrics is not nobody:
        hooks.wrap("on_train_batch_end", partial(_showing_metrics, run=run))


def _ended(step: Callable[..., Any], end: Callable[[Any], Any]) -> Callable[..., Any]:
    def ended_step(*arguments: Any, **keywords: Any) -> Any:
        outputs = step(*arguments, **keywords)
        ended = end(outputs)
        return outputs if ended is None else ended

    return ended_step


def _read(step: Callable[..., Any], read: Callable[[Any], Any]) -> Callable[..., Any]:
    def read_step(*arguments: Any, **keywords: Any) -> Any:
        return read(step(*arguments, **keywords))

    return read_step


def _logged(step: Callable[..., Any], run: Run) -> Callable[..., Any]:
    def logged_step(*arguments: Any, **keywords: Any) -> Any:
        outputs = step(*arguments, **keywords)
        log_returned(run.metrics, outputs)
        return outputs

    return logged_step


def _showing_metrics(batch_end: Callable[..., Any], run: Run) -> Callable[..., Any]:
    """Let the module see, and add to, the metrics of every so many batches, as 0.4 did before it logged them."""
    every = int(getattr(run.trainer, "log_every_n_steps", 0) or _BATCHES_BETWEEN_METRICS)

    def shown_batch_end(outputs: Any, batch: Any, batch_idx: int) -> None:
        batch_end(outputs, batch, batch_idx)
        if batch_idx % every:
            return
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        known = {"loss": loss, "epoch": run.epoch, "batch_nb": batch_idx}
        known |= getattr(run.trainer, "progress_bar_metrics", {})
        metrics = dict(known)
        run.hooks.on_tng_metrics(metrics)
        added = {name: value for name, value in metrics.items() if name not in known or value is not known[name]}
        log_returned(run.metrics, {"log": added})

    return shown_batch_end

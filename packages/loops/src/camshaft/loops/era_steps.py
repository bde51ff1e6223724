"""What earlier eras do around the steps of a module: they end them with a hook, and log what they return."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from camshaft.loops.returned_logs import log_returned
from camshaft.loops.run import Run

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

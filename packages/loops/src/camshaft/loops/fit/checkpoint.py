"""Collecting a checkpoint of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from camshaft.hooks_core.dispatch.implementation import implementation
from camshaft.hooks_core.messages import noting
from camshaft.loops.fit.loop import FitLoop
from camshaft.loops.fit.resume import of_all_ranks
from camshaft.loops.state.callback_state import state_key
from camshaft.loops.state.run import Run


def collect(
    run: Run, loop: FitLoop | None, *, weights_only: bool = False, facts: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return a checkpoint of a run.

    Hooks: state_dict of callbacks and data module, on_save_checkpoint.

    Args:
        run: The run.
        loop: The loop that trains or trained the run's module; None if there is none to go on with.
        weights_only: Whether to leave out all that only resuming needs.
        facts: Further entries, there when `on_save_checkpoint` is called.
    """
    checkpoint: dict[str, Any] = {"epoch": 0, "global_step": 0, "state_dict": run.module.state_dict(), "loops": {}}
    checkpoint |= facts or {}
    if loop is not None:
        progress = loop.progress
        checkpoint["loops"] = loop.progress_state()
        checkpoint["epoch"] = max(progress.current_epoch - (not progress.is_inside_epoch), 0)
        checkpoint["global_step"] = progress.global_step
    if not weights_only:
        checkpoint["callbacks"] = _states_of_callbacks(run)
        if loop is not None:
            of_strategy = run.strategy.state_dict()
            if of_strategy:
                checkpoint["strategy"] = of_strategy
            configured = loop.optimization
            checkpoint["optimizer_states"] = [optimizer.state_dict() for optimizer in configured.optimizers]
            checkpoint["lr_schedulers"] = [config.scheduler.state_dict() for config in configured.schedulers]
            checkpoint |= of_all_ranks(loop.state_dict(run), run.strategy)
        save_data = implementation(run.data, "state_dict") if run.data is not None else None
        if save_data is not None:
            with noting(run.data, "state_dict", run.position):
                checkpoint["data"] = save_data()
    run.hooks.on_save_checkpoint(checkpoint)
    return checkpoint


def _states_of_callbacks(run: Run) -> dict[str, Any]:
    states: dict[str, Any] = {}
    for callback in run.callbacks:
        save = implementation(callback, "state_dict")
        if save is None:
            continue
        with noting(callback, "state_dict", run.position):
            states[state_key(callback)] = save()
    return states

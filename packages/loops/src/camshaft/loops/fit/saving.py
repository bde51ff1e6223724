"""A checkpoint of a run, with the part that each process has of its own."""

from __future__ import annotations

from collections.abc import Mapping
from operator import methodcaller
from typing import Any

import torch
from torch import Tensor

from camshaft.hooks_core.dispatch.implementation import implementation
from camshaft.hooks_core.protocols import Strategy
from camshaft.hooks_core.support.messages import note_errors
from camshaft.loops.fit.loop import FitLoop
from camshaft.loops.fit.save_only import LEFT_OUT_KEY, weights_left_out
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
    left_out = weights_left_out(run, [] if loop is None else loop.optimization.optimizers)
    if left_out:
        checkpoint["state_dict"] = {
            name: value for name, value in checkpoint["state_dict"].items() if name not in left_out
        }
        checkpoint[LEFT_OUT_KEY] = left_out
    checkpoint |= facts or {}
    if loop is not None:
        checkpoint["loops"] = {**checkpoint["loops"], **loop.progress_state()}
        checkpoint["epoch"] = loop.current_epoch
        checkpoint["global_step"] = loop.progress.global_step
    if not weights_only:
        checkpoint["callbacks"] = {}
        for callback in run.callbacks:
            save = implementation(callback, "state_dict")
            if save is not None:
                with note_errors(callback, "state_dict", run.position):
                    checkpoint["callbacks"][state_key(callback)] = save()
        if loop is not None:
            of_strategy, configured = run.strategy.state_dict(), loop.optimization
            if of_strategy:
                checkpoint["strategy"] = of_strategy
            state_of = getattr(run.strategy, "optimizer_state", methodcaller("state_dict"))
            checkpoint["optimizer_states"] = [state_of(optimizer) for optimizer in configured.optimizers]
            checkpoint["lr_schedulers"] = [config.scheduler.state_dict() for config in configured.schedulers]
            state = loop.state_dict(run)
            checkpoint |= (gather_rank_states if run.logical is None else run.logical.gathered)(state, run.strategy)
        save_data = implementation(run.data, "state_dict") if run.data is not None else None
        if save_data is not None:
            with note_errors(run.data, "state_dict", run.position):
                checkpoint["data"] = save_data()
    run.hooks.on_save_checkpoint(checkpoint)
    return checkpoint


def gather_rank_states(state: dict[str, Any], strategy: Strategy) -> dict[str, Any]:
    """Combine the states of all processes into one for the checkpoint. Collective.

    Gradients that are sharded, or the same everywhere, are kept once.

    Args:
        state: "fit" and "rng" of this process.
        strategy: Connects the processes.

    Returns:
        The first process's state and, with several processes, the states of all as "ranks".
    """
    if strategy.world_size == 1:
        return state
    gradients = state["fit"].get("gradients", {})
    own = _differing(gradients, strategy)
    of_rank = {**state, "fit": {**state["fit"], "gradients": {name: gradients[name].cpu() for name in own}}}
    of_rank["data_rank"] = strategy.data_rank
    ranks = strategy.all_gather(of_rank)
    shared = {name: gradient for name, gradient in gradients.items() if name not in own}
    return {**ranks[0], "fit": {**ranks[0]["fit"], "gradients": shared}, "ranks": ranks}


def _differing(gradients: dict[str, Tensor], strategy: Strategy) -> set[str]:
    """Return the names of gradients that differ between processes. Collective."""
    from torch.distributed.tensor import DTensor  # only several processes pay for its import

    whole = {name: gradient for name, gradient in gradients.items() if not isinstance(gradient, DTensor)}
    if not any(strategy.all_gather(bool(whole))):
        return set()
    first = strategy.broadcast({name: gradient.cpu() for name, gradient in whole.items()})
    mine = {name for name in whole if name not in first or not torch.equal(whole[name].cpu(), first[name])}
    return set().union(*strategy.all_gather(mine | (first.keys() - whole.keys()))) & whole.keys()

"""A checkpoint of a run, with the part that each process has of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import methodcaller
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from camshaft.hooks_core.dispatch.implementation import implementation
from camshaft.hooks_core.protocols import Strategy
from camshaft.hooks_core.support.messages import must_be, note_errors
from camshaft.loops.fit.resume import LEFT_OUT_KEY
from camshaft.loops.state.callback_state import state_key
from camshaft.loops.state.run import Run

if TYPE_CHECKING:
    from camshaft.loops.fit.loop import FitLoop


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


def weights_left_out(run: Run, optimizers: Sequence[Optimizer]) -> list[str]:
    """Return the names of the parameters that checkpoints of a run leave out; see `Run.save_only`."""
    save_only = run.save_only
    if save_only is None:
        return []
    parameters = list(run.module.named_parameters(remove_duplicate=False))
    if save_only != "trainable":
        return [name for name, _ in parameters if not save_only(name)]
    held = _held_by(optimizers)
    return [name for name, one in parameters if not one.requires_grad and id(one) not in held]


def check_save_only(run: Run, optimizers: Sequence[Optimizer]) -> None:
    """Raise `ValueError` if checkpoints would leave out a parameter that is trained, so that no run could go on."""
    lost = {*weights_left_out(run, optimizers)}
    held = _held_by(optimizers) if lost else set()
    for name, one in run.module.named_parameters(remove_duplicate=False):
        if name in lost and id(one) in held and one.requires_grad:
            rule, action = "true of every parameter that is trained", "Freeze it, or keep it."
            raise ValueError(must_be(f"save_only({name!r})", rule, False, "fit", action))


def _held_by(optimizers: Sequence[Optimizer]) -> set[int]:
    return {id(one) for optimizer in optimizers for group in optimizer.param_groups for one in group["params"]}


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

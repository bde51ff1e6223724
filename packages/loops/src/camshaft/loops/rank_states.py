"""The part of a checkpoint that each process has to itself: random numbers, places in the data, metrics in flight."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from camshaft.hooks_core.messages import must_be
from camshaft.hooks_core.protocols import Strategy
from camshaft.loops.progress import FitProgress
from camshaft.loops.random_state import derived_random_state


def of_all_ranks(state: dict[str, Any], strategy: Strategy) -> dict[str, Any]:
    """What all processes need to go on, made of what each of them needs. Collective.

    Gradients that are sharded, or the same everywhere, are kept once.

    Args:
        state: "fit" and "rng" of this process.
        strategy: Connects the processes.

    Returns:
        The first process's state and, with several processes, "ranks": the states of all.
    """
    if strategy.world_size == 1:
        return state
    gradients = state["fit"].get("gradients", {})
    own = _differing(gradients, strategy)
    of_rank = {**state, "fit": {**state["fit"], "gradients": {name: gradients[name].cpu() for name in own}}}
    ranks = strategy.all_gather(of_rank)
    shared = {name: gradient for name, gradient in gradients.items() if name not in own}
    return {**ranks[0], "fit": {**ranks[0]["fit"], "gradients": shared}, "ranks": ranks}


def of_this_rank(checkpoint: dict[str, Any], strategy: Strategy) -> dict[str, Any]:
    """A checkpoint as this process needs it to go on.

    With another number of processes than it was saved with, training goes on from the end of an epoch only: each
    process takes the random numbers of its like, and one that has none draws others from those of the first.

    Args:
        checkpoint: A checkpoint to resume from.
        strategy: Knows which process this is.

    Raises:
        ValueError: If it was saved inside an epoch, by another number of processes.
    """
    ranks = checkpoint.get("ranks", [{"fit": checkpoint["fit"], "rng": checkpoint["rng"]}])
    rank, size = strategy.global_rank, strategy.world_size
    if len(ranks) == size == 1:
        return checkpoint
    if len(ranks) != size:
        _check_at_epoch_end(checkpoint, len(ranks), size)
    own = ranks[rank if rank < len(ranks) else 0]
    fit = {**own["fit"]}
    if "gradients" in fit:
        fit["gradients"] = checkpoint["fit"]["gradients"] | fit["gradients"]
    rng = own["rng"] if rank < len(ranks) else derived_random_state(own["rng"], rank)
    return {**checkpoint, "fit": fit, "rng": rng}


def _check_at_epoch_end(checkpoint: dict[str, Any], num_then: int, num_now: int) -> None:
    progress = FitProgress()
    progress.load_state_dict(checkpoint["loops"]["fit"])
    if progress.is_inside_epoch:
        rule = f"that of the checkpoint ({num_then}), which was saved inside of epoch {progress.current_epoch}"
        action = "Use as many processes, or resume from a checkpoint that was saved at an epoch's end."
        raise ValueError(must_be("number of processes", rule, num_now, "fit", action))


def _differing(gradients: dict[str, Tensor], strategy: Strategy) -> set[str]:
    """Names of the gradients that each process has of its own. Collective."""
    from torch.distributed.tensor import DTensor  # only several processes pay for its import

    whole = {name: gradient for name, gradient in gradients.items() if not isinstance(gradient, DTensor)}
    if not any(strategy.all_gather(bool(whole))):
        return set()
    first = strategy.broadcast({name: gradient.cpu() for name, gradient in whole.items()})
    mine = {name for name in whole if name not in first or not torch.equal(whole[name].cpu(), first[name])}
    return set().union(*strategy.all_gather(mine | (first.keys() - whole.keys()))) & whole.keys()

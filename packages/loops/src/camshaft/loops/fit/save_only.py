"""Parameters that checkpoints of a run leave out on purpose, such as those of a frozen base; see `Run.save_only`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from camshaft.hooks_core.support.messages import must_be
from camshaft.loops.state.run import Run

LEFT_OUT_KEY = "weights_left_out"
"""Key of their names in a checkpoint."""


def weights_left_out(run: Run, optimizers: Sequence[Optimizer]) -> list[str]:
    """Return the names of the parameters that checkpoints of a run leave out; see `Run.save_only`.

    Args:
        run: The run.
        optimizers: The optimizers, whose parameters "trainable" keeps.
    """
    save_only = run.save_only
    if save_only is None:
        return []
    parameters = list(run.module.named_parameters(remove_duplicate=False))
    if save_only != "trainable":
        return [name for name, _ in parameters if not save_only(name)]
    held = _held_by(optimizers)
    return [name for name, one in parameters if not one.requires_grad and id(one) not in held]


def check_save_only(run: Run, optimizers: Sequence[Optimizer]) -> None:
    """Check that checkpoints leave out no parameter that is trained, so that a run can go on.

    Args:
        run: The run.
        optimizers: The optimizers that train it.

    Raises:
        ValueError: If they leave one out.
    """
    lost = {*weights_left_out(run, optimizers)}
    held = _held_by(optimizers) if lost else set()
    for name, one in run.module.named_parameters(remove_duplicate=False):
        if name in lost and id(one) in held and one.requires_grad:
            rule, action = "true of every parameter that is trained", "Freeze it, or keep it."
            raise ValueError(must_be(f"save_only({name!r})", rule, False, "fit", action))


def _held_by(optimizers: Sequence[Optimizer]) -> set[int]:
    return {id(one) for optimizer in optimizers for group in optimizer.param_groups for one in group["params"]}


def completed(weights: Mapping[str, Any], module: nn.Module, checkpoint: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return weights of a checkpoint, with the module's own in place of those that were left out on purpose."""
    left_out = checkpoint.get(LEFT_OUT_KEY)
    if not left_out:
        return weights
    own = module.state_dict()
    return {**{name: own[name] for name in left_out if name in own}, **weights}

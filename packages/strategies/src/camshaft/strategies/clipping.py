"""Clipping the gradients of an optimizer."""

from __future__ import annotations

from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import Optimizer

ALGORITHMS = ("norm", "value")


def clip_gradients(optimizer: Optimizer, clip_val: float, algorithm: str = "norm") -> None:
    """Clip the gradients of all parameters of an optimizer, in place.

    Args:
        optimizer: The optimizer.
        clip_val: The largest total 2-norm ("norm") or absolute value ("value").
        algorithm: "norm" or "value".

    Raises:
        ValueError: If the algorithm is neither.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if algorithm == "norm":
        clip_grad_norm_(parameters, clip_val)
    elif algorithm == "value":
        clip_grad_value_(parameters, clip_val)
    else:
        raise ValueError(
            f"`algorithm` must be 'norm' or 'value', but got {algorithm!r} ({type(algorithm).__name__}) in "
            "clip_gradients. Pass one of the two."
        )

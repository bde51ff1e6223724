"""Modules whose forward is replaced in place: recomputed during backward, or compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def checkpoint_activations(modules: Iterable[nn.Module]) -> None:
    """Let modules keep of what they compute only their inputs, and compute it again during backward.

    Random numbers, such as those of dropout, are the same then. The names of parameters stay as they are.

    Args:
        modules: The modules; their forward is replaced, in place.
    """
    for module in modules:
        module.forward = _checkpointed(module.forward)


def compile_forward(modules: Iterable[nn.Module], options: Mapping[str, Any]) -> None:
    """Compile the forward of modules, in place; what surrounds it, such as hooks, stays as it is.

    Args:
        modules: The modules.
        options: Arguments of `torch.compile`.
    """
    for module in modules:
        module.forward = torch.compile(module.forward, **options)


def _checkpointed(forward: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    return run

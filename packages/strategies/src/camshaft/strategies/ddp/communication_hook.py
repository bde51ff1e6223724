"""How processes exchange gradients, where that is somebody else's: DistributedDataParallel's communication hooks."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from camshaft.hooks_core.messages import must_be

_ACTION = "Pass one of torch.distributed.algorithms.ddp_comm_hooks, or a function of these two."
# What `torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook.PowerSGDState` remembers of earlier gradients.
_MEMORIES = ("error_dict", "p_memory_dict", "q_memory_dict")


def check_communication_hook(hook: Any, state: Any, where: str) -> None:
    """Raise unless a hook can be called as DistributedDataParallel does, and there is a hook if there is a state.

    Args:
        hook: A function of a state and a `torch.distributed.GradBucket`, which returns a future tensor; or None.
        state: Its state.
        where: How to call the strategy in an error.

    Raises:
        TypeError: If the hook cannot be called with two arguments.
        ValueError: If there is a state without a hook.
    """
    if hook is None:
        if state is not None:
            rule = "None if there is no `comm_hook`"
            raise ValueError(must_be("comm_state", rule, state, where, "Pass the hook that it belongs to."))
        return
    rule = "a function of (state, bucket)"
    if not callable(hook):
        raise TypeError(must_be("comm_hook", rule, hook, where, _ACTION))
    try:
        inspect.signature(hook).bind(None, None)
    except TypeError as error:
        raise TypeError(must_be("comm_hook", rule, hook, where, _ACTION)) from error
    except ValueError:
        return  # written in C: its signature is not known


def register_communication_hook(ddp: DistributedDataParallel, hook: Callable[..., Any], state: Any) -> None:
    """Let a hook exchange the gradients of a wrapped module; what its state remembers of another one is forgotten.

    Args:
        ddp: The wrapped module, which has no hook yet.
        hook: The hook.
        state: Its state.
    """
    forget_gradients(state, buckets_change=True)

    # It is registered without its annotations and its name: torch takes no annotations that are strings, no partial
    # functions, and no compression to bfloat16 without NCCL, which gloo can do as well.
    def communicate(state: Any, bucket: Any) -> Any:
        return hook(state, bucket)

    communicate.__annotations__.clear()
    ddp.register_comm_hook(state, communicate)


def forget_gradients(state: Any, *, buckets_change: bool = False) -> None:
    """Let PowerSGD forget what it remembers of earlier gradients; other states stay as they are.

    An overflow would stay in its memory for ever, and other buckets do not fit to it.

    Args:
        state: The state of a hook.
        buckets_change: Whether the buckets are about to change; it then begins anew, after its first iterations.
    """
    if not is_power_sgd(state):
        return
    for memory in _MEMORIES:
        getattr(state, memory).clear()
    if buckets_change:
        state.iter = 0


def is_power_sgd(state: Any) -> bool:
    """Whether a hook's state is one of PowerSGD's."""
    return all(hasattr(state, memory) for memory in (*_MEMORIES, "iter"))

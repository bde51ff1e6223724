"""Wrapping a module by a function of somebody else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from camshaft.hooks_core.messages import must_be
from camshaft.strategies.ddp.communication_hook import register_communication_hook
from camshaft.strategies.ddp.ddp_arguments import DDPArguments

_ACTION = (
    "Return torch.nn.parallel.DistributedDataParallel(model, device_ids=device_ids, ...), or what the strategy makes."
)


class WrapModule(Protocol):
    """Makes the DistributedDataParallel of a module, in place of a strategy."""

    def __call__(
        self, wrap: Callable[[nn.Module], nn.Module], module: nn.Module, device_ids: list[int] | None, /
    ) -> nn.Module:
        """Return what wraps a module. Collective.

        Args:
            wrap: Wraps it as the strategy would.
            module: What is to be wrapped: its forward runs the steps.
            device_ids: A list with the index of this process's GPU; None on a CPU.
        """


def wrap_by(
    wrap: WrapModule,
    default: Callable[[nn.Module], DistributedDataParallel],
    arguments: DDPArguments,
    device: torch.device,
    steps: nn.Module,
) -> DistributedDataParallel:
    """Let somebody else wrap a module. Collective.

    Args:
        wrap: Who does.
        default: Wraps it as it would be otherwise.
        arguments: What the strategy was told. What is made must agree with all that is not left at its default; the
            communication hook is put on it.
        device: Where the module is.
        steps: The module.

    Raises:
        TypeError: If what is made is no DistributedDataParallel, or its forward does not call the module's.
        ValueError: If it wraps another module, or disagrees with the arguments.
        Exception: Whatever `wrap` raises.
    """
    by_default: list[nn.Module] = []

    def wrap_by_default(module: nn.Module) -> nn.Module:
        by_default.append(default(module))
        return by_default[-1]

    device_ids = None if device.index is None or device.type == "cpu" else [device.index]
    ddp = wrap(wrap_by_default, steps, device_ids)
    where = getattr(wrap, "__qualname__", type(wrap).__qualname__)
    if not isinstance(ddp, DistributedDataParallel):
        rule = "a torch.nn.parallel.DistributedDataParallel"
        raise TypeError(must_be("return value", rule, type(ddp), where, _ACTION))
    if ddp.module is not steps:
        rule = "a DistributedDataParallel of the `model` that it got, whose forward runs the steps"
        raise ValueError(must_be("return value", rule, type(ddp.module), where, _ACTION))
    _check_forward(ddp, steps)
    if not any(ddp is one for one in by_default):
        arguments.check_agrees(ddp)
        if arguments.comm_hook is not None:
            register_communication_hook(ddp, arguments.comm_hook, arguments.comm_state)
    return ddp


def _check_forward(ddp: DistributedDataParallel, steps: nn.Module) -> None:
    """Notice the forward of a subclass that calls a step by itself, with arguments that it does not understand."""
    if type(ddp).forward is DistributedDataParallel.forward:
        return
    expected = object()
    syncs, ddp.require_forward_param_sync = ddp.require_forward_param_sync, False
    reason: Exception | None = None
    found: object = None
    try:
        with torch.no_grad():
            found = ddp(lambda: expected)
    except Exception as error:
        reason = error
    finally:
        ddp.require_forward_param_sync = syncs
    if found is not expected:
        rule = f"one that passes its arguments on to the forward of `module` ({type(steps).__name__}), as super's does"
        action = "Leave its forward out, which runs the step that is due by itself."
        raise TypeError(must_be("forward", rule, type(ddp).forward, type(ddp).__qualname__, action)) from reason

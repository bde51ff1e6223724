"""What a module of 1.0 calls to step an optimizer by hand, and what is said where 1.1 would have zeroed gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import CodeType, FunctionType
from typing import Any

import torch
from torch.optim import LBFGS, Optimizer

from camshaft.hooks_core.eras import TODAY
from camshaft.hooks_core.messages import must_be
from camshaft.hooks_core.user_warnings import warn_user
from camshaft.loops.era_arguments import is_under_autocast, with_arguments

_told: set[type] = set()
"""Classes about which a warning was given in this process."""


def step_by_hand(
    module: Any,
    optimizer: Optimizer,
    make_optimizer_step: bool | None,
    closure: Callable[[], Any] | None,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> None:
    """Do what `manual_optimizer_step` says; see there."""
    trainer = module.trainer
    if module.automatic_optimization:
        where = f"{type(module).__qualname__}.manual_optimizer_step"
        action = "Set it in `__init__`, or return the loss from `training_step`."
        raise RuntimeError(must_be("automatic_optimization", "False", True, where, action))
    if make_optimizer_step is not None and not make_optimizer_step:
        if closure is not None:
            with torch.enable_grad():
                closure()
        return
    own_step = with_arguments(
        trainer.hooks,
        "optimizer_step",
        optimizer_idx=None,
        on_tpu=False,
        using_native_amp=is_under_autocast(trainer.strategy),
        using_lbfgs=isinstance(optimizer, LBFGS),
    )
    if own_step is not None:
        own_step(trainer.current_epoch, trainer.batch_idx, optimizer, closure or _do_nothing)
    else:
        step: Any = optimizer.step
        step(*args, **(kwargs if closure is None else {**kwargs, "closure": closure}))
    optimizer.zero_grad()


def tell_of_zeroing(module: Any) -> None:
    """Warn once of a class that passes optimizers to `manual_backward`, as up to 1.1, and zeroes gradients nowhere.

    There is no need to in 1.1, whose steps did. A class that declares its era has decided.
    """
    kind = type(module)
    if kind in _told or module.trainer.hooks.behaviour is not TODAY:
        return
    _told.add(kind)
    if not any(_mentions(one.__code__, "zero_grad") for one in _functions(kind)):
        warn_user(
            f"{kind.__qualname__} optimizes by hand and zeroes gradients nowhere, so they add up from step to step. "
            'If it was written for 1.1, where `optimizer.step()` zeroed them, declare it: `hook_era = "1.1"`.'
        )


def _functions(kind: type) -> list[FunctionType]:
    """The functions that a class and those that it inherits from define, without those of camshaft and torch."""
    own = [one for one in kind.__mro__ if one.__module__.partition(".")[0] not in ("camshaft", "torch", "builtins")]
    return [value for one in own for value in vars(one).values() if isinstance(value, FunctionType)]


def _mentions(code: CodeType, name: str) -> bool:
    return name in code.co_names or any(
        _mentions(inner, name) for inner in code.co_consts if isinstance(inner, CodeType)
    )


def _do_nothing() -> None:
    """There are gradients already."""

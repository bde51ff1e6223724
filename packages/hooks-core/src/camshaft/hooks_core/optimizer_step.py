"""The step of an optimizer: what it needs, and how another one takes its place."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from types import MethodType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.optim import Optimizer


def needs_closure(optimizer: Optimizer) -> bool:
    """Whether an optimizer evaluates the loss itself, by a closure that it calls as often as it likes (LBFGS does)."""
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def replace_step(
    optimizer: Optimizer, around: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Callable[[], None]:
    """Put a step in the place of an optimizer's own. It has that one's name and signature.

    Args:
        optimizer: The optimizer.
        around: Gets the step that is replaced, and returns a function that gets the optimizer and the arguments.

    Returns:
        Gives the optimizer its step back; does nothing where somebody replaced the new one since.
    """
    original, was_replaced = optimizer.step, "step" in vars(optimizer)  # as a learning-rate scheduler does
    # Schedulers wrap the function of a bound method, and mark what they wrapped by an attribute.
    step = wraps(getattr(original, "__func__", original))(around(original))
    step.__signature__ = _with_self(original)  # type: ignore[attr-defined]
    replacement = MethodType(step, optimizer)
    optimizer.step = replacement  # type: ignore[method-assign]

    def restore() -> None:
        if vars(optimizer).get("step") is not replacement:
            return
        if was_replaced:
            optimizer.step = original  # type: ignore[method-assign]
        else:
            del optimizer.step

    return restore


def _with_self(bound: Callable[..., Any]) -> inspect.Signature:
    """A callable's signature with a first parameter, which a bound method drops again."""
    signature = inspect.signature(bound)
    parameters = list(signature.parameters.values())
    if not parameters or parameters[0].name != "self":
        parameters.insert(0, inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD))
    return signature.replace(parameters=parameters)

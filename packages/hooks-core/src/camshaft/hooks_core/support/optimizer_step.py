"""Steps of optimizers: whether they need a closure, and replacement of a step by another."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import wraps
from types import MethodType
from typing import TYPE_CHECKING, Any

from camshaft.hooks_core.dispatch.implementation import uses_parameter

if TYPE_CHECKING:
    from torch.optim import Optimizer


def needs_closure(optimizer: Optimizer) -> bool:
    """Return whether an optimizer evaluates the loss itself, by a closure called repeatedly, as LBFGS does."""
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def accepts_closure(step: Callable[..., Any]) -> bool:
    """Return whether a step can be given `closure=`, as one with such a parameter or with `**kwargs` can."""
    try:
        parameters = inspect.signature(step).parameters
    except (TypeError, ValueError):  # a builtin without a signature
        return False
    kinds = [parameter.kind for parameter in parameters.values()]
    return "closure" in parameters or inspect.Parameter.VAR_KEYWORD in kinds


def steps_with_closure(optimizer: Optimizer) -> bool:
    """Return whether an optimizer's step is to get the closure that evaluates the loss and its gradients.

    True for one that needs it, and for one that is not torch's own and uses what it gets: it may evaluate the loss
    again, or first move the weights. The steps of torch's own do the same without as with a closure that was called,
    and so do those of optimizers with a true attribute `calls_closure_first`.
    """
    if needs_closure(optimizer):
        return True
    if getattr(optimizer, "calls_closure_first", False) or not accepts_closure(optimizer.step):
        return False
    # torch's own step, also under what torch or camshaft put around it, by the modules of their code:
    # `functools.wraps` gives a function the `__module__` of another
    layers = list(_layers(optimizer.step))
    modules = [str(getattr(layer, "__globals__", {}).get("__name__")) for layer in layers]
    packages = [module.partition(".")[0] for module in modules]
    if packages[-1] == "torch" and set(packages) <= {"torch", "camshaft"}:
        return False
    is_passed_on = "closure" not in inspect.signature(layers[-1]).parameters  # among others
    return is_passed_on or uses_parameter(layers[-1], "closure")


def replace_step(
    optimizer: Optimizer, around: Callable[[Callable[..., Any]], Callable[..., Any]], name: str = "step"
) -> Callable[[], None]:
    """Replace an optimizer's step, or another method, by one of the same name and signature.

    Args:
        optimizer: The optimizer.
        around: Gets the method that is replaced, and returns a function that gets the optimizer and the arguments.
        name: The name of the method.

    Returns:
        A function that restores the optimizer's method; it does nothing where the new one was replaced since.
    """
    original, was_replaced = getattr(optimizer, name), name in vars(optimizer)  # as a learning-rate scheduler does
    # Schedulers wrap the function of a bound method, and mark what they wrapped by an attribute.
    step = wraps(getattr(original, "__func__", original))(around(original))
    step.__signature__ = _with_self(original)  # type: ignore[attr-defined]
    replacement = MethodType(step, optimizer)
    vars(optimizer)[name] = replacement  # a wrapper may set attributes on what it wraps

    def restore() -> None:
        if vars(optimizer).get(name) is not replacement:
            return
        if was_replaced:
            vars(optimizer)[name] = original
        else:
            del vars(optimizer)[name]

    return restore


def _with_self(bound: Callable[..., Any]) -> inspect.Signature:
    """Return a callable's signature with a first parameter, which a bound method drops again."""
    signature = inspect.signature(bound)
    parameters = list(signature.parameters.values())
    if not parameters or parameters[0].name != "self":
        parameters.insert(0, inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD))
    return signature.replace(parameters=parameters)


def _layers(step: Any) -> Iterator[Any]:
    """Yield a step and, layer by layer, the functions that `functools.wraps` says it wraps."""
    yield getattr(step, "__func__", step)
    while hasattr(step, "__wrapped__"):
        step = step.__wrapped__
        yield getattr(step, "__func__", step)

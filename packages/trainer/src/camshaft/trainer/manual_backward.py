"""What `manual_backward` passes on to `loss.backward`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from camshaft.hooks_core.messages import must_be
from camshaft.loops.step_outputs import LossError, check_loss


def backward_with(
    module: object, args: Sequence[Any], kwargs: Mapping[str, Any], override: Callable[..., Any] | None
) -> Callable[..., Any] | None:
    """What differentiates a loss that `manual_backward` got with further arguments.

    Args:
        module: The module.
        args: These arguments.
        kwargs: Those that were passed by name.
        override: The module's own `backward`, if it has one.

    Raises:
        TypeError: If any are left for an override.
    """
    if not args and not kwargs:
        return override
    if override is not None:
        where = f"{type(module).__qualname__}.manual_backward"
        action = "Call `loss.backward` with them in `backward` itself."
        raise TypeError(
            must_be(
                "arguments of `loss.backward`",
                "left out where `backward` is overridden",
                kwargs or args,
                where,
                action,
            )
        )

    def backward(loss: Tensor) -> None:
        loss.backward(*args, **kwargs)  # type: ignore[no-untyped-call]

    return backward


def explain_manual(loss: Tensor, module: object, error: RuntimeError) -> None:
    """Say more of an error of `manual_backward`, if the loss is to blame."""
    try:
        check_loss(loss, "`manual_backward` must be called in `training_step` with", type(module).__qualname__)
    except LossError as of_loss:
        raise of_loss from error

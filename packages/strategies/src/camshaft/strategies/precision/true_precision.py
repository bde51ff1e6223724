"""Computing in one number format: the module, the batches and what the steps make are all of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.optim import Optimizer

from camshaft.hooks_core.messages import must_be
from camshaft.hooks_core.transfer import map_nested

_CONVERTED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Precision:
    """The precision of modules as they are made ("32-true"), and what all precisions have in common.

    Attributes:
        name: The name by which it is chosen.
        param_dtype: What parameters are; None leaves every parameter as it was made.
        autocast_dtype: What autocast computes in; None where there is no autocast.
        has_skipped_step: Whether the latest step of an optimizer left the weights as they were.
        agree: Takes whether gradients of this process overflowed, and returns whether those of any did. Collective. A
            strategy that shards gradients sets it; None where all processes have the same gradients.
    """

    name = "32-true"
    param_dtype: torch.dtype | None = None
    autocast_dtype: torch.dtype | None = None
    has_skipped_step = False
    agree: Callable[[bool], bool] | None = None

    def convert_module(self, module: nn.Module) -> None:
        """Bring a module's floating-point parameters and buffers into `param_dtype`, in place."""

    def wrap_step(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """A step that computes in this precision."""
        return step

    def backward(self, loss: Tensor, differentiate: Callable[[Tensor], Any] | None = None) -> None:
        """Differentiate a scalar loss.

        Args:
            loss: The loss.
            differentiate: Who does it, such as a module's own `backward`; None calls `loss.backward()`.
        """
        if differentiate is None:
            loss.backward()  # type: ignore[no-untyped-call]
        else:
            differentiate(loss)

    def setup_optimizer(self, optimizer: Optimizer) -> None:
        """Make an optimizer step in this precision."""

    def unscale(self, optimizer: Optimizer) -> None:
        """Give an optimizer's gradients their true size, unless they have it. Once per update, before its step."""

    def state_dict(self) -> dict[str, Any]:
        """What was learned, as plain values."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with it; the state of another precision changes nothing."""

    def release(self) -> None:
        """Leave the optimizers as they were."""


class TruePrecision(Precision):
    """Everything in one number format: the module, floating-point inputs of steps, and tensors that steps make.

    What steps return stays as it is.

    Args:
        param_dtype: The format: `torch.bfloat16`, `torch.float16` or `torch.float64`.

    Raises:
        ValueError: If it is none of these.
    """

    param_dtype: torch.dtype

    def __init__(self, param_dtype: torch.dtype) -> None:
        names = {torch.bfloat16: "bf16-true", torch.float16: "16-true", torch.float64: "64-true"}
        if param_dtype not in names:
            rule = "torch.bfloat16, torch.float16 or torch.float64"
            action = "Pass one of these, or precision='32-true'."
            raise ValueError(must_be("param_dtype", rule, param_dtype, "TruePrecision", action))
        self.name = names[param_dtype]
        self.param_dtype = param_dtype

    def convert_module(self, module: nn.Module) -> None:
        """Bring a module's floating-point parameters and buffers into the format, in place; complex ones stay."""
        if self.param_dtype == torch.float64:
            module.double()
        elif self.param_dtype == torch.bfloat16:
            module.bfloat16()
        else:
            module.half()

    def wrap_step(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """A step whose floating-point inputs and default dtype are of the format."""
        dtype = self.param_dtype

        def run(*args: Any, **kwargs: Any) -> Any:
            args = tuple([_convert(item, dtype) for item in args])
            kwargs = {name: _convert(item, dtype) for name, item in kwargs.items()}
            outer = torch.get_default_dtype()
            torch.set_default_dtype(dtype)
            try:
                return step(*args, **kwargs)
            finally:
                torch.set_default_dtype(outer)

        return run


def _convert(value: Any, dtype: torch.dtype) -> Any:
    """A value of any nesting with its floating-point tensors in another format."""

    def convert(leaf: Any) -> Any:
        held = leaf if isinstance(leaf, Tensor) else leaf.data
        return leaf.to(dtype) if held.dtype in _CONVERTED else leaf

    return map_nested(value, _is_convertible, convert)


def _is_convertible(value: Any) -> bool:
    return isinstance(value, (Tensor, PackedSequence))

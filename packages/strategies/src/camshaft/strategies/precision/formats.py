"""Number formats by name: as modules are made, one format for everything, or autocast."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.optim import Optimizer

from camshaft.hooks_core.support.messages import must_be
from camshaft.hooks_core.support.transfer import map_nested
from camshaft.strategies.checks import require

TRUE_DTYPES = {"bf16-true": torch.bfloat16, "16-true": torch.float16, "64-true": torch.float64}
SCALER_STATE = "gradient_scaler"
"""Key of the gradient scaler's state."""

_CONVERTED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Precision:
    """The precision of modules as they are made ("32-true"), and the base class of all precisions.

    Attributes:
        name: The name that `choose_precision` takes.
        param_dtype: The dtype of parameters; None leaves each unchanged.
        autocast_dtype: The dtype of autocast; None without autocast.
        has_skipped_step: Whether the latest step of an optimizer was skipped.
        agree: Takes a tensor that is above 0 if gradients of this rank overflowed, and returns whether those of any
            rank did. Collective. A strategy that shards gradients sets it; None if all ranks have the same gradients.
    """

    name = "32-true"
    param_dtype: torch.dtype | None = None
    autocast_dtype: torch.dtype | None = None
    has_skipped_step = False
    agree: Callable[[Tensor], bool] | None = None

    @property
    def precision(self) -> str:
        """The `name`, as Lightning has it."""
        return self.name

    def convert_module(self, module: nn.Module) -> None:
        """Bring a module's floating-point parameters and buffers into `param_dtype`, in place."""

    def wrap_step(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Return a step that computes in this precision."""
        return step

    def backward(self, loss: Tensor, differentiate: Callable[[Tensor], Any] | None = None) -> None:
        """Differentiate a scalar loss.

        Args:
            loss: The loss.
            differentiate: Called with the loss, such as a module's own `backward`; None calls `loss.backward()`.
        """
        if differentiate is None:
            loss.backward()  # type: ignore[no-untyped-call]
        else:
            differentiate(loss)

    def setup_optimizer(self, optimizer: Optimizer) -> None:
        """Make an optimizer step in this precision."""

    def unscale(self, optimizer: Optimizer) -> None:
        """Unscale an optimizer's gradients, unless that is done. Call it once per update, before the step."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state, such as the loss scale, as plain values."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state; that of another precision is ignored."""

    def release(self) -> None:
        """Restore the optimizers."""


def scale_in(state: Mapping[str, Any]) -> float:
    """Return the scale of gradients by a state that `Precision.state_dict` returned: 1 where they have none."""
    return float(state.get(SCALER_STATE, {}).get("scale", 1.0))


class TruePrecision(Precision):
    """One number format for the module, floating-point inputs of steps, and tensors that steps create.

    Outputs of steps stay as they are.

    Args:
        param_dtype: The format: `torch.bfloat16`, `torch.float16` or `torch.float64`.

    Raises:
        ValueError: If it is none of these.
    """

    param_dtype: torch.dtype

    def __init__(self, param_dtype: torch.dtype) -> None:
        rule, is_known = "torch.bfloat16, torch.float16 or torch.float64", param_dtype in TRUE_DTYPES.values()
        require(is_known, "param_dtype", rule, param_dtype, "TruePrecision", "Pass one, or precision='32-true'.")
        self.name = next(name for name, dtype in TRUE_DTYPES.items() if dtype == param_dtype)
        self.param_dtype = param_dtype

    def convert_module(self, module: nn.Module) -> None:
        """Bring a module's floating-point parameters and buffers into the format, in place; complex ones stay."""
        convert = {torch.float64: module.double, torch.bfloat16: module.bfloat16, torch.float16: module.half}
        convert[self.param_dtype]()

    def wrap_step(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Return a step whose floating-point inputs and default dtype have the format."""
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
    """Convert the floating-point tensors of a value of any nesting."""

    def convert(leaf: Any) -> Any:
        data = leaf if isinstance(leaf, Tensor) else leaf.data
        return leaf.to(dtype) if data.dtype in _CONVERTED else leaf

    return map_nested(value, lambda leaf: isinstance(leaf, (Tensor, PackedSequence)), convert)


class AutocastPrecision(Precision):
    """Mixed precision: parameters stay as they are made, and steps run under `torch.autocast`.

    Gradients are computed outside of autocast, also in manual optimization.

    Args:
        device_type: Type of the device, such as "cuda".
        autocast_dtype: The dtype of autocast.

    Raises:
        ValueError: If torch has no autocast for the device type.
    """

    name = "bf16-mixed"
    autocast_dtype: torch.dtype

    def __init__(self, device_type: str, autocast_dtype: torch.dtype = torch.bfloat16) -> None:
        rule, action = f"a device type with autocast for precision={self.name!r}", "Pass '32-true' or 'bf16-true'."
        is_available = torch.amp.is_autocast_available(device_type)
        require(is_available, "device", rule, device_type, type(self).__name__, action)
        self.device_type = device_type
        self.autocast_dtype = autocast_dtype

    @property
    def device(self) -> str:
        """The `device_type`, as Lightning names it."""
        return self.device_type

    def convert_module(self, module: nn.Module) -> None:
        """Leave the module as it is.

        Raises:
            RuntimeError: If the device lacks the autocast dtype, or only emulates it.
        """
        if not _has(self.device_type, self.autocast_dtype):
            rule, action = f"one whose dtype this {self.device_type} device has", "Pass '32-true', or another '-mixed'."
            raise RuntimeError(must_be("precision", rule, self.name, type(self).__name__, action))

    def wrap_step(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Return a step under autocast."""
        device_type, dtype = self.device_type, self.autocast_dtype

        def run(*args: Any, **kwargs: Any) -> Any:
            # Uses of a weight that shared one cached cast would add up their gradients in the cast's dtype.
            with torch.autocast(device_type, dtype, cache_enabled=False):
                return step(*args, **kwargs)

        return run

    def backward(self, loss: Tensor, differentiate: Callable[[Tensor], Any] | None = None) -> None:
        """Differentiate a scalar loss, outside of autocast.

        Each gradient is then computed in the dtype of its operation's forward, as torch.autocast recommends. Under
        autocast, gradients of matrix products that ran in full precision would have lower precision.
        """
        if torch.is_autocast_enabled(self.device_type):  # manual optimization, within a step
            with torch.autocast(self.device_type, enabled=False):
                super().backward(loss, differentiate)
        else:
            super().backward(loss, differentiate)


def _has(device_type: str, dtype: torch.dtype) -> bool:
    """Return whether a device computes in a dtype under autocast by itself, as far as its module tells."""
    module: Any = torch.get_device_module(device_type)
    dtypes = getattr(module, "get_amp_supported_dtype", None)
    if dtypes is not None and dtype not in dtypes():
        return False
    has_bf16 = getattr(module, "is_bf16_supported", None)
    if has_bf16 is None or dtype != torch.bfloat16:
        return True
    knows_emulation = "including_emulation" in signature(has_bf16).parameters  # modules of other vendors do not
    return bool(has_bf16(including_emulation=False) if knows_emulation else has_bf16())

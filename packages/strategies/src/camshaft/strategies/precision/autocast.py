"""Mixed precision: parameters stay as they are, and autocast chooses the number format of each operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from camshaft.hooks_core.messages import must_be
from camshaft.strategies.precision.true_precision import Precision


class AutocastPrecision(Precision):
    """Steps run under `torch.autocast`; gradients are computed outside of it, also where a step asks for them.

    Args:
        device_type: Kind of the device that computes, such as "cuda".
        autocast_dtype: What autocast computes in.

    Raises:
        ValueError: If torch has no autocast for the kind of device.
    """

    name = "bf16-mixed"
    autocast_dtype: torch.dtype

    def __init__(self, device_type: str, autocast_dtype: torch.dtype = torch.bfloat16) -> None:
        if not torch.amp.is_autocast_available(device_type):
            rule = f"a kind of device with autocast for precision={self.name!r}"
            action = "Pass precision='32-true' or 'bf16-true'."
            raise ValueError(must_be("device", rule, device_type, type(self).__name__, action))
        self.device_type = device_type
        self.autocast_dtype = autocast_dtype

    def convert_module(self, module: nn.Module) -> None:
        """Leave the module as it is, and check that the device computes in bfloat16, where that is asked for.

        Raises:
            RuntimeError: If it does not.
        """
        if self.device_type == "cuda" and self.autocast_dtype == torch.bfloat16 and not torch.cuda.is_bf16_supported():
            rule = "'16-mixed' or '32-true' on a GPU without bfloat16"
            raise RuntimeError(must_be("precision", rule, self.name, type(self).__name__, "Pass one of these."))

    def wrap_step(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """A step under autocast."""
        device_type, dtype = self.device_type, self.autocast_dtype

        def run(*args: Any, **kwargs: Any) -> Any:
            with torch.autocast(device_type, dtype):
                return step(*args, **kwargs)

        return run

    def backward(self, loss: Tensor, differentiate: Callable[[Tensor], Any] | None = None) -> None:
        """Differentiate a scalar loss, outside of autocast.

        Each gradient is then computed in the format of its operation's forward, as torch.autocast recommends; under
        autocast, matrix products that ran in full precision would not be.
        """
        if torch.is_autocast_enabled(self.device_type):  # manual optimization: inside of a step
            with torch.autocast(self.device_type, enabled=False):
                super().backward(loss, differentiate)
        else:
            super().backward(loss, differentiate)

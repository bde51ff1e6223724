"""The norms of gradients, with the methods by which modules of earlier releases change them."""

from __future__ import annotations

from typing import Any

from camshaft.hooks_core import is_overridden
from camshaft.trainer import GradientNorms


class EarlierGradientNorms(GradientNorms):
    """Logs what `grad_norm` of the module returns, if it overrides that, and through `log_grad_norm`, if it does that.

    Args:
        norm_type: As of `GradientNorms`.

    Raises:
        ValueError: As of `GradientNorms`.
    """

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        """Log, if it is due; at every update where the module decides."""
        if not is_overridden(module, "log_grad_norm"):
            super().on_before_optimizer_step(trainer, module, optimizer)
        elif norms := self.norms(module, optimizer):
            module.log_grad_norm(norms)

    def norms(self, module: Any, optimizer: Any) -> dict[str, Any]:
        """Return the norms by the names to log them under."""
        if is_overridden(module, "grad_norm"):
            return dict(module.grad_norm(self.norm_type))
        return super().norms(module, optimizer)

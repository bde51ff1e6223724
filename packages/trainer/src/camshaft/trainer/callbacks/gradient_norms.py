"""Logging the norms of gradients."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from camshaft.hooks_core import Callback
from camshaft.hooks_core.support.messages import must_be


class GradientNorms(Callback):
    """Logs the norm of each parameter's gradient and of all together, before they are clipped.

    Under `grad_<p>_norm/<parameter>` and `grad_<p>_norm_total`, straight to the loggers, at those updates after which
    the trainer logs the values of steps. Collective where parameters are sharded.

    Args:
        norm_type: The p of the p-norm; infinite, or "inf", for the largest absolute value.

    Raises:
        ValueError: If it is no positive number.
    """

    def __init__(self, norm_type: float | str = 2.0) -> None:
        try:
            self.norm_type = float(norm_type)
        except (TypeError, ValueError):
            self.norm_type = math.nan
        if isinstance(norm_type, bool) or not self.norm_type > 0:
            rule, where = "a positive number or 'inf'", type(self).__name__
            raise ValueError(must_be("norm_type", rule, norm_type, where, "Pass 2 for the Euclidean norm."))

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        """Log, if it is due."""
        every = trainer.log_every_n_steps
        if not every or not trainer.loggers or (trainer.global_step + 1) % every:
            return
        numbers = self.norms(module, optimizer)
        for logger in trainer.loggers if numbers else ():
            logger.log_metrics(metrics=numbers, step=trainer.global_step)

    def norms(self, module: Any, optimizer: Any) -> dict[str, float]:
        """Compute the norms of an optimizer's gradients. Collective where parameters are sharded.

        Returns:
            The norms by the names to log them under; empty if no parameter has a gradient.
        """
        own = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        gradients = {
            name: parameter.grad
            for name, parameter in module.named_parameters()
            if id(parameter) in own and parameter.grad is not None
        }
        norms = {name: self._norm(gradient) for name, gradient in gradients.items()}
        if not norms:
            return {}
        total = torch.linalg.vector_norm(torch.stack(list(norms.values())), self.norm_type)
        numbers = {f"grad_{self.norm_type}_norm/{name}": float(norm) for name, norm in norms.items()}
        numbers[f"grad_{self.norm_type}_norm_total"] = float(total)
        return numbers

    def _norm(self, gradient: Tensor) -> Tensor:
        dense = gradient.detach().coalesce().values() if gradient.is_sparse else gradient.detach()
        norm: Any = torch.linalg.vector_norm(dense, self.norm_type)
        whole: Tensor = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        return whole.float()

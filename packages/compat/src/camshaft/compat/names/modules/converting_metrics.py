"""Metrics of releases 0.8 and 0.9: they convert what they get and what they return, and add it up over processes."""

from __future__ import annotations

from numbers import Number
from typing import Any

import numpy as np
import torch
from torch import Tensor

from camshaft.compat.names.modules.metrics import Metric
from camshaft.compat.names.utilities.collectives import sync_ddp_if_available
from camshaft.compat.names.utilities.functions import apply_to_collection
from camshaft.hooks_core.support.messages import must_be

_VALUES = (Tensor, np.ndarray, Number)


class TensorMetric(Metric):
    """A metric whose `forward` takes tensors, and returns a tensor or a number of one batch: nothing is accumulated.

    Args:
        name: Its name.
        reduce_group: The processes; None means all.
        reduce_op: One of `torch.distributed.ReduceOp`, "avg" or "mean"; None means the sum.
    """

    def __init__(self, name: str, reduce_group: Any = None, reduce_op: Any = None) -> None:
        super().__init__(name)
        self._reduction = (reduce_group, reduce_op)

    def _convert(self, value: Any) -> Any:
        """Return a tensor of an argument."""
        return torch.as_tensor(value if isinstance(value, (Tensor, np.ndarray)) else [value])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the result of `forward`, as a tensor of the metric's device and type. Collective."""
        args, kwargs = apply_to_collection((args, kwargs), _VALUES, self._convert)
        value = super().__call__(*args, **kwargs)
        if not isinstance(value, _VALUES):
            action = "Return one of these, and log the others by themselves."
            raise TypeError(must_be("result", "a tensor, a NumPy array or a number", value, "a metric", action))
        result = sync_ddp_if_available(TensorMetric._convert(self, value), *self._reduction)
        return result.to(self.device, self.dtype)


class NumpyMetric(TensorMetric):
    """A metric whose `forward` takes NumPy arrays, and returns an array or a number; see `TensorMetric`."""

    def _convert(self, value: Any) -> Any:
        tensor = super()._convert(value)
        return tensor.detach().cpu().numpy()

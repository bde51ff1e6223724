"""Metrics of releases 0.8 and 0.9: they convert what they get and what they return, and add it up over processes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from numbers import Number
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from camshaft.compat.names.modules.metrics import Metric
from camshaft.compat.names.utilities.collectives import sync_ddp_if_available
from camshaft.compat.names.utilities.functions import apply_to_collection
from camshaft.hooks_core.messages import must_be

_VALUES = (Tensor, np.ndarray, Number)


def _to_tensor(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value)
    if isinstance(value, Number):
        return torch.tensor([value])
    rule = "a tensor, a NumPy array or a number"
    action = "Subclass `TensorCollectionMetric`, or decorate with `tensor_collection_metric`, to return several."
    raise TypeError(must_be("result", rule, value, "a metric", action))


def _to_array(value: Any) -> np.ndarray:
    if isinstance(value, Tensor):
        return value.detach().cpu().numpy()
    return value if isinstance(value, np.ndarray) else np.array([value])


def sync_ddp(group: Any = None, reduce_op: Any = None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that reduces the tensors which a function returns over processes. Collective.

    Args:
        group: The processes; None means all.
        reduce_op: One of `torch.distributed.ReduceOp`, "avg" or "mean"; None means the sum.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def synchronized(*args: Any, **kwargs: Any) -> Any:
            return apply_to_collection(function(*args, **kwargs), Tensor, sync_ddp_if_available, group, reduce_op)

        return synchronized

    return decorate


def _converting(name: str, convert: Callable[[Any], Any], returns_collection: bool = False) -> Callable[..., Any]:
    """Return a function like `sync_ddp` whose decorator converts arguments and results as well."""

    def converting(group: Any = None, reduce_op: Any = None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(function)
            def converted(*args: Any, **kwargs: Any) -> Any:
                args, kwargs = apply_to_collection((args, kwargs), _VALUES, convert)
                result = function(*args, **kwargs)
                return apply_to_collection(result, _VALUES, _to_tensor) if returns_collection else _to_tensor(result)

            return sync_ddp(group, reduce_op)(converted)

        return decorate

    converting.__name__ = name
    return converting


tensor_metric = _converting("tensor_metric", _to_tensor)
tensor_collection_metric = _converting("tensor_collection_metric", _to_tensor, returns_collection=True)
numpy_metric = _converting("numpy_metric", _to_array)


class _ConvertingMetric(Metric):
    """A metric whose `forward` computes it of one batch: nothing is accumulated.

    Args:
        name: Its name.
        reduce_group: See `sync_ddp`.
        reduce_op: See `sync_ddp`.
    """

    decorator: ClassVar[Callable[..., Any]]

    def __init__(self, name: str, reduce_group: Any = None, reduce_op: Any = None) -> None:
        super().__init__(name)
        self._reduction = (reduce_group, reduce_op)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the result of `forward`, as tensors of the metric's device and type. Collective."""
        result = type(self).decorator(*self._reduction)(super().__call__)(*args, **kwargs)
        return apply_to_collection(result, Tensor, lambda value: value.to(self.device, self.dtype))


class TensorMetric(_ConvertingMetric):
    """A metric whose `forward` takes tensors, and returns a tensor or a number; see `tensor_metric`."""

    decorator = staticmethod(tensor_metric)


class TensorCollectionMetric(_ConvertingMetric):
    """A metric whose `forward` takes tensors, and returns a collection; see `tensor_collection_metric`."""

    decorator = staticmethod(tensor_collection_metric)


class NumpyMetric(_ConvertingMetric):
    """A metric whose `forward` takes NumPy arrays, and returns an array or a number; see `numpy_metric`."""

    decorator = staticmethod(numpy_metric)


class SklearnMetric(NumpyMetric):
    """A metric of scikit-learn.

    Args:
        metric_name: Its name in `sklearn.metrics`.
        reduce_group: See `sync_ddp`.
        reduce_op: See `sync_ddp`.
        kwargs: Further arguments of the metric.
    """

    def __init__(self, metric_name: str, reduce_group: Any = None, reduce_op: Any = None, **kwargs: Any) -> None:
        super().__init__(metric_name, reduce_group, reduce_op)
        self.metric_kwargs = kwargs

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what scikit-learn does."""
        import sklearn.metrics

        return getattr(sklearn.metrics, self.name)(*args, **kwargs, **self.metric_kwargs)

"""Functions about models and batches."""

from __future__ import annotations

import functools
import math
import os
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from camshaft.compat.names.utilities.functions import apply_to_collection, move_data_to_device
from camshaft.compat.names.utilities.types_and_flags import MisconfigurationException
from camshaft.hooks_core.support.messages import must_be, warn_user


def optimizers_to_device(optimizers: Iterable[Optimizer], device: Any) -> None:
    """Move the states of optimizers to a device, but for numbers of steps."""
    for optimizer in optimizers:
        optimizer_to_device(optimizer, device)


def optimizer_to_device(optimizer: Optimizer, device: Any) -> None:
    """Move the state of an optimizer to a device, but for numbers of steps."""
    for parameter, state in optimizer.state.items():
        if isinstance(state, dict):
            state.update({name: move_data_to_device(one, device) for name, one in state.items() if name != "step"})
        else:
            optimizer.state[parameter] = move_data_to_device(state, device)


def grad_norm(module: nn.Module, norm_type: float | int | str, group_separator: str = "/") -> dict[str, Tensor]:
    """Return the norm of each parameter's gradient, and of all together, by names to be logged.

    Args:
        module: The module; parameters without a gradient are left out.
        norm_type: The order; "inf" is the greatest absolute value.
        group_separator: What stands between the kind of norm and a parameter's name.

    Raises:
        ValueError: If the order is not positive.
    """
    order = float(norm_type)
    if order <= 0 or math.isnan(order):
        raise ValueError(
            must_be("norm_type", "a positive number or 'inf'", norm_type, "grad_norm", "Pass such an order.")
        )
    named = {name: parameter.grad for name, parameter in module.named_parameters()}
    norms = {
        f"grad_{order}_norm{group_separator}{name}": gradient.detach().norm(order)
        for name, gradient in named.items()
        if gradient is not None
    }
    if norms:
        norms[f"grad_{order}_norm_total"] = torch.tensor([float(norm) for norm in norms.values()]).norm(order)
    return norms


def extract_batch_size(batch: Any) -> int:
    """Return the length of the first tensor of a batch; with a warning if others have another.

    Raises:
        MisconfigurationException: If there is no tensor.
    """
    sizes = _sizes(batch)
    first = next((size for size in sizes if size is not None), None)
    if first is None:
        action = "Pass `self.log(..., batch_size=...)`."
        raise MisconfigurationException(must_be("batch", "of tensors", batch, "extract_batch_size", action))
    if any(size != first for size in sizes):
        warn_user(
            f"The tensors of a batch have different lengths, of which the first is taken: {first}. Pass "
            "`self.log(..., batch_size=...)`."
        )
    return first


def _sizes(batch: Any) -> Iterator[int | None]:
    if isinstance(batch, Tensor):
        yield len(batch) if batch.ndim else 1
    elif isinstance(batch, Mapping):
        yield from _sizes(batch.values())
    elif isinstance(batch, Iterable) and not isinstance(batch, str):
        for item in batch:
            yield from _sizes(item)
    elif is_dataclass(batch):
        yield from _sizes([getattr(batch, field.name) for field in fields(batch)])
    else:
        yield None


def sized_len(dataloader: object) -> int | None:
    """Return the length of a loader; None if it has none."""
    try:
        return len(dataloader)  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):
        return None


def suggested_max_num_workers(local_world_size: int) -> int:
    """Return a number of workers for a loader: the usable CPUs, divided among the processes of a machine.

    Raises:
        ValueError: If the number of processes is below 1.
    """
    if local_world_size < 1:
        where = "suggested_max_num_workers"
        raise ValueError(must_be("local_world_size", "at least 1", local_world_size, where, "Pass such a number."))
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, usable // local_world_size - 1)


def convert_tensors_to_scalars(data: Any) -> Any:
    """Return nested data with tensors as numbers.

    Raises:
        ValueError: If one has not exactly one element.
    """

    def to_number(tensor: Tensor) -> int | float | bool:
        if tensor.numel() != 1:
            action = "Reduce it first."
            raise ValueError(must_be("data", "tensors of one element", tensor, "convert_tensors_to_scalars", action))
        return tensor.item()

    return apply_to_collection(data, Tensor, to_number)


def convert_params(params: Mapping[str, Any] | Namespace | None) -> dict[str, Any]:
    """Return hyperparameters as a dictionary."""
    params = vars(params) if isinstance(params, Namespace) else params
    return params if isinstance(params, dict) else dict(params or {})


def add_prefix(metrics: Mapping[str, Any], prefix: str, separator: str) -> Mapping[str, Any]:
    """Return metrics with a prefix before their names; without a prefix as they are."""
    return {f"{prefix}{separator}{name}": value for name, value in metrics.items()} if prefix else metrics


def detect_nan_parameters(model: nn.Module) -> None:
    """Raise `ValueError` if a parameter has values that are NaN or infinite."""
    for name, parameter in model.named_parameters():
        if not torch.isfinite(parameter).all():
            action = "Lower the learning rate, or clip gradients."
            raise ValueError(must_be(name, "finite", parameter, type(model).__qualname__, action))


def restricted_classmethod(method: Callable[..., Any]) -> Any:
    """Decorate a method of a class, which raises `TypeError` where it is called on an object."""
    return _OfClassAlone(method)


class _OfClassAlone(classmethod):  # type: ignore[type-arg]
    def __get__(self, instance: Any, owner: Any = None) -> Any:
        method = super().__get__(None, owner)
        if instance is None:
            return method
        name = f"{type(instance).__name__}.{self.__func__.__name__}"

        @functools.wraps(method)
        def refuse(*args: Any, **kwargs: Any) -> NoReturn:
            action = "Use what it returns."
            raise TypeError(must_be(name, "called on the class", instance, "a call on an object", action))

        return refuse

"""Functions about models, batches and devices' memory."""

from __future__ import annotations

import functools
import inspect
import math
import os
from argparse import Namespace
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from camshaft.compat.names.utilities.functions import (
    WarningCache,
    apply_to_collection,
    has_iterable_dataset,
    move_data_to_device,
)
from camshaft.compat.names.utilities.types_and_flags import MisconfigurationException
from camshaft.hooks_core.messages import must_be, warn_user

warning_cache = WarningCache()
"""Warnings that have been given."""


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


def find_shared_parameters(module: nn.Module) -> list[list[str]]:
    """Return the names of each parameter that has several."""
    names: dict[nn.Parameter, list[str]] = defaultdict(list)
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names[parameter].append(name)
    return [found for found in names.values() if len(found) > 1]


def set_shared_parameters(module: nn.Module, shared_params: Iterable[list[str]]) -> nn.Module:
    """Make the parameters of each group of names the one that has the first of them."""
    for first, *others in shared_params:
        shared = module.get_parameter(first)
        for name in others:
            owner, _, last = name.rpartition(".")
            setattr(module.get_submodule(owner), last, shared)
    return module


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
        warning_cache.warn(
            f"The tensors of a batch have different lengths, of which the first is taken: {first}."
            " Pass `self.log(..., batch_size=...)`."
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
    elif is_dataclass_instance(batch):
        for field in fields(batch):
            yield from _sizes(getattr(batch, field.name))
    else:
        yield None


def is_dataclass_instance(obj: object) -> bool:
    """Return whether an object is one of a dataclass."""
    return is_dataclass(obj) and not isinstance(obj, type)


def sized_len(dataloader: object) -> int | None:
    """Return the length of a loader; None if it has none."""
    try:
        return len(dataloader)  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):
        return None


def has_len_all_ranks(
    dataloader: object, strategy: Any, allow_zero_length_dataloader_with_multiple_devices: bool = False
) -> bool:
    """Return whether a loader has a length. Collective.

    Args:
        dataloader: The loader.
        strategy: The strategy whose processes have one each.
        allow_zero_length_dataloader_with_multiple_devices: Whether some of these may be empty.

    Raises:
        RuntimeError: If one is empty although others are not, and may not be.
    """
    here = sized_len(dataloader)
    if here is None:
        return False
    name = type(dataloader).__name__
    total = int(strategy.reduce(torch.tensor(here, device=strategy.device), "sum"))
    if total == 0:
        warn_user(f"The {name} is empty in every process. Check its dataset and `drop_last`.")
    elif here == 0 and not allow_zero_length_dataloader_with_multiple_devices:
        action = "Give every process a batch."
        raise RuntimeError(must_be("dataloader", "one with a batch in every process", dataloader, name, action))
    if has_iterable_dataset(dataloader):
        warn_user(
            f"The length of the {name} may be wrong: its dataset is iterable, so each worker goes through it. Let each "
            "give a part of its own, by `torch.utils.data.get_worker_info`."
        )
    return True


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


def get_torchvision_model(model_name: str, **kwargs: Any) -> nn.Module:
    """Return a model of torchvision.

    Args:
        model_name: Its name there.
        kwargs: Arguments of the model.

    Raises:
        ModuleNotFoundError: If torchvision is not installed.
    """
    from torchvision.models import get_model

    model: nn.Module = get_model(model_name, **kwargs)
    return model


def is_param_in_hook_signature(
    hook_fx: Callable[..., Any], param: str, explicit: bool = False, min_args: int | None = None
) -> bool:
    """Return whether a method takes an argument.

    Args:
        hook_fx: The method.
        param: The argument.
        explicit: Whether `*args` do not count.
        min_args: A number of arguments that is enough, whatever they are called.
    """
    found = inspect.getfullargspec(getattr(hook_fx, "__wrapped__", hook_fx))
    arguments = found.args[1:]
    is_any = not explicit and found.varargs is not None
    return param in arguments or is_any or (min_args is not None and len(arguments) >= min_args)


CONVERSION_DTYPES: list[tuple[Any, Callable[..., Tensor]]] = [
    (bool, functools.partial(torch.tensor, dtype=torch.uint8)),
    (int, functools.partial(torch.tensor, dtype=torch.int)),
    (float, functools.partial(torch.tensor, dtype=torch.float)),
]
"""Types that `convert_to_tensors` converts, beside arrays of NumPy."""


def convert_to_tensors(data: Any, device: Any) -> Any:
    """Return nested data with bools, ints, floats and arrays as tensors, on a device."""
    for kind, make in CONVERSION_DTYPES:
        data = apply_to_collection(data, kind, make, device=device)
    try:
        import numpy
    except ModuleNotFoundError:
        pass
    else:
        data = apply_to_collection(data, numpy.ndarray, torch.from_numpy)
    return move_data_to_device(data, device)


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


def is_cuda_out_of_memory(exception: BaseException) -> bool:
    """Return whether an error is one of insufficient memory of a GPU."""
    return _says(exception, "CUDA") and _says(exception, "out of memory")


def is_cudnn_snafu(exception: BaseException) -> bool:
    """Return whether an error is one of cuDNN that insufficient memory causes."""
    return _says(exception, "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED.")


def is_out_of_cpu_memory(exception: BaseException) -> bool:
    """Return whether an error is one of insufficient memory of the machine."""
    return _says(exception, "DefaultCPUAllocator: can't allocate memory")


def _says(exception: BaseException, text: str) -> bool:
    return isinstance(exception, RuntimeError) and len(exception.args) == 1 and text in str(exception.args[0])


def measure_flops(
    model: nn.Module, forward_fn: Callable[[], Any], loss_fn: Callable[[Any], Tensor] | None = None
) -> int:
    """Return the floating-point operations of a forward, and with a loss of the backward as well.

    Args:
        model: The module; it may be on the meta device.
        forward_fn: Runs the forward.
        loss_fn: Makes a loss of what that returns.
    """
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        output = forward_fn()
        if loss_fn is not None:
            loss_fn(output).backward()  # type: ignore[no-untyped-call]
    return int(counter.get_total_flops())


def check_finite_loss(loss: Tensor | None) -> None:
    """Raise `ValueError` if a loss is not finite."""
    if loss is not None and not torch.isfinite(loss).all():
        raise ValueError(
            must_be("loss", "finite", loss, "training_step", "Lower the learning rate, or look at the data.")
        )


def print_nan_gradients(model: nn.Module) -> None:
    """Print the parameters whose gradients have values that are NaN or infinite."""
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and not torch.isfinite(parameter.grad).all():
            print(name, parameter.grad)


def detect_nan_parameters(model: nn.Module) -> None:
    """Raise `ValueError` if a parameter has values that are NaN or infinite."""
    for name, parameter in model.named_parameters():
        if not torch.isfinite(parameter).all():
            action = "Lower the learning rate, or clip gradients."
            raise ValueError(must_be(name, "finite", parameter, type(model).__qualname__, action))


class ModuleMode:
    """Keeps whether each part of a module was in training mode, to put it back."""

    def __init__(self) -> None:
        self.mode: dict[str, bool] = {}

    def capture(self, module: nn.Module) -> None:
        """Take the modes of a module's parts."""
        self.mode = {name: part.training for name, part in module.named_modules()}

    def restore(self, module: nn.Module) -> None:
        """Put them back, of the parts that were there."""
        for name, part in module.named_modules():
            part.training = self.mode.get(name, part.training)


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

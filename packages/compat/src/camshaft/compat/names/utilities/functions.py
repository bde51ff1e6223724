"""Functions of earlier releases: processes, seeds, collections, loaders, models, files, decorators."""

from __future__ import annotations

import functools
import logging
import math
import os
import random
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from itertools import chain
from typing import Any, ClassVar, NoReturn, TypeVar

import torch
import torch.distributed as dist
from lightning_utilities.core import rank_zero
from lightning_utilities.core.apply_func import apply_to_collection as apply_to_collection
from lightning_utilities.core.rank_zero import (  # noqa: F401  (passed on, but for the first)
    WarningCache,
    rank_prefixed_message,
    rank_zero_debug,
    rank_zero_info,
    rank_zero_only,
)
from torch import Tensor, nn
from torch.distributed.nn.functional import all_gather
from torch.optim import Optimizer
from torch.utils.data import IterableDataset

from camshaft.callbacks.finders.batch_size_finder import free_memory, is_out_of_memory
from camshaft.compat.names.stand_ins import StandIn
from camshaft.compat.names.utilities.types_and_flags import MisconfigurationException
from camshaft.hooks_core import is_overridden as _is_overridden
from camshaft.hooks_core.support.messages import must_be, warn_user
from camshaft.hooks_core.support.transfer import move_to_device
from camshaft.loops.data.combined_loader import CombinationMode
from camshaft.loops.data.combined_loader import CombinedLoader as _CombinedLoader
from camshaft.loops.state.random_state import SEED_WORKERS_VARIABLE, isolated_randomness
from camshaft.strategies import find_process_environment, read_checkpoint, write_checkpoint
from camshaft.trainer import TrainingModule
from camshaft.trainer.seeding import GLOBAL_SEED_VARIABLE as _VARIABLE
from camshaft.trainer.seeding import seed_everything as _seed_everything

logger = logging.getLogger("pytorch_lightning")
"""The logger of earlier code, whose level it sets."""


class PossibleUserWarning(UserWarning):
    """A warning about what may be a mistake; ours are plain `UserWarning`s."""


def disable_possible_user_warnings(module: str = "") -> None:
    """Ignore warnings of the class `PossibleUserWarning`, of modules whose name begins so; "" means all."""
    warnings.filterwarnings("ignore", module=module, category=PossibleUserWarning)


if os.environ.get("POSSIBLE_USER_WARNINGS", "").lower() in ("0", "off"):
    disable_possible_user_warnings()


class LightningDeprecationWarning(DeprecationWarning):
    """A warning about a feature that will be removed."""


def get_rank() -> int:
    """Return the global rank of this process."""
    return find_process_environment().global_rank


rank_zero.log = logger
rank_zero.rank_zero_deprecation_category = LightningDeprecationWarning
if getattr(rank_zero_only, "rank", None) is None:  # libraries that use it rely on Lightning for this
    rank_zero_only.rank = get_rank()  # type: ignore[attr-defined]


def distributed_available() -> bool:
    """Return whether a process group is initialised."""
    return dist.is_available() and dist.is_initialized()


def sync_ddp(result: Tensor, group: Any = None, reduce_op: Any = None) -> Tensor:
    """Return a tensor reduced over processes; it may be changed in place. Collective.

    Args:
        result: The tensor.
        group: The processes; None means all.
        reduce_op: One of `torch.distributed.ReduceOp` or its name, "avg" or "mean"; None means the sum.
    """
    name = reduce_op.lower() if isinstance(reduce_op, str) else ""
    is_mean = name in ("avg", "mean")
    operation = getattr(dist.ReduceOp, name.upper()) if name and not is_mean else reduce_op
    dist.all_reduce(result, dist.ReduceOp.SUM if is_mean or operation is None else operation, group)
    return result / dist.get_world_size(group) if is_mean else result


def sync_ddp_if_available(result: Tensor, group: Any = None, reduce_op: Any = None) -> Tensor:
    """Return what `sync_ddp` does where there are processes that joined, else the tensor. Collective."""
    return sync_ddp(result, group, reduce_op) if distributed_available() else result


class AllGatherGrad:
    """`AllGatherGrad.apply(tensor, group)` gathers a tensor, and gradients flow through it."""

    @staticmethod
    def apply(tensor: Tensor, group: Any = None) -> Tensor:
        """Return the tensors of all processes, along a new first dimension. Collective."""
        return torch.stack(all_gather(tensor, dist.group.WORLD if group is None else group))  # type: ignore[no-untyped-call]


def all_gather_ddp_if_available(tensor: Tensor, group: Any = None, sync_grads: bool = False) -> Tensor:
    """Return a tensor of all processes, along a new first dimension; in a single process the tensor. Collective.

    Args:
        tensor: The tensor.
        group: The processes; None means all.
        sync_grads: Whether gradients flow through it.
    """
    if not distributed_available():
        return tensor
    with torch.set_grad_enabled(sync_grads and torch.is_grad_enabled()):
        return AllGatherGrad.apply(tensor, group)


def rank_zero_warn(message: Any, category: type[Warning] = UserWarning, **_: Any) -> None:
    """Warn on the first process, at the line that called into camshaft."""
    warn_user(str(message), category)


def rank_zero_deprecation(message: Any, *_: Any, **__: Any) -> None:
    """Warn on the first process that something will go."""
    rank_zero_warn(message, LightningDeprecationWarning)


def seed_everything(seed: Any = None, workers: bool = False, verbose: bool = True) -> int:
    """Seed every generator; see `camshaft.trainer.seed_everything`.

    Args:
        seed: The seed, or a text of it. None takes that of the variable `PL_GLOBAL_SEED`, or draws one and says which.
        workers: As in `camshaft.trainer.seed_everything`.
        verbose: Likewise.

    Returns:
        The seed.

    Raises:
        ValueError: If it is out of range, or no number.
    """
    if seed is None and _VARIABLE not in os.environ:
        seed = random.randint(0, 2**32 - 1)
        warn_user(f"seed_everything was given no seed, and took {seed}. Pass it to repeat the run.")
    return _seed_everything(None if seed is None else int(seed), workers=workers, verbose=verbose)


def reset_seed() -> None:
    """Seed again with the last seed of `seed_everything`, if there was one."""
    if _VARIABLE in os.environ:
        workers = os.environ.get(SEED_WORKERS_VARIABLE, "0") not in ("", "0")
        _seed_everything(int(os.environ[_VARIABLE]), workers=workers, verbose=False)


@contextmanager
def isolate_rng(include_cuda: bool = True) -> Iterator[None]:
    """Restore the states of all generators after the body of a `with` statement."""
    devices = range(torch.cuda.device_count()) if include_cuda and torch.cuda.is_available() else ()
    with isolated_randomness(), torch.random.fork_rng(devices):
        yield


def move_data_to_device(batch: Any, device: torch.device | str) -> Any:
    """Move every tensor of a batch to a device; see `camshaft.hooks_core.support.transfer`."""
    return move_to_device(batch, torch.device(device))


def recursive_detach(in_dict: Any, to_cpu: bool = False) -> Any:
    """Detach every tensor of a collection, and move it to the CPU if wanted."""
    return apply_to_collection(in_dict, Tensor, lambda one: one.detach().cpu() if to_cpu else one.detach())


def convert_tensors_to_scalars(data: Any) -> Any:
    """Return nested data with tensors as numbers.

    Raises:
        ValueError: If one has not exactly one element.
    """

    def to_number(tensor: Tensor) -> int | float | bool:
        if tensor.numel() != 1:
            where = "convert_tensors_to_scalars"
            raise ValueError(must_be("data", "tensors of one element", tensor, where, "Reduce it first."))
        return tensor.item()

    return apply_to_collection(data, Tensor, to_number)


def flatten_dict(params: Mapping[Any, Any] | Namespace, delimiter: str = "/") -> dict[str, Any]:
    """Return a flat dictionary whose keys are paths in the nested one.

    Args:
        params: The nested one.
        delimiter: What stands between the parts of a path.
    """
    flat: dict[str, Any] = {}
    for key, value in (vars(params) if isinstance(params, Namespace) else params).items():
        if isinstance(value, (Mapping, Namespace)):
            inner = flatten_dict(value, delimiter)
            flat.update({f"{key}{delimiter}{path}": leaf for path, leaf in inner.items()})
        else:
            flat[str(key)] = value
    return flat


def has_iterable_dataset(dataloader: Any) -> bool:
    """Return whether a loader's dataset is an `IterableDataset`."""
    return isinstance(getattr(dataloader, "dataset", None), IterableDataset)


def sized_len(dataloader: Any) -> int | None:
    """Return the length of a loader; None if it has none."""
    try:
        return len(dataloader)
    except (TypeError, NotImplementedError):
        return None


def has_len(dataloader: Any) -> bool:
    """Return whether a loader has a length, and its dataset is no `IterableDataset`."""
    return sized_len(dataloader) is not None and not has_iterable_dataset(dataloader)


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
            f"Tensors of a batch have different lengths, of which the first is taken: {first}. Pass `batch_size`."
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


def load(path_or_url: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
    """Read a checkpoint; see `camshaft.strategies.read_checkpoint`.

    Args:
        path_or_url: The file, a binary file object, or an address.
        map_location: Where tensors go; None puts them where they were saved from.
        weights_only: False unpickles its objects; otherwise nothing that it names is imported.

    Raises:
        FileNotFoundError, CheckpointError: If it is not there, or cannot be read so.
    """
    return read_checkpoint(path_or_url, map_location, weights_only=weights_only)


def atomic_save(checkpoint: dict[str, Any], filepath: str | os.PathLike[str]) -> None:
    """Write a checkpoint, whole or not at all; see `camshaft.strategies.write_checkpoint`."""
    write_checkpoint(checkpoint, filepath)


def is_overridden(method_name: str, instance: object = None, parent: type | None = None, model: object = None) -> bool:
    """Return whether an object's class overrides a method of the base classes, or of `parent`.

    Args:
        method_name: The method.
        instance: The module, data module or callback.
        parent: The class whose method counts as not overridden; None means the base classes.
        model: The module, under the name that it had up to 1.3.
    """
    owner = model if instance is None else instance
    if owner is None:
        return False
    if parent is None:
        return _is_overridden(owner, method_name)
    return getattr(type(owner), method_name, None) is not getattr(parent, method_name, None)


_TRUE = ("y", "yes", "t", "true", "on", "1")
_FALSE = ("n", "no", "f", "false", "off", "0")


def str_to_bool(val: str) -> bool:
    """Return the bool of a text such as "yes" or "off".

    Raises:
        ValueError: If it is none of these.
    """
    if val.lower() not in (*_TRUE, *_FALSE):
        raise ValueError(must_be("val", "such as 'yes' or 'off'", val, "str_to_bool", "Pass one of these."))
    return val.lower() in _TRUE


def convert_inf(x: float | None) -> float | None:
    """Return a number; None for what is infinite or no number, as totals of a bar have it."""
    return None if x is None or not math.isfinite(x) else x


def do_nothing_closure() -> None:
    """Do nothing: a closure for `optimizer.step` without one."""


garbage_collection_cuda = free_memory
is_oom_error = is_out_of_memory


def get_model_size_mb(model: nn.Module) -> float:
    """Return the size of a model's parameters and buffers in megabytes of 1,000,000 bytes."""
    return sum(tensor.nbytes for tensor in model.state_dict().values() if isinstance(tensor, torch.Tensor)) / 1e6


def optimizers_to_device(optimizers: Iterable[Optimizer], device: Any) -> None:
    """Move the states of optimizers to a device, but for numbers of steps."""
    for optimizer in optimizers:
        for parameter, state in optimizer.state.items():
            if isinstance(state, dict):
                state.update({name: move_data_to_device(one, device) for name, one in state.items() if name != "step"})
            else:
                optimizer.state[parameter] = move_data_to_device(state, device)


def optimizer_to_device(optimizer: Optimizer, device: Any) -> None:
    """Move the state of an optimizer to a device, but for numbers of steps."""
    optimizers_to_device([optimizer], device)


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
        rule = "a positive number or 'inf'"
        raise ValueError(must_be("norm_type", rule, norm_type, "grad_norm", "Pass such an order."))
    norms = {
        f"grad_{order}_norm{group_separator}{name}": parameter.grad.detach().norm(order)
        for name, parameter in module.named_parameters()
        if parameter.grad is not None
    }
    if norms:
        norms[f"grad_{order}_norm_total"] = torch.tensor([float(norm) for norm in norms.values()]).norm(order)
    return norms


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


class restricted_classmethod(classmethod):  # type: ignore[type-arg]
    """Decorate a method of a class, which raises `TypeError` where it is called on an object."""

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        method = super().__get__(None, owner)
        if instance is None:
            return method
        name = f"{type(instance).__name__}.{self.__func__.__name__}"

        @functools.wraps(method)
        def refuse(*args: Any, **kwargs: Any) -> NoReturn:
            raise TypeError(must_be(name, "called on the class", instance, "a call on an object", "Use its result."))

        return refuse


class DeviceDtypeModuleMixin(nn.Module):
    """A module that knows where its parameters are, and of which type."""

    @property
    def device(self) -> torch.device:
        """The device of its first parameter or buffer; the CPU without any."""
        return next((one.device for one in chain(self.parameters(), self.buffers())), torch.device("cpu"))

    @property
    def dtype(self) -> torch.dtype:
        """The type of its first parameter or buffer of floating-point numbers; torch's default without any."""
        found = (one.dtype for one in chain(self.parameters(), self.buffers()) if one.is_floating_point())
        return next(found, torch.get_default_dtype())


def unwrap_lightning_module(wrapped_model: nn.Module) -> nn.Module:
    """Return the module inside of DistributedDataParallel and the like."""
    while isinstance(inner := getattr(wrapped_model, "module", None), nn.Module):
        wrapped_model = inner
    return wrapped_model


_Method = TypeVar("_Method", bound=Callable[..., Any])


def data_loader(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Decorate `train_dataloader` and its like: the loaders are made once for each module and then kept, as up to 0.6.

    They are made anew where the trainer reloads them in the course of a fit.
    """
    attribute = f"_lazy_{function.__name__}"

    @functools.wraps(function)
    def get_loader(self: Any) -> Any:
        trainer = getattr(self, "_trainer", None)
        reloads = trainer is not None and trainer.reload_dataloaders_every_n_epochs > 0
        if reloads or attribute not in self.__dict__:
            self.__dict__[attribute] = function(self)
        return self.__dict__[attribute]

    return get_loader


def auto_move_data(function: _Method) -> _Method:
    """Decorate a module's method, such as `forward`: its arguments are moved to the module's device."""

    @functools.wraps(function)
    def move_and_call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(self, TrainingModule):
            device = next((tensor.device for tensor in self.parameters()), torch.device("cpu"))
            args, kwargs = move_to_device((args, kwargs), device)
        return function(self, *args, **kwargs)

    return move_and_call  # type: ignore[return-value]


class EarlierCombinedLoader(_CombinedLoader, metaclass=StandIn):
    """`camshaft.loops.CombinedLoader` under the name of 1.x, which ends with the shortest loader by default, as it did.

    Args:
        iterables: The loaders.
        mode: As today.
        loaders: The loaders, under the name that they had up to 1.9.
    """

    __stands_for__: ClassVar[type] = _CombinedLoader

    def __init__(self, iterables: Any = None, mode: CombinationMode = "min_size", *, loaders: Any = None) -> None:
        super().__init__(iterables if loaders is None else loaders, mode)

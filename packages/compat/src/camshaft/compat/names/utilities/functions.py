"""Functions of earlier releases: processes, seeds, collections, files, decorators."""

from __future__ import annotations

import functools
import gc
import logging
import math
import os
import random
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import IO, Any, ClassVar, TypeVar

import torch
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
from torch.utils.data import IterableDataset

from camshaft.compat.names.stand_ins import StandIn
from camshaft.hooks_core import is_overridden as _is_overridden
from camshaft.hooks_core.support.messages import must_be, warn_user
from camshaft.hooks_core.support.transfer import move_to_device
from camshaft.loops.data.combined_loader import CombinationMode
from camshaft.loops.data.combined_loader import CombinedLoader as _CombinedLoader
from camshaft.loops.state.random_state import SEED_WORKERS_VARIABLE, isolated_randomness, seed_worker
from camshaft.strategies import find_process_environment, is_rank_zero, read_checkpoint, write_checkpoint
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
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def rank_zero_warn(message: Any, category: type[Warning] = UserWarning, **_: Any) -> None:
    """Warn on the first process, at the line that called into camshaft."""
    if is_rank_zero():
        warn_user(str(message), category)


def rank_zero_deprecation(message: Any, *_: Any, **__: Any) -> None:
    """Warn on the first process that something will go."""
    rank_zero_warn(message, LightningDeprecationWarning)


pl_worker_init_function = seed_worker
"""Seeds the workers of a loader."""


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
    if seed is None:
        seed = os.environ.get(_VARIABLE)
    if seed is None:
        seed = random.randint(0, 2**32 - 1)
        warn_user(f"seed_everything was given no seed, and took {seed}. Pass it to repeat the run.")
    return _seed_everything(int(seed), workers=workers, verbose=verbose)


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

    def detach(tensor: Tensor) -> Tensor:
        return tensor.detach().cpu() if to_cpu else tensor.detach()

    return apply_to_collection(in_dict, Tensor, detach)


def flatten_dict(params: Mapping[Any, Any] | Namespace, delimiter: str = "/") -> dict[str, Any]:
    """Return a flat dictionary whose keys are paths in the nested one.

    Args:
        params: The nested one.
        delimiter: What stands between the parts of a path.
    """
    flat: MutableMapping[str, Any] = {}
    for key, value in (vars(params) if isinstance(params, Namespace) else params).items():
        if isinstance(value, (Mapping, Namespace)):
            inner = flatten_dict(value, delimiter)
            flat.update({f"{key}{delimiter}{path}": leaf for path, leaf in inner.items()})
        else:
            flat[str(key)] = value
    return dict(flat)


def has_iterable_dataset(dataloader: Any) -> bool:
    """Return whether a loader's dataset is an `IterableDataset`."""
    return isinstance(getattr(dataloader, "dataset", None), IterableDataset)


def has_len(dataloader: Any) -> bool:
    """Return whether a loader has a length."""
    try:
        len(dataloader)
    except (TypeError, NotImplementedError):
        return False
    return not has_iterable_dataset(dataloader)


def load(
    path_or_url: str | os.PathLike[str] | IO[bytes],
    map_location: Any = None,
    weights_only: bool | None = None,
) -> dict[str, Any]:
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


def garbage_collection_cuda() -> None:
    """Free what Python and torch no longer need."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def is_oom_error(exception: BaseException) -> bool:
    """Return whether an error is one of insufficient memory."""
    return isinstance(exception, (torch.OutOfMemoryError, MemoryError)) or (
        isinstance(exception, RuntimeError)
        and any(text in str(exception) for text in ("out of memory", "can't allocate memory"))
    )


def get_model_size_mb(model: nn.Module) -> float:
    """Return the size of a model's parameters and buffers in megabytes of 1,000,000 bytes."""
    return sum(tensor.nbytes for tensor in model.state_dict().values() if isinstance(tensor, torch.Tensor)) / 1e6


_Method = TypeVar("_Method", bound=Callable[..., Any])


def data_loader(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Decorate `train_dataloader` and its like: the loaders are made once for each module and then kept, as up to 0.6.

    They are made anew where the trainer reloads them in the course of a fit.
    """
    attribute = f"_lazy_{function.__name__}"

    @functools.wraps(function)
    def get_loader(self: Any) -> Any:
        if attribute not in self.__dict__ or _reloads(getattr(self, "_trainer", None)):
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


def _reloads(trainer: Any) -> bool:
    return trainer is not None and trainer.reload_dataloaders_every_n_epochs > 0


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

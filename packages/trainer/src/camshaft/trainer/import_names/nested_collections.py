"""Going through nested collections, as functions of earlier releases."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from camshaft.hooks_core.transfer import map_nested, move_to_device


def move_data_to_device(batch: Any, device: torch.device | str) -> Any:
    """Move every tensor of a batch to a device; see `camshaft.hooks_core.transfer`."""
    return move_to_device(batch, torch.device(device))


def apply_to_collection(
    data: Any,
    dtype: type | tuple[type, ...],
    function: Callable[..., Any],
    *args: Any,
    wrong_dtype: type | tuple[type, ...] | None = None,
    include_none: bool = True,
    **kwargs: Any,
) -> Any:
    """Apply a function to everything of some type in nested collections, as `map_nested` does.

    Args:
        data: The collection.
        dtype: The type.
        function: Gets each of these, and what follows.
        args: Further arguments of the function.
        wrong_dtype: A type that is left as it is, although it is of `dtype`.
        include_none: Whether items for which the function returns None stay, as None.
        kwargs: Further arguments of the function.
    """

    def is_leaf(item: Any) -> bool:
        return isinstance(item, dtype) and not (wrong_dtype is not None and isinstance(item, wrong_dtype))

    applied = map_nested(data, is_leaf, lambda item: function(item, *args, **kwargs))
    return applied if include_none else _without_none(applied)


def _without_none(value: Any) -> Any:
    """Nested dictionaries, lists and tuples without the items that are None."""
    if isinstance(value, dict):
        return type(value)({key: _without_none(item) for key, item in value.items() if item is not None})
    if isinstance(value, (list, tuple)) and not hasattr(type(value), "_fields"):
        return type(value)(_without_none(item) for item in value if item is not None)
    return value


def recursive_detach(in_dict: Any, to_cpu: bool = False) -> Any:
    """Detach every tensor of a collection, and move it to the CPU if wanted."""

    def detach(tensor: Tensor) -> Tensor:
        return tensor.detach().cpu() if to_cpu else tensor.detach()

    return apply_to_collection(in_dict, Tensor, detach)


def flatten_dict(params: Mapping[Any, Any] | Namespace, delimiter: str = "/") -> dict[str, Any]:
    """A dictionary without others in it, whose keys are paths in the nested one.

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
    """Whether a loader's dataset is an `IterableDataset`."""
    return isinstance(getattr(dataloader, "dataset", None), IterableDataset)


def has_len(dataloader: Any) -> bool:
    """Whether a loader can say how many batches it has."""
    try:
        len(dataloader)
    except (TypeError, NotImplementedError):
        return False
    return not has_iterable_dataset(dataloader)

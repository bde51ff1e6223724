"""What may go into a checkpoint: tensors and plain values, so that reading one never imports a name found in it."""

from __future__ import annotations

import sys
from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.Size, torch.dtype, torch.device)


def to_plain(value: Any, where: str = "checkpoint") -> Any:
    """A copy of nested containers in which everything is a tensor or a plain value.

    Tensors are kept as they are, not copied. NumPy scalars become Python numbers; `defaultdict` and other
    subclasses of `dict` that add no state become `dict`.

    Args:
        value: The value to check.
        where: How to call it in an error.

    Raises:
        TypeError: If anything else is in it; the message says where.
    """
    kind = type(value)
    if kind in _PLAIN or isinstance(value, Tensor):
        return value
    if kind is list:
        return [to_plain(item, f"{where}[{position}]") for position, item in enumerate(value)]
    if kind is tuple:
        return tuple(to_plain(item, f"{where}[{position}]") for position, item in enumerate(value))
    if kind is OrderedDict and all(isinstance(item, Tensor) for item in value.values()):
        return value  # a module's state, which carries its version as an attribute
    if isinstance(value, dict):
        return {_key(key, where): to_plain(item, f"{where}[{key!r}]") for key, item in value.items()}
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic):
        return to_plain(value.item(), where)
    raise TypeError(
        f"`{where}` must be a tensor or a plain value (number, string, bytes, None, list, tuple, dict), but got "
        f"{value!r:.80} ({kind.__qualname__}) in a checkpoint. Convert it before it is saved."
    )


def _key(key: Any, where: str) -> Any:
    if type(key) in (str, int, float, bool, type(None)) or (type(key) is tuple and to_plain(key, where) is not None):
        return key
    raise TypeError(
        f"`{where}` must have strings or numbers as keys, but got {key!r:.80} ({type(key).__qualname__}) in a "
        "checkpoint. Convert it before it is saved."
    )

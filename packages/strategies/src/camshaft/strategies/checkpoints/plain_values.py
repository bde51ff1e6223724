"""What may go into a checkpoint: tensors and plain values, so that reading one never imports a name found in it."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_PLAIN = frozenset((bool, int, float, complex, str, bytes, type(None), torch.Size, torch.dtype, torch.device))

Keys = tuple[Any, ...]
"""Keys and positions that lead to a value in nested containers."""


def to_plain(value: Any, where: str = "checkpoint", replace_tensor: Callable[[Tensor, Keys], Any] | None = None) -> Any:
    """A copy of nested containers in which everything is a tensor or a plain value.

    Tensors are kept as they are, not copied. NumPy scalars become Python numbers; `defaultdict` and other
    subclasses of `dict` that add no state become `dict`.

    Args:
        value: The value to check.
        where: How to call it in an error.
        replace_tensor: What is called with each tensor and the keys that lead to it, and returns what takes its place.
            By default tensors stay, and sharded ones are refused, since one process has but a part of them.

    Raises:
        TypeError: If anything else is in it; the message says where.
    """
    return _Copy(where, replace_tensor or _keep_whole(where)).of(value)


def is_sharded(value: Any) -> bool:
    """Whether a value is a `DTensor`."""
    if type(value) is Tensor:
        return False
    tensor = sys.modules.get("torch.distributed.tensor")  # where nobody imported it, there are none
    return tensor is not None and isinstance(value, tensor.DTensor)


def name_of(where: str, keys: Keys) -> str:
    """How to call what keys lead to, in an error."""
    return where + "".join(f"[{key!r}]" for key in keys)


class _Copy:
    """Copies nested containers, and knows where it is in them only as far as errors need it."""

    def __init__(self, where: str, replace_tensor: Callable[[Tensor, Keys], Any]) -> None:
        self._where = where
        self._replace_tensor = replace_tensor
        self._keys: list[Any] = []

    def of(self, value: Any) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            return value
        if isinstance(value, Tensor):
            return self._replace_tensor(value, tuple(self._keys))
        if kind is list:
            return [item if type(item) in _PLAIN else self._at(idx, item) for idx, item in enumerate(value)]
        if kind is tuple:
            return tuple([item if type(item) in _PLAIN else self._at(idx, item) for idx, item in enumerate(value)])
        if kind is OrderedDict and all(isinstance(item, Tensor) for item in value.values()):
            return self._module_state(value)
        if isinstance(value, dict):
            return {
                self._key(key): item if type(item) in _PLAIN else self._at(key, item) for key, item in value.items()
            }
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, numpy.generic):
            return self.of(value.item())
        raise TypeError(
            f"`{self._name}` must be a tensor or a plain value (number, string, bytes, None, list, tuple, dict), but "
            f"got {value!r:.80} ({kind.__qualname__}) in a checkpoint. Convert it before it is saved."
        )

    def _at(self, key: Any, item: Any) -> Any:
        self._keys.append(key)
        copied = self.of(item)
        self._keys.pop()
        return copied

    def _module_state(self, state: OrderedDict[Any, Tensor]) -> OrderedDict[Any, Any]:
        copied = OrderedDict((self._key(name), self._at(name, tensor)) for name, tensor in state.items())
        if "_metadata" in vars(state):  # the versions of the module's parts; torch looks for it when it loads them
            vars(copied)["_metadata"] = self._at("_metadata", dict(vars(state)["_metadata"]))
        return copied

    def _key(self, key: Any) -> Any:
        kind = type(key)
        if kind in (str, int, float, bool, type(None)) or (kind is tuple and self.of(key) is not None):
            return key
        raise TypeError(
            f"`{self._name}` must have strings or numbers as keys, but got {key!r:.80} ({kind.__qualname__}) in a "
            "checkpoint. Convert it before it is saved."
        )

    @property
    def _name(self) -> str:
        return name_of(self._where, tuple(self._keys))


def _keep_whole(where: str) -> Callable[[Tensor, Keys], Tensor]:
    def keep(tensor: Tensor, keys: Keys) -> Tensor:
        if is_sharded(tensor):
            raise TypeError(
                f"`{name_of(where, keys)}` must be whole where one process writes one file, but got a sharded tensor "
                f"({type(tensor).__name__}) in a checkpoint. Save it with a strategy's `save_checkpoint`."
            )
        return tensor

    return keep

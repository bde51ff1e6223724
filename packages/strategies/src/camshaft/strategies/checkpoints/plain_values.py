"""What may go into a checkpoint: tensors and plain values, so that reading one never imports a name found in it."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

_PLAIN = frozenset((bool, int, float, complex, str, bytes, type(None), torch.Size, torch.dtype, torch.device))

_PLAIN_DICTS = (dict, OrderedDict, defaultdict, Counter)
"""Dictionaries that a checkpoint holds as plain ones."""

Keys = tuple[Any, ...]
"""Keys and positions that lead to a value in nested containers."""


class NotPlainError(TypeError):
    """A value that is no plain one.

    Attributes:
        place: Where it is.
        value: The value.
    """

    def __init__(self, message: str, place: str, value: Any) -> None:
        self.place = place
        self.value = value
        super().__init__(message)


class ObjectSink(Protocol):
    """Takes what is no plain value; see `camshaft.strategies.checkpoints.objects`."""

    def add(self, keys: Keys, value: Any, refused: NotPlainError | None) -> None:
        """Take an object that belongs at these keys, and why it is no plain value; None if it has a plain form too."""

    def add_namespace(self, keys: Keys) -> None:
        """Note that the dictionary at these keys was a namespace."""


def to_plain(
    value: Any,
    where: str = "checkpoint",
    replace_tensor: Callable[[Tensor, Keys], Any] | None = None,
    objects: ObjectSink | None = None,
) -> Any:
    """A copy of nested containers in which everything is a tensor or a plain value.

    Tensors are kept as they are, not copied. NumPy scalars become Python numbers; `defaultdict` and other
    subclasses of `dict` become `dict`.

    Args:
        value: The value to check.
        where: How to call it in an error.
        replace_tensor: What is called with each tensor and the keys that lead to it, and returns what takes its place.
            By default tensors stay, and sharded ones are refused, since one process has but a part of them.
        objects: Takes whatever else is in it, which is left out of the dictionary that it is in: a list or tuple with
            such an item as a whole. None refuses it.

    Raises:
        TypeError: If anything else is in it and nothing takes it, or the outermost dictionary has such a key; the
            message says where.
    """
    return _Copy(where, replace_tensor or keep_whole(where), objects).of(value)


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
    """Copies nested containers, and knows where it is in them only as far as errors and objects need it."""

    def __init__(
        self, where: str, replace_tensor: Callable[[Tensor, Keys], Any], objects: ObjectSink | None = None
    ) -> None:
        self._where = where
        self._replace_tensor = replace_tensor
        self._objects = objects
        self._is_inside_object = False  # of which the sink has all
        self._is_in_tuple = False  # where nothing can be put in later
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
            return tuple(
                [
                    item if type(item) in _PLAIN else self._at(idx, item, is_in_tuple=True)
                    for idx, item in enumerate(value)
                ]
            )
        if kind is OrderedDict and all(isinstance(item, Tensor) for item in value.values()):
            return self._module_state(value)
        if isinstance(value, dict) and self._needs_no_object(kind):
            return self._dictionary(value)
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, numpy.generic):
            return self.of(value.item())
        if self._objects is not None and not self._is_in_tuple:
            if kind is Namespace:
                if not self._is_inside_object:
                    self._objects.add_namespace(tuple(self._keys))
                return self._dictionary(vars(value))
            view = _plain_view(value)
            if view is not None:
                return self._with_plain_form(value, view)
        raise NotPlainError(
            f"`{self._name}` must be a tensor or a plain value (number, string, bytes, None, list, tuple, dict), but "
            f"got {value!r:.80} ({kind.__qualname__}) in a checkpoint. Convert it before it is saved.",
            self._name,
            value,
        )

    def _needs_no_object(self, kind: type) -> bool:
        """Return whether dictionaries of a class go into a checkpoint as plain ones and nothing else."""
        if kind in _PLAIN_DICTS or self._objects is None or self._is_in_tuple:
            return True
        return getattr(kind, "is_plain_dict", False) is True  # which our own classes say of themselves

    def _dictionary(self, value: Mapping[Any, Any]) -> dict[Any, Any]:
        copied: dict[Any, Any] = {}
        for key, item in value.items():
            name = self._key(key)
            if type(item) in _PLAIN:
                copied[name] = item
                continue
            depth, was_in_tuple = len(self._keys), self._is_in_tuple
            try:
                copied[name] = self._at(key, item)
            except NotPlainError as refused:
                if self._objects is None:
                    raise
                del self._keys[depth:]
                self._is_in_tuple = was_in_tuple
                if not self._is_inside_object:
                    self._objects.add((*self._keys, key), item, refused)
        return copied

    def _with_plain_form(self, value: Any, view: Any) -> Any:
        """A plain copy, which stands for an object where that is not wanted."""
        is_inside = self._is_inside_object
        self._is_inside_object = True
        try:
            copied = self.of(view)
        finally:
            self._is_inside_object = is_inside
        if self._objects is not None and not is_inside:
            self._objects.add(tuple(self._keys), value, None)
        return copied

    def _at(self, key: Any, item: Any, *, is_in_tuple: bool = False) -> Any:
        was_in_tuple, self._is_in_tuple = self._is_in_tuple, is_in_tuple
        self._keys.append(key)
        copied = self.of(item)
        self._keys.pop()
        self._is_in_tuple = was_in_tuple
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
        raise NotPlainError(
            f"`{self._name}` must have strings or numbers as keys, but got {key!r:.80} ({kind.__qualname__}) in a "
            "checkpoint. Convert it before it is saved.",
            self._name,
            key,
        )

    @property
    def _name(self) -> str:
        return name_of(self._where, tuple(self._keys))


def _plain_view(value: Any) -> Any:
    """The items of a dictionary of somebody's own class, or of a configuration of OmegaConf; None of anything else."""
    if isinstance(value, dict):
        return dict(value)
    omegaconf = sys.modules.get("omegaconf")  # where nobody imported it, there are none
    if omegaconf is not None and isinstance(value, (omegaconf.DictConfig, omegaconf.ListConfig)):
        view = omegaconf.OmegaConf.to_container(value, resolve=False)
        return view if isinstance(view, (dict, list)) else None
    return None


def keep_whole(where: str) -> Callable[[Tensor, Keys], Tensor]:
    """Return a function that leaves tensors as they are and refuses sharded ones with `TypeError`."""

    def keep(tensor: Tensor, keys: Keys) -> Tensor:
        if is_sharded(tensor):
            raise TypeError(
                f"`{name_of(where, keys)}` must be whole where one process writes one file, but got a sharded tensor "
                f"({type(tensor).__name__}) in a checkpoint. Save it with a strategy's `save_checkpoint`."
            )
        return tensor

    return keep

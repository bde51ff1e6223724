"""Going through a batch or an output, whatever its nesting, and moving it to a device."""

from __future__ import annotations

import copy
import dataclasses
from collections import UserDict, UserList, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

_SEQUENCES = (list, tuple, deque, UserList)


def move_to_device(batch: Any, device: Any) -> Any:
    """Move every tensor of a batch to a device.

    Goes through the collections that `parts_of` knows, of any nesting. Whatever else has a `to` method (a
    `PackedSequence`, a batch class of one's own) moves itself; everything else stays as it is.

    Args:
        batch: The batch.
        device: A `torch.device`.

    Returns:
        The moved batch; containers are rebuilt, never changed in place.
    """
    # Copies from pinned memory may overlap with computation; for a copy to the host it would be wrong to go on early.
    asynchronous = device.type != "cpu"
    return _move(batch, device, asynchronous)


def _move(batch: Any, device: Any, asynchronous: bool) -> Any:
    kind = type(batch)
    if kind is list:
        return [_move(item, device, asynchronous) for item in batch]
    if kind is tuple:
        return tuple([_move(item, device, asynchronous) for item in batch])
    if kind is dict:
        return {key: _move(item, device, asynchronous) for key, item in batch.items()}
    if hasattr(batch, "to"):
        return _move_itself(batch, device, asynchronous)
    parts = parts_of(batch)
    return batch if parts is None else rebuilt(batch, [_move(part, device, asynchronous) for part in parts])


def _move_itself(batch: Any, device: Any, asynchronous: bool) -> Any:
    from torch import Tensor

    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=asynchronous)
    moved = batch.to(device)
    return batch if moved is None else moved  # some batch classes move themselves in place


def map_nested(value: Any, is_leaf: Callable[[Any], bool], function: Callable[[Any], Any]) -> Any:
    """Apply a function to every leaf in a nested collection.

    Args:
        value: The collection, or a leaf.
        is_leaf: Tells whether something gets the function, be it a collection itself.
        function: Gets each leaf. What is neither a leaf nor a collection stays as it is.

    Returns:
        Collections of the same classes with what the function returned; they are rebuilt, never changed in place.
    """
    if is_leaf(value):
        return function(value)
    kind = type(value)
    if kind is list:
        return [map_nested(item, is_leaf, function) for item in value]
    if kind is tuple:
        return tuple([map_nested(item, is_leaf, function) for item in value])
    if kind is dict:
        return {key: map_nested(item, is_leaf, function) for key, item in value.items()}
    parts = parts_of(value)
    return value if parts is None else rebuilt(value, [map_nested(part, is_leaf, function) for part in parts])


def parts_of(value: Any) -> list[Any] | None:
    """Return the items of a collection, the values of a mapping or the fields of a dataclass; None for anything else.

    Collections are lists, tuples (named ones, too), deques and `UserList`. A mapping that is a dataclass, such as a
    `ModelOutput` of transformers, has its fields and then its further keys.
    """
    if isinstance(value, _SEQUENCES):
        return list(value)
    if _is_dataclass(value):
        return [getattr(value, name) for name in _names_of(value)] + [value[key] for key in _further_keys_of(value)]
    if isinstance(value, Mapping):
        return list(value.values())
    return None


def rebuilt(original: Any, parts: Sequence[Any]) -> Any:
    """Return a collection of the original's class with other parts, in the order of `parts_of`.

    It is made by the constructor of its class, as some mappings allow no other change; a dataclass, a `UserDict` and
    what has a constructor of another kind are copied, with all else that they hold. If no part is another one than
    before, an original of a class of its own is returned itself.

    Raises:
        TypeError: If there is no way to make another one.
    """
    kind: Any = type(original)
    if kind is list or kind is tuple:
        return kind(parts)
    if kind is dict:
        return dict(zip(original, parts, strict=True))
    if isinstance(original, tuple) and hasattr(kind, "_fields"):
        return kind(*parts)
    before = parts_of(original) or []
    if len(before) == len(parts) and all(part is other for part, other in zip(parts, before, strict=True)):
        return original
    if isinstance(original, _SEQUENCES):
        return _rebuilt_sequence(original, parts)
    if _is_dataclass(original):
        return _rebuilt_dataclass(original, parts)
    return _rebuilt_mapping(original, dict(zip(original, parts, strict=True)))


def _rebuilt_sequence(original: Any, parts: Sequence[Any]) -> Any:
    kind: Any = type(original)
    if isinstance(original, deque):
        return kind(parts, original.maxlen)
    try:
        return kind(parts)
    except TypeError:
        if isinstance(original, tuple):
            raise
        copied = copy.copy(original)
        copied[:] = parts
        return copied


def _rebuilt_dataclass(original: Any, parts: Sequence[Any]) -> Any:
    names = _names_of(original)
    if isinstance(original, Mapping):
        kind: Any = type(original)
        made = kind(**dict(zip(names, parts, strict=False)))
        for key, part in zip(_further_keys_of(original), parts[len(names) :], strict=True):
            made[key] = part
        return made
    copied = copy.copy(original)
    for name, part in zip(names, parts, strict=True):
        object.__setattr__(copied, name, part)  # the dataclass may be frozen
    for name in [name for name in getattr(copied, "__dict__", ()) if _is_cached_property(type(original), name)]:
        del copied.__dict__[name]
    return copied


def _rebuilt_mapping(original: Any, items: dict[Any, Any]) -> Any:
    kind: Any = type(original)
    if isinstance(original, UserDict):
        copied = copy.copy(original)  # with what a subclass keeps beside its data
        copied.data = items
        return copied
    if isinstance(original, defaultdict):
        return kind(original.default_factory, items)
    try:
        made = kind(items)
    except Exception:  # its constructor takes something else
        made = None
    if made is not None and made.keys() == items.keys():
        return made
    filled: Any = copy.copy(original)
    for key, item in items.items():
        filled[key] = item
    return filled


def _is_dataclass(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _names_of(value: Any) -> list[str]:
    """The fields of a dataclass that are set."""
    return [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]


def _further_keys_of(value: Any) -> list[Any]:
    """The keys of a mapping that are no fields of it, though it is a dataclass."""
    if not isinstance(value, Mapping):
        return []
    names = {field.name for field in dataclasses.fields(value)}  # type: ignore[arg-type]
    return [key for key in value if key not in names]


def _is_cached_property(kind: type, name: str) -> bool:
    return any(isinstance(vars(klass).get(name), cached_property) for klass in kind.__mro__)

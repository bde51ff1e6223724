"""Nested batches and outputs: moving them to a device, mapping their leaves, splitting them along time."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections import UserDict, UserList, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from typing import Any

from camshaft.hooks_core.support.devices import copies_asynchronously
from camshaft.hooks_core.support.messages import must_be

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
    asynchronous = copies_asynchronously(device)

    def move(item: Any) -> Any:
        if isinstance(item, _tensor_class()):
            return item.to(device, non_blocking=asynchronous)
        moved = item.to(device)
        return item if moved is None else moved  # some batch classes move themselves in place

    return map_nested(batch, _moves_itself, move)


def _moves_itself(item: Any) -> bool:
    return hasattr(item, "to")


@cache
def _tensor_class() -> type[Any]:
    from torch import Tensor  # an import statement at each tensor would take a microsecond

    return Tensor


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
    kind = type(value)  # the usual collections first, each by one comparison: every batch comes here
    if kind is list:
        return [map_nested(item, is_leaf, function) for item in value]
    if kind is tuple:
        return tuple([map_nested(item, is_leaf, function) for item in value])
    if kind is dict:
        return {key: map_nested(item, is_leaf, function) for key, item in value.items()}
    parts = parts_of(value)
    return value if parts is None else rebuild(value, [map_nested(part, is_leaf, function) for part in parts])


def parts_of(value: Any) -> list[Any] | None:
    """Return the items of a collection, the values of a mapping or the fields of a dataclass; None for anything else.

    Collections are lists, tuples (named ones, too), deques and `UserList`. A mapping that is a dataclass, such as a
    `ModelOutput` of transformers, has its fields and then its further keys.
    """
    if isinstance(value, _SEQUENCES):
        return list(value)
    if _is_dataclass(value):
        return [getattr(value, name) for name in _names_of(value)] + [value[key] for key in _extra_keys_of(value)]
    if isinstance(value, Mapping):
        return list(value.values())
    return None


def rebuild(original: Any, parts: Sequence[Any]) -> Any:
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
    if isinstance(original, tuple):
        return kind(parts)
    if isinstance(original, _SEQUENCES):
        copied: Any = copy.copy(original)
        copied.clear()
        copied.extend(parts)
        return copied
    if _is_dataclass(original):
        return _rebuild_dataclass(original, parts)
    return _rebuild_mapping(original, dict(zip(original, parts, strict=True)))


def _rebuild_dataclass(original: Any, parts: Sequence[Any]) -> Any:
    names = _names_of(original)
    if isinstance(original, Mapping):
        made: Any = type(original)(**dict(zip(names, parts, strict=False)))
        for key, part in zip(_extra_keys_of(original), parts[len(names) :], strict=True):
            made[key] = part
        return made
    copied = copy.copy(original)
    for name, part in zip(names, parts, strict=True):
        object.__setattr__(copied, name, part)  # the dataclass may be frozen
    for name in [*getattr(copied, "__dict__", ())]:
        if isinstance(getattr(type(copied), name, None), cached_property):
            vars(copied).pop(name)
    return copied


def _rebuild_mapping(original: Any, items: dict[Any, Any]) -> Any:
    kind: Any = type(original)
    if isinstance(original, UserDict):
        copied = copy.copy(original)  # with what a subclass keeps beside its data
        copied.data = items
        return copied
    if isinstance(original, defaultdict):
        return kind(original.default_factory, items)
    with contextlib.suppress(Exception):  # its constructor may take something else
        made = kind(items)
        if made.keys() == items.keys():
            return made
    copied = copy.copy(original)
    for key, item in items.items():
        copied[key] = item
    return copied


def _is_dataclass(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _names_of(value: Any) -> list[str]:
    """Return the fields of a dataclass that are set."""
    return [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]


def _extra_keys_of(value: Any) -> list[Any]:
    """Return the keys of a mapping that are no fields of it, though it is a dataclass."""
    if not isinstance(value, Mapping):
        return []
    names = {field.name for field in dataclasses.fields(value)}  # type: ignore[arg-type]
    return [key for key in value if key not in names]


_TIME_DIM = 1
_ACTION = "Implement `tbptt_split_batch` in the module."


def split_along_time(batch: Any, split_size: int, where: str) -> list[Any]:
    """Cut a batch into pieces along time, the second dimension.

    Goes through the collections that `transfer.parts_of` knows, of any nesting. Cut are tensors of at least two
    dimensions, and lists that hold a list of time steps for each sequence, without any tensor. Everything else stands
    whole in every split.

    Args:
        batch: The batch, batch dimension first.
        split_size: Time steps of a split; the last may be shorter.
        where: The caller, for errors.

    Returns:
        The splits, in the order of time. Their tensors are views of the batch's.

    Raises:
        ValueError: If `split_size` is less than 1, nothing in the batch has a time dimension, lengths in time differ or
            are 0, or it holds a `PackedSequence`.
    """
    if split_size < 1:
        raise ValueError(must_be("split_size", "at least 1", split_size, where, "Pass a number of time steps."))
    if type(batch) in (list, tuple) and _are_tensors_of_one_length(batch):  # the usual batch, on a fast path
        columns = [tensor.split(split_size, _TIME_DIM) for tensor in batch]
        return list(map(type(batch), zip(*columns, strict=True)))
    lengths = dict(_lengths(batch, "batch", where, is_batch=True))
    distinct = set(lengths.values())
    if len(distinct) != 1 or 0 in distinct:
        rule = "made of parts of one and the same length in time (dimension 1), at least 1"
        raise ValueError(must_be("batch", rule, lengths or type(batch).__name__, where, _ACTION))
    length = distinct.pop()
    return list(_pieces(batch, split_size, -(-length // split_size), is_batch=True))


def _are_tensors_of_one_length(parts: Sequence[Any]) -> bool:
    """Return whether there are parts, all of them tensors, and all of one length in time."""
    tensor_class = _tensor_class()
    if not all(isinstance(part, tensor_class) and part.dim() > _TIME_DIM for part in parts):
        return False
    lengths = {part.shape[_TIME_DIM] for part in parts}
    return len(lengths) == 1 and 0 not in lengths


def _lengths(value: Any, path: str, where: str, *, is_batch: bool = False) -> Iterator[tuple[str, int]]:
    """Yield the length in time of every part that has one, after its place in the batch."""
    from torch.nn.utils.rnn import PackedSequence

    if isinstance(value, _tensor_class()):
        if value.dim() > _TIME_DIM:
            yield path, value.shape[_TIME_DIM]
    elif isinstance(value, PackedSequence):
        raise ValueError(must_be(path, "something that can be cut along time", "PackedSequence", where, _ACTION))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _lengths(item, f"{path}[{key!r}]", where)
    elif _is_list_of_sequences(value, is_batch):
        for idx, sequence in enumerate(value):
            yield f"{path}[{idx}]", len(sequence)
    else:
        for idx, item in enumerate(parts_of(value) or ()):
            yield from _lengths(item, f"{path}[{idx}]", where)


def _pieces(value: Any, split_size: int, num_splits: int, *, is_batch: bool = False) -> Sequence[Any]:
    """Return the piece of a value for each split."""
    if isinstance(value, _tensor_class()) and value.dim() > _TIME_DIM:
        return list(value.split(split_size, _TIME_DIM))
    if _is_list_of_sequences(value, is_batch):
        starts = range(0, split_size * num_splits, split_size)
        return [[sequence[start : start + split_size] for sequence in value] for start in starts]
    parts = parts_of(value)
    if not parts:
        return [value] * num_splits
    columns = [_pieces(part, split_size, num_splits) for part in parts]
    return [rebuild(value, items) for items in zip(*columns, strict=True)]


def _is_list_of_sequences(value: Any, is_batch: bool) -> bool:
    """Return whether a value holds one list of time steps per sequence, rather than parts.

    In a part of a batch the time steps may be lists themselves, of features. A batch that is such a list three deep
    has parts that are two deep.
    """
    if not isinstance(value, list) or not value or not all(isinstance(sequence, list) for sequence in value):
        return False
    has_parts = is_batch and any(isinstance(step, (list, tuple)) for sequence in value for step in sequence)
    return not has_parts and not _holds_tensor_or_dict(value)


def _holds_tensor_or_dict(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(_holds_tensor_or_dict(item) for item in value)
    return isinstance(value, (_tensor_class(), Mapping))

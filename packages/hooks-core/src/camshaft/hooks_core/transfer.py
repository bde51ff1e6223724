"""Moving a batch, whatever its nesting, to a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def move_to_device(batch: Any, device: Any) -> Any:
    """Move every tensor of a batch to a device.

    Goes through lists, tuples, named tuples and dictionaries of any nesting. Whatever else has a `to` method
    (a `PackedSequence`, a batch class of one's own) moves itself; everything else stays as it is.

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
    if isinstance(batch, dict):
        return rebuild_dict(batch, {key: _move(item, device, asynchronous) for key, item in batch.items()})
    if isinstance(batch, (list, tuple)):
        return rebuild_sequence(batch, [_move(item, device, asynchronous) for item in batch])
    return batch


def _move_itself(batch: Any, device: Any, asynchronous: bool) -> Any:
    from torch import Tensor

    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=asynchronous)
    moved = batch.to(device)
    return batch if moved is None else moved  # some batch classes move themselves in place


def rebuild_sequence(original: Sequence[Any], items: Sequence[Any]) -> Any:
    """A list or (named) tuple of the original's class with other items."""
    kind: Any = type(original)
    return kind(*items) if hasattr(kind, "_fields") else kind(items)


def rebuild_dict(original: dict[Any, Any], items: dict[Any, Any]) -> Any:
    """A dictionary of the original's class, such as `OrderedDict` or `defaultdict`, with other values."""
    copied = original.copy()
    copied.update(items)
    return copied

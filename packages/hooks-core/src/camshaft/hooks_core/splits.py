"""Cutting a batch, whatever its nesting, along time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from camshaft.hooks_core.messages import must_be
from camshaft.hooks_core.transfer import parts_of, rebuilt

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
        where: Who splits, for errors.

    Returns:
        The splits, in the order of time. Their tensors are views of the batch's.

    Raises:
        ValueError: If `split_size` is less than 1, nothing in the batch has a time dimension, lengths in time differ or
            are 0, or it holds a `PackedSequence`.
    """
    if split_size < 1:
        raise ValueError(must_be("split_size", "at least 1", split_size, where, "Pass a number of time steps."))
    if type(batch) in (list, tuple) and _are_tensors_of_one_length(batch):  # the usual batch, in the shortest way
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
    """Whether there are parts, all of them are tensors, and all go equally far in time."""
    tensor_class, lengths = _tensor_class(), set()
    for part in parts:
        if not isinstance(part, tensor_class) or part.dim() <= _TIME_DIM:
            return False
        lengths.add(part.shape[_TIME_DIM])
    return len(lengths) == 1 and 0 not in lengths


@cache
def _tensor_class() -> type[Any]:
    from torch import Tensor

    return Tensor


def _lengths(value: Any, path: str, where: str, *, is_batch: bool = False) -> Iterator[tuple[str, int]]:
    """The length in time of every part that has one, with its place in the batch."""
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
    """A value as each split has it."""
    if isinstance(value, _tensor_class()) and value.dim() > _TIME_DIM:
        pieces: Sequence[Any] = value.split(split_size, _TIME_DIM)
        return pieces
    if _is_list_of_sequences(value, is_batch):
        starts = range(0, split_size * num_splits, split_size)
        return [[sequence[start : start + split_size] for sequence in value] for start in starts]
    parts = parts_of(value)
    if not parts:
        return [value] * num_splits
    columns = [_pieces(part, split_size, num_splits) for part in parts]
    return [rebuilt(value, items) for items in zip(*columns, strict=True)]


def _is_list_of_sequences(value: Any, is_batch: bool) -> bool:
    """Whether a value holds one list of time steps per sequence, rather than parts.

    In a part of a batch the time steps may be lists themselves, of features. A batch that is such a list three deep
    has parts that are two deep.
    """
    if not isinstance(value, list) or not value or not all(isinstance(sequence, list) for sequence in value):
        return False
    if is_batch and any(isinstance(step, (list, tuple)) for sequence in value for step in sequence):
        return False
    return not _holds_tensor_or_dict(value)


def _holds_tensor_or_dict(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(_holds_tensor_or_dict(item) for item in value)
    return isinstance(value, (_tensor_class(), Mapping))

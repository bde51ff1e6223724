"""How ranks come to one decision."""

from __future__ import annotations

from typing import TypeVar

from torch import distributed

T = TypeVar("T")


def from_rank_zero(value: T) -> T:
    """Rank 0's value on every rank; the value itself where there are no others. Collective.

    Args:
        value: Anything that can be pickled; only rank 0's counts.
    """
    if not (distributed.is_available() and distributed.is_initialized()) or distributed.get_world_size() == 1:
        return value
    box = [value]
    distributed.broadcast_object_list(box, src=0)
    return box[0]

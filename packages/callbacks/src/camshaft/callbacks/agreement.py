"""How ranks come to one decision."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from camshaft.hooks_core.protocols import Strategy

T = TypeVar("T")


def from_rank_zero(strategy: Strategy, decide: Callable[[], T]) -> T:
    """What rank 0 decides, on every rank. Collective.

    Args:
        strategy: The run's strategy. With one process nothing is sent.
        decide: Called on rank 0 alone; what it returns can be pickled.

    Raises:
        Exception: On every rank, what `decide` raised on rank 0. Where the error cannot be pickled, others raise a
            `RuntimeError` with its text.
    """
    if strategy.world_size == 1:
        return decide()
    if strategy.global_rank != 0:
        decided, failure = strategy.broadcast((None, None))
        if failure is not None:
            raise failure
        return decided  # type: ignore[return-value]
    try:
        value = decide()
    except Exception as error:
        strategy.broadcast((None, _as_sent(error)))
        raise
    strategy.broadcast((value, None))
    return value


def _as_sent(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"Rank 0 raised {type(error).__name__}: {error}")
    return error

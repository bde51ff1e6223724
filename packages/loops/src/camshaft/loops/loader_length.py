"""How many batches a loader promises, and reading no more than these."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from camshaft.loops.loader_copy import is_stream

UNKNOWN = float("inf")
"""The number of batches of a loader that does not tell."""

_MISSING = object()


def length_of(loader: Iterable[Any]) -> int | float:
    """The number of batches that a loader promises, or infinity if it does not tell."""
    try:
        return len(loader)  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):
        return UNKNOWN


def read_promised(
    loader: Iterable[Any], num_batches: int | float, first: int = 0, iterator: Iterator[Any] | None = None
) -> Iterator[Any]:
    """Iterate over a loader, up to a number of batches that it promises; nothing is read beyond them.

    The sampler of a data loader that is taken whole comes to its end nevertheless, as in a plain `for`: what it does
    there (drawing from a generator of its own, say) matters to the next epoch, and no data is read for that. Another
    loader that gives nothing, though it promises something, is begun once more: it may have waited at its end for being
    asked beyond it.

    Args:
        loader: The loader.
        num_batches: How many batches to take in all; infinity takes all there are.
        first: How many of them were taken before.
        iterator: The loader's iterator; None begins one with the first batch.
    """
    iterator = iter(loader) if iterator is None else iterator
    num_given, may_begin_again = first, first == 0 and num_batches != UNKNOWN
    while num_given < num_batches:
        batch = next(iterator, _MISSING)  # no `for`, which would ask a loader that is its own iterator to begin anew
        if batch is not _MISSING:
            num_given += 1
            yield batch
        elif may_begin_again and num_given == 0:
            may_begin_again = False
            iterator = iterator if iterator is loader else iter(loader)
        else:
            return
    if num_batches == length_of(loader):
        _end_order(loader, iterator)


def _end_order(loader: Iterable[Any], iterator: Iterator[Any]) -> None:
    """Let an iterator that has given everything come to its end, if no data is read for that."""
    is_data_loader = hasattr(iterator, "_sampler_iter") and not is_stream(loader)
    is_read = is_data_loader and next(iterator._sampler_iter, _MISSING) is _MISSING  # type: ignore[attr-defined]
    if is_read or getattr(loader, "ends_as_promised", False):
        next(iterator, None)

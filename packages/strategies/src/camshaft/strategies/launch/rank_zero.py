"""Code that only the first process runs, without the others waiting for it for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

from camshaft.hooks_core.protocols import Strategy
from camshaft.strategies.launch.environment import find_process_environment

P = ParamSpec("P")
R = TypeVar("R")


class _Here(threading.local):
    """How many rank-zero-only pieces of code this thread is in, one within the other, and the outermost one's name."""

    depth = 0
    name = ""


_here = _Here()


def is_rank_zero() -> bool:
    """Whether this is the first process: by the process group, else by the variables of whoever started it."""
    return find_process_environment().global_rank == 0


def rank_zero_only(function: Callable[P, R]) -> Callable[P, R | None]:
    """Decorate a function that does something on the first process only; on the others it returns None at once.

    A collective of a strategy called inside raises `CollectiveError` rather than wait for processes that never come.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R | None:
        if not is_rank_zero():
            return None
        with _marking(f"`{function.__qualname__}`, which is `rank_zero_only`"):
            return function(*args, **kwargs)

    return call


@contextmanager
def rank_zero_first(strategy: Strategy) -> Iterator[None]:
    """Run the body on the first process, then on the others. Collective. For downloads and caches.

    Inside, no process may call a collective. The others wait for the first one as long as a collective waits.

    Args:
        strategy: Whose processes; it is connected.

    Raises:
        RuntimeError: On the others, if the body raised on the first process, which raises its own error.
    """
    if strategy.global_rank != 0:
        failure: str | None = strategy.broadcast(None)
        if failure is not None:
            raise RuntimeError(f"The body of `rank_zero_first` failed on rank 0, so it is not run here: {failure}")
        yield
        return
    try:
        with _marking("the body of `rank_zero_first`"):
            yield
    except BaseException as error:
        strategy.broadcast(f"{type(error).__name__}: {error}")
        raise
    strategy.broadcast(None)


def rank_zero_only_code() -> str | None:
    """The rank-zero-only code that the calling thread is in, in words; None if it is in none."""
    return _here.name if _here.depth else None


@contextmanager
def _marking(name: str) -> Iterator[None]:
    if _here.depth == 0:
        _here.name = name
    _here.depth += 1
    try:
        yield
    finally:
        _here.depth -= 1

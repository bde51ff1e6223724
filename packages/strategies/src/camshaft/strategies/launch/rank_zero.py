"""Code that only rank 0 runs, or runs first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import ParamSpec, TypeVar

from camshaft.hooks_core.protocols import Strategy
from camshaft.strategies.launch.environment import find_process_environment

P = ParamSpec("P")
R = TypeVar("R")


# The description of the outermost rank-zero-only code that this thread runs.
_active: ContextVar[str | None] = ContextVar("rank_zero_only_code", default=None)


def is_rank_zero() -> bool:
    """Return whether this is rank 0, by the process group or else by the launcher's environment variables."""
    return find_process_environment().global_rank == 0


def rank_zero_only(function: Callable[P, R]) -> Callable[P, R | None]:
    """Decorate a function that runs on rank 0 only; on other ranks it returns None at once.

    A strategy's collective called inside raises `CollectiveError`, as other ranks never reach it.

    Returns:
        The decorated function.
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
    """Run the body on rank 0, then on the other ranks. Collective. For downloads and caches.

    The body must not call a collective. Other ranks wait for rank 0 as long as a collective waits.

    Args:
        strategy: The connected strategy.

    Raises:
        RuntimeError: On other ranks, if the body raised on rank 0, which raises its own error.
    """
    if strategy.global_rank != 0:
        failure: str | None = strategy.broadcast(None)
        if failure is not None:
            raise RuntimeError(
                f"The body of `rank_zero_first` failed on rank 0, so it is not run here: {failure}. See the traceback "
                "of rank 0."
            )
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
    """Return the description of the rank-zero-only code that the calling thread runs; None if it runs none."""
    return _active.get()


@contextmanager
def _marking(name: str) -> Iterator[None]:
    token = _active.set(_active.get() or name)
    try:
        yield
    finally:
        _active.reset(token)

"""Where a process stands: in which run, and in which hook of it. Read from outside, so that a run pays nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

from camshaft.hooks_core.compilation import is_compiled_hook

_runs: list[tuple[int, Callable[[], str]]] = []
"""The runs of this process, each with its thread; one that began within another comes after it."""


@contextmanager
def running(place: Callable[[], str]) -> Iterator[None]:
    """Let `current_run` find a run while the body lasts.

    Args:
        place: Returns the verb, stage, epoch and batch that the run is at. Other threads may call it at any moment.
    """
    entry = (threading.get_ident(), place)
    _runs.append(entry)
    try:
        yield
    finally:
        _runs.remove(entry)


def current_run() -> tuple[int, str] | None:
    """Return the thread of the innermost run of this process and where that is; None outside of runs."""
    if not _runs:
        return None
    thread_id, place = _runs[-1]
    return thread_id, place()


def running_hook(frames: Iterable[FrameType]) -> str:
    """Return the name of the hook that is being called; empty if none is.

    Args:
        frames: Those of a thread, the innermost first.
    """
    return next((frame.f_code.co_name for frame in frames if is_compiled_hook(frame.f_code)), "")

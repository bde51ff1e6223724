"""Forks of processes in which other threads communicate: a worker that loads data must not begin with a lock held."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from types import FrameType
from typing import Any

from camshaft.hooks_core.dispatch.compilation import is_compiled_hook

_FIXED_IN = (3, 11, 10)
_FORK_DELAY_SECONDS = 0.001


@cache
def make_forks_safe() -> None:
    """Let this process fork although threads of torch.distributed run in it. Later calls do nothing.

    A thread that has ended a collective drops its tensors, for which it registers with the interpreter. Before
    CPython 3.11.10 a process that is forked in this moment begins with the interpreter's lock held by no thread, and
    waits for it forever (https://github.com/python/cpython/issues/112275). So a fork waits a millisecond there, in
    which the threads end, and then for that lock.
    """
    if sys.version_info < _FIXED_IN and hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_wait_before_fork)


def _wait_before_fork() -> None:
    time.sleep(_FORK_DELAY_SECONDS)
    sys._current_frames()  # takes the lock, and gives it back


class OrderlyExit(SystemExit):
    """Exit of the process after this run, raised in `teardown`; no error to trainers and loggers."""


def ipython_shell() -> Any:
    """Return the IPython shell of this process, such as a notebook's; None without one."""
    ipython = sys.modules.get("IPython")
    return None if ipython is None else ipython.get_ipython()


_runs: list[tuple[int, Callable[[], str]]] = []
"""Runs of this process, each with its thread; one that began within another comes after it."""


@contextmanager
def track_run(place: Callable[[], str]) -> Iterator[None]:
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

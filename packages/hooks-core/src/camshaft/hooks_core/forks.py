"""Forks of processes in which other threads communicate: a worker that loads data must not begin with a lock held."""

from __future__ import annotations

import os
import sys
import time
from functools import cache

_MENDED_IN = (3, 11, 10)
_SECONDS_TO_SETTLE = 0.001


@cache
def make_forks_safe() -> None:
    """Let this process fork although threads of torch.distributed run in it. Later calls do nothing.

    A thread that has ended a collective drops its tensors, for which it registers with the interpreter. Before
    CPython 3.11.10 a process that is forked in this moment begins with the interpreter's lock held by nobody, and waits
    for it forever (https://github.com/python/cpython/issues/112275). So a fork waits a millisecond there, in which the
    threads come to their end, and then for that lock.
    """
    if sys.version_info < _MENDED_IN and hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_settle)


def _settle() -> None:
    time.sleep(_SECONDS_TO_SETTLE)
    sys._current_frames()  # takes the lock, and gives it back

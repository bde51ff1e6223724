"""Warnings that point at the user's call, however deep in camshaft they are raised."""

from __future__ import annotations

import sys
import warnings
from types import FrameType


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the innermost line outside of camshaft: the call of a verb, or a hook that called into camshaft.

    Args:
        message: What to say.
        category: The kind of warning.
    """
    frame: FrameType | None = sys._getframe(1)
    stacklevel = 2
    while frame is not None and _is_own(frame):
        frame = frame.f_back
        stacklevel += 1
    warnings.warn(message, category, stacklevel=stacklevel)


def _is_own(frame: FrameType) -> bool:
    """Whether a frame runs camshaft's code, or what lies between: functions that dispatch generates, `contextlib`."""
    if frame.f_code.co_filename.startswith("<camshaft "):
        return True
    return str(frame.f_globals.get("__name__")).partition(".")[0] in ("camshaft", "contextlib")

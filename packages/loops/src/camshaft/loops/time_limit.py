"""How long training may take."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from camshaft.hooks_core.messages import must_be

_RULE = 'a text "DD:HH:MM:SS", a timedelta, a dictionary of its arguments, or None'


def to_seconds(max_time: Any, where: str) -> float | None:
    """A duration in seconds.

    Args:
        max_time: "DD:HH:MM:SS", a `timedelta`, a dictionary such as {"hours": 2}, or None for no limit.
        where: Who checks, for errors.

    Raises:
        TypeError, ValueError: If it is none of these, or not above 0.
    """
    if max_time is None:
        return None
    action = 'Pass for instance "00:02:30:00" for two and a half hours.'
    duration: timedelta | None = None
    if isinstance(max_time, timedelta):
        duration = max_time
    elif isinstance(max_time, Mapping):
        try:
            duration = timedelta(**max_time)
        except TypeError as error:
            raise TypeError(must_be("max_time", _RULE, dict(max_time), where, action)) from error
    elif isinstance(max_time, str):
        numbers = re.fullmatch(r"(\d+):(\d\d):(\d\d):(\d\d)", max_time.strip())
        if numbers is None:
            raise ValueError(must_be("max_time", _RULE, max_time, where, action))
        days, hours, minutes, seconds = map(int, numbers.groups())
        duration = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    if duration is None:
        raise TypeError(must_be("max_time", _RULE, max_time, where, action))
    if duration <= timedelta(0):
        raise ValueError(must_be("max_time", "longer than no time", max_time, where, action))
    return duration.total_seconds()


class Stopwatch:
    """Measures how long training has run, over all of its resumed parts.

    Args:
        elapsed_seconds: What earlier parts took.
    """

    def __init__(self, elapsed_seconds: float = 0.0) -> None:
        self._began = time.monotonic() - elapsed_seconds

    @property
    def elapsed_seconds(self) -> float:
        """The time so far."""
        return time.monotonic() - self._began

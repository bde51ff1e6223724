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
    try:
        duration = _to_duration(max_time)
    except (TypeError, ValueError, OverflowError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(must_be("max_time", _RULE, max_time, where, action)) from error
    if duration <= timedelta(0):
        raise ValueError(must_be("max_time", "longer than no time", max_time, where, action))
    return duration.total_seconds()


def _to_duration(max_time: Any) -> timedelta:
    """The duration; raises `TypeError`, `ValueError` or `OverflowError` if it is none."""
    if isinstance(max_time, timedelta):
        return max_time
    if isinstance(max_time, Mapping):
        return timedelta(**max_time)
    if not isinstance(max_time, str):
        raise TypeError("neither a text nor a duration")
    numbers = re.fullmatch(r"(\d+):(\d\d):(\d\d):(\d\d)", max_time.strip())
    if numbers is None:
        raise ValueError("not of the form DD:HH:MM:SS")
    days, hours, minutes, seconds = map(int, numbers.groups())
    return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)


class Stopwatch:
    """Measures how long training has run, over all of its resumed parts.

    Args:
        elapsed_seconds: What the parts before took.
    """

    def __init__(self, elapsed_seconds: float = 0.0) -> None:
        self._began = time.monotonic() - elapsed_seconds

    @property
    def elapsed_seconds(self) -> float:
        """The time so far."""
        return time.monotonic() - self._began

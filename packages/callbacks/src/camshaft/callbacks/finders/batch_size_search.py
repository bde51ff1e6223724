"""Searching for the largest number that fits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import attrs

SearchMode = Literal["power", "binsearch"]


@attrs.frozen
class Found:
    """What a search found.

    Attributes:
        size: The largest size that was seen to fit; None if none was.
        failed: The smallest size that was seen not to fit; None if there was none.
    """

    size: int | None
    failed: int | None


def search(
    mode: SearchMode,
    fits: Callable[[int], bool],
    *,
    start: int,
    largest: Callable[[], int],
    max_trials: int,
) -> Found:
    """Double a size until it does not fit, halve it if the first one does not; then, if asked for, bisect between.

    Args:
        mode: "power" stops where doubling does; "binsearch" bisects between the largest that fits and the smallest
            that does not.
        fits: Tries a size out.
        start: The size to try first.
        largest: The largest size that makes sense, asked after each trial.
        max_trials: How many trials to make.
    """
    good: int | None = None
    bad: int | None = None
    size = start
    for _ in range(max_trials):
        if fits(size):
            good = size
        else:
            bad = size
        if good is None:
            if size == 1:
                break
            size //= 2
        elif bad is None:
            size = min(2 * good, largest())
            if size <= good:
                break
        elif mode == "power" or bad - good <= 1:
            break
        else:
            size = (good + bad) // 2
    return Found(good, bad)

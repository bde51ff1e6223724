"""How far a pass over batches has come, how fast it is, and how this reads."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

_SMOOTHING = 0.3  # share of the newest interval in the shown rate


class Reading(NamedTuple):
    """What one row of a progress bar says.

    Args:
        label: What is running.
        position: Number of batches done.
        total: Number of batches in all; None if unknown.
        elapsed_seconds: Time spent in it, pauses left out.
        remaining_seconds: Estimate of the time to go; None if unknown.
        batches_per_second: None if unknown.
    """

    label: str
    position: int
    total: int | None
    elapsed_seconds: float
    remaining_seconds: float | None
    batches_per_second: float | None


class Meter:
    """Counts one pass over batches. The hook that runs per batch adds to `num_run` and does no more.

    Args:
        label: What is running.
        total: Number of batches in all; infinite if unknown.
        clock: Gives the time in seconds.

    Attributes:
        num_run: Number of batches that ran here.
        num_before: Number of batches that had run before, in a run that was resumed.
    """

    def __init__(self, label: str, total: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.label = label
        self.total = total
        self.num_run = 0
        self.num_before = 0
        self._clock = clock
        self._active_seconds = 0.0
        self._running_since: float | None = clock()
        self._rate: float | None = None
        self._rated_num = 0
        self._rated_at_seconds = 0.0

    @property
    def elapsed_seconds(self) -> float:
        """Time since the beginning without pauses."""
        running = 0.0 if self._running_since is None else self._clock() - self._running_since
        return self._active_seconds + running

    def pause(self) -> None:
        """Stop the clock, while another pass runs inside of this one."""
        self._active_seconds = self.elapsed_seconds
        self._running_since = None

    def resume(self) -> None:
        """Let the clock go on."""
        self._active_seconds = self.elapsed_seconds
        self._running_since = self._clock()

    def read(self) -> Reading:
        """What to show now. The rate leans on the time since the reading before, so that it follows changes."""
        elapsed = self.elapsed_seconds
        num_new, seconds = self.num_run - self._rated_num, elapsed - self._rated_at_seconds
        if num_new > 0 and seconds > 0:
            rate = num_new / seconds
            self._rate = rate if self._rate is None else _SMOOTHING * rate + (1 - _SMOOTHING) * self._rate
            self._rated_num, self._rated_at_seconds = self.num_run, elapsed
        total = int(self.total) if math.isfinite(self.total) else None
        position = self.num_before + self.num_run
        remaining = None if total is None or not self._rate else max(total - position, 0) / self._rate
        return Reading(self.label, position, total, elapsed, remaining, self._rate)

    def summarize(self) -> str:
        """The whole pass in a few words: batches, time, mean rate."""
        elapsed = self.elapsed_seconds
        rate = f" ({format_rate(self.num_run / elapsed)})" if elapsed > 0 and self.num_run else ""
        noun = "batch" if self.num_run == 1 else "batches"
        return f"{self.num_run} {noun} in {format_seconds(elapsed)}{rate}"


def format_rate(batches_per_second: float) -> str:
    """Such as "12.3 batches/s", or "4.2 s/batch" where a batch takes longer than a second."""
    if batches_per_second < 1:
        return f"{1 / batches_per_second:.1f} s/batch" if batches_per_second > 0 else "0 batches/s"
    digits = 0 if batches_per_second >= 100 else 1
    return f"{batches_per_second:.{digits}f} batches/s"


def format_seconds(seconds: float) -> str:
    """Such as "3.2 s" below a minute, "1:02:03" above."""
    return f"{seconds:.1f} s" if seconds < 59.95 else format_clock(seconds)


def format_clock(seconds: float | None) -> str:
    """Such as "0:07" or "1:02:03"; "-:--" for None."""
    if seconds is None:
        return "-:--"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def format_metrics(metrics: Mapping[str, float | int | str]) -> list[tuple[str, str]]:
    """Names with their values as they are shown: numbers with four significant digits, the rest as it is."""
    return [(name, _format_value(value)) for name, value in metrics.items()]


def _format_value(value: float | int | str) -> str:
    if not isinstance(value, float):
        return str(value)
    size = abs(value)
    if value == 0 or 1e-3 <= size < 1e4:
        return f"{value:#.4g}".rstrip(".")  # zeros stay, so that the line keeps still
    return f"{value:.0f}" if 1e4 <= size < 1e6 else f"{value:.3g}"


Output = Literal["terminal", "notebook", "plain"]

MetricTexts = Sequence[tuple[str, str]]
"""Names and values as they are shown."""


class ProgressDisplay(Protocol):
    """Rows that are redrawn in place. While it is open, what others print appears apart from them."""

    def draw(self, rows: Sequence[Reading], metrics: MetricTexts) -> None:
        """Replace what is shown: at least one row, the innermost pass last."""

    def keep(self, row: Reading, metrics: MetricTexts) -> None:
        """Show a row that stays, above those that are redrawn."""

    def close(self, erase: bool = False) -> None:
        """Give everything back that was taken; what is shown stays unless `erase` is true."""


def current_output() -> Output:
    """What standard output is: a terminal that can redraw, a notebook, or neither, such as a pipe or a file."""
    if is_notebook():
        return "notebook"
    is_smart = os.environ.get("TERM", "").lower() not in ("dumb", "unknown")
    return "terminal" if sys.stdout.isatty() and is_smart else "plain"


def is_notebook() -> bool:
    """Whether this runs in a kernel that shows rich output: Jupyter, Colab, VS Code."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and "IPKernelApp" in shell.config


def fold(metrics: MetricTexts, width: int) -> list[list[tuple[str, str]]]:
    """Metrics in as many lines as it takes, none of them broken: a name, a character, its value, two characters."""
    lines: list[list[tuple[str, str]]] = []
    room = 0
    for name, value in metrics:
        needed = len(name) + 1 + len(value)
        if not lines or needed + 2 > room:
            lines.append([])
            room = width + 2
        lines[-1].append((name, value))
        room -= needed + 2
    return lines

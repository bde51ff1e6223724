"""Progress of a pass over batches, its formatting, and the interface of displays."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

from camshaft.hooks_core.support.processes import ipython_shell

_SMOOTHING = 0.3  # weight of the newest interval in the rate


class Reading(NamedTuple):
    """Contents of one row of a progress bar.

    Args:
        label: Name of the pass.
        position: Number of batches done.
        total: Number of batches in all; None if unknown.
        elapsed_seconds: Time spent in it, without pauses.
        remaining_seconds: Estimate of the remaining time; None if unknown.
        batches_per_second: None if unknown.
    """

    label: str
    position: int
    total: int | None
    elapsed_seconds: float
    remaining_seconds: float | None
    batches_per_second: float | None


class Meter:
    """Counts one pass over batches. The hook of each batch only increments `num_run`.

    Args:
        label: Name of the pass.
        total: Number of batches in all; infinite if unknown.
        clock: Returns the time in seconds.

    Attributes:
        num_run: Number of batches in this run.
        num_before: Number of batches before them, in a resumed epoch.
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
        """Time since the start, without pauses."""
        running = 0.0 if self._running_since is None else self._clock() - self._running_since
        return self._active_seconds + running

    def pause(self) -> None:
        """Stop the clock, while another pass runs inside this one."""
        self._active_seconds = self.elapsed_seconds
        self._running_since = None

    def resume(self) -> None:
        """Restart the clock."""
        self._active_seconds = self.elapsed_seconds
        self._running_since = self._clock()

    def read(self) -> Reading:
        """Return the present reading; its rate is smoothed over readings, so that it follows changes."""
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
        """Return a text with batches, time and mean rate of the pass."""
        elapsed = self.elapsed_seconds
        rate = f" ({format_rate(self.num_run / elapsed)})" if elapsed > 0 and self.num_run else ""
        noun = "batch" if self.num_run == 1 else "batches"
        return f"{self.num_run} {noun} in {format_seconds(elapsed)}{rate}"


def format_rate(batches_per_second: float) -> str:
    """Return a text such as "12.3 batches/s", or "4.2 s/batch" if a batch takes longer than a second."""
    if 0 < batches_per_second < 1:
        return f"{1 / batches_per_second:.1f} s/batch"
    return f"{batches_per_second:.{0 if batches_per_second >= 100 or not batches_per_second else 1}f} batches/s"


def format_seconds(seconds: float) -> str:
    """Return a text such as "3.2 s" below a minute, "1:02:03" above."""
    return f"{seconds:.1f} s" if seconds < 59.95 else format_clock(seconds)


def format_clock(seconds: float | None) -> str:
    """Return a text such as "0:07" or "1:02:03"; "-:--" for None."""
    if seconds is None:
        return "-:--"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def format_metrics(metrics: Mapping[str, float | int | str]) -> list[tuple[str, str]]:
    """Return names with formatted values: floats with four significant digits, others as they are."""
    return [(name, _format_value(value)) for name, value in metrics.items()]


def _format_value(value: float | int | str) -> str:
    if not isinstance(value, float):
        return str(value)
    size = abs(value)
    if value == 0 or 1e-3 <= size < 1e4:
        return f"{value:#.4g}".rstrip(".")  # trailing zeros keep the width constant
    return f"{value:.0f}" if 1e4 <= size < 1e6 else f"{value:.3g}"


Output = Literal["terminal", "notebook", "plain"]
"""Where progress is shown; plain output is that of pipes and log files."""

MetricTexts = Sequence[tuple[str, str]]
"""Names and formatted values."""


class ProgressDisplay(Protocol):
    """Rows that are redrawn in place. While it is open, other output appears apart from them."""

    def draw(self, rows: Sequence[Reading], metrics: MetricTexts) -> None:
        """Redraw the rows: at least one, the innermost pass last.

        Args:
            metrics: Names and formatted values.
        """

    def keep(self, row: Reading, metrics: MetricTexts) -> None:
        """Draw a permanent row, above those that are redrawn.

        Args:
            metrics: Names and formatted values.
        """

    def close(self, erase: bool = False) -> None:
        """Restore the output; the drawing stays unless `erase` is true."""


def current_output() -> Output:
    """Return the kind of standard output: a terminal that can redraw, a notebook, or neither, such as a pipe."""
    shell = ipython_shell()
    if shell is not None and "IPKernelApp" in shell.config:  # a kernel with rich output: Jupyter, Colab, VS Code
        return "notebook"
    is_smart = os.environ.get("TERM", "").lower() not in ("dumb", "unknown")
    return "terminal" if sys.stdout.isatty() and is_smart else "plain"


def wrap_metrics(metrics: MetricTexts, width: int) -> list[list[tuple[str, str]]]:
    """Split metrics into lines of a width, each as a name, one character, its value and two characters.

    Returns:
        The lines, each of them pairs of name and value.
    """
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

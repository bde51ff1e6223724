"""Where progress is shown, and what can show it there."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Literal, Protocol

from camshaft.callbacks.displays.progress_meter import Reading

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

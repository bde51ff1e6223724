"""Drawing progress in a notebook, with rich."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from camshaft.callbacks.displays.progress_display import MetricTexts
from camshaft.callbacks.displays.progress_meter import Reading
from camshaft.callbacks.displays.terminal_display import import_rich, render


class NotebookDisplay:
    """Rows in an output of the cell that is replaced in place. It needs IPython and no widgets.

    Raises:
        ModuleNotFoundError: If rich is not installed.
    """

    def __init__(self) -> None:
        import_rich()
        self._handle: Any = None

    def draw(self, rows: Sequence[Reading], metrics: MetricTexts) -> None:
        """Replace what is shown."""
        self._show(_as_output(rows, metrics))

    def keep(self, row: Reading, metrics: MetricTexts) -> None:
        """Let the output end with this row; the next drawing gets an output of its own, below."""
        self._show(_as_output([row], metrics))
        self._handle = None

    def close(self, erase: bool = False) -> None:
        """Let go of the output."""
        if erase and self._handle is not None:
            self._handle.update({"text/plain": ""}, raw=True)
        self._handle = None

    def _show(self, output: Any) -> None:
        if self._handle is None:
            self._handle = import_module("IPython.display").display(output, display_id=True)
        else:
            self._handle.update(output)


def _as_output(rows: Sequence[Reading], metrics: MetricTexts) -> Any:
    """What a notebook shows as text and as HTML, which rich's tables do by themselves."""
    from rich import get_console
    from rich.table import Table

    output = Table.grid()
    output.add_row(render(rows, metrics, get_console().width))
    return output

"""Displays of progress with rich, on a terminal and in a notebook; needs rich."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from rich import get_console
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from camshaft.callbacks.progress.meter import MetricTexts, Reading, format_clock, format_rate, wrap_metrics

if TYPE_CHECKING:
    from rich.console import JustifyMethod, RenderableType


_MAX_BAR_WIDTH = 40
_MIN_BAR_WIDTH = 10


class TerminalDisplay:
    """Rows that are redrawn in place at the bottom of the terminal; other output appears above them.

    While it is open, the cursor is hidden and the standard streams pass through rich.

    Args:
        console_arguments: Arguments of rich's `Console`.
    """

    def __init__(self, console_arguments: dict[str, Any] | None = None) -> None:
        self._console = Console(**console_arguments or {})
        # Without auto-refresh there is no thread: only hooks draw.
        self._live = Live(console=self._console, auto_refresh=False)
        self._live.start()

    def draw(self, rows: Sequence[Reading], metrics: MetricTexts) -> None:
        """Redraw the rows, with `metrics` at the first."""
        self._live.update(render(rows, metrics, self._console.width), refresh=True)

    def keep(self, row: Reading, metrics: MetricTexts) -> None:
        """Print a permanent row with `metrics`, above those that are redrawn."""
        self._console.print(render([row], metrics, self._console.width))

    def close(self, erase: bool = False) -> None:
        """Restore the cursor and the standard streams; the drawing stays unless `erase` is true."""
        self._live.transient = erase
        self._live.stop()


def render(rows: Sequence[Reading], metrics: MetricTexts, width: int) -> RenderableType:
    """Return the rows in columns, with the metrics beside the first if there is room, else below.

    Args:
        rows: At least one.
        metrics: Names and formatted values.
        width: Width of the terminal in characters.
    """
    texts = [_row_texts(row) for row in rows]
    column_widths = [max(cell.cell_len for cell in column) + 1 for column in zip(*texts, strict=True)]
    # A narrow terminal drops the rate first, then the time.
    num_columns = len(column_widths)
    while num_columns > 2 and sum(column_widths[:num_columns]) + _MIN_BAR_WIDTH > width:
        num_columns -= 1
    free = width - 1 - sum(column_widths[:num_columns])
    shown = _metrics_text(metrics)
    is_beside = _MIN_BAR_WIDTH + shown.cell_len + 1 <= free
    bar_width = max(min(free - (shown.cell_len + 1 if is_beside else 0), _MAX_BAR_WIDTH), 1)
    grid = Table.grid(padding=(0, 1, 0, 0))
    justified: list[JustifyMethod] = ["left", "left", "right", "right", "right"]
    for justify in justified[: num_columns + 1] + justified[:is_beside]:
        grid.add_column(no_wrap=True, justify=justify)
    for row_idx, (row, (label, *facts)) in enumerate(zip(rows, texts, strict=True)):
        bar = ProgressBar(
            total=row.total, completed=row.position, width=bar_width, pulse=row.total is None, animation_time=0.0
        )
        beside = [shown] if is_beside and row_idx == 0 else []
        grid.add_row(label, bar, *facts[: num_columns - 1], *beside)
    below = [] if is_beside else [_metrics_text(line) for line in wrap_metrics(metrics, width)]
    return Group(grid, *below) if below else grid


def _row_texts(row: Reading) -> tuple[Text, Text, Text, Text]:
    total = "?" if row.total is None else str(row.total)
    clock = f"{format_clock(row.elapsed_seconds)} < {format_clock(row.remaining_seconds)}"
    rate = "" if row.batches_per_second is None else format_rate(row.batches_per_second)
    return (
        Text(row.label, style="bold"),
        Text(f"{row.position:>{len(total)}}/{total}", style="green"),
        Text(clock, style="cyan"),
        Text(rate, style="dim"),
    )


def _metrics_text(metrics: MetricTexts) -> Text:
    parts: list[Any] = []
    for name, value in metrics:
        parts += ["  " if parts else "", (name, "dim"), " ", value]
    return Text.assemble(*parts, no_wrap=True, overflow="ellipsis")


class NotebookDisplay:
    """Rows in an output of the cell that is replaced in place. It needs IPython, but no widgets."""

    def __init__(self) -> None:
        self._handle: Any = None

    def draw(self, rows: Sequence[Reading], metrics: MetricTexts) -> None:
        """Redraw the rows, with `metrics` at the first."""
        self._show(_as_output(rows, metrics))

    def keep(self, row: Reading, metrics: MetricTexts) -> None:
        """Draw a permanent row with `metrics`; the next drawing gets a new output below."""
        self._show(_as_output([row], metrics))
        self._handle = None

    def close(self, erase: bool = False) -> None:
        """Forget the output; erase it if `erase` is true."""
        if erase and self._handle is not None:
            self._handle.update({"text/plain": ""}, raw=True)
        self._handle = None

    def _show(self, output: Any) -> None:
        if self._handle is None:
            self._handle = import_module("IPython.display").display(output, display_id=True)
        else:
            self._handle.update(output)


def _as_output(rows: Sequence[Reading], metrics: MetricTexts) -> Any:
    """Return a rich table, which a notebook shows as text and as HTML."""
    output = _NotebookTable.grid()
    output.add_row(render(rows, metrics, get_console().width))
    return output


class _NotebookTable(Table):
    """A table whose HTML has room below its last line, where the underscores of names are."""

    def _repr_mimebundle_(self, *arguments: Any, **named: Any) -> dict[str, str]:
        texts = super()._repr_mimebundle_(*arguments, **named)
        if "text/html" in texts:
            texts["text/html"] = texts["text/html"].replace(
                "line-height:normal", "line-height:1.5;padding-bottom:0.3em"
            )
        return texts

"""Drawing progress on a terminal, with rich."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from camshaft.callbacks.displays.progress_display import MetricTexts, fold
from camshaft.callbacks.displays.progress_meter import Reading, format_clock, format_rate

if TYPE_CHECKING:
    from rich.console import JustifyMethod, RenderableType
    from rich.live import Live
    from rich.text import Text

_MAX_BAR_WIDTH = 40
_MIN_BAR_WIDTH = 10


class TerminalDisplay:
    """Rows that are redrawn in place at the bottom of the terminal; what others print appears above them.

    While it is open, the cursor is hidden and the standard streams pass through rich.

    Args:
        console_arguments: Arguments of rich's `Console`.

    Raises:
        ModuleNotFoundError: If rich is not installed.
    """

    def __init__(self, console_arguments: dict[str, Any] | None = None) -> None:
        import_rich()
        from rich.console import Console
        from rich.live import Live

        self._console = Console(**console_arguments or {})
        # Without auto-refresh there is no thread: nothing is drawn but when a hook says so.
        self._live: Live = Live(console=self._console, auto_refresh=False)
        self._live.start()

    def draw(self, rows: Sequence[Reading], metrics: MetricTexts) -> None:
        """Replace what is shown."""
        self._live.update(render(rows, metrics, self._console.width), refresh=True)

    def keep(self, row: Reading, metrics: MetricTexts) -> None:
        """Print a row that stays, above those that are redrawn."""
        self._console.print(render([row], metrics, self._console.width))

    def close(self, erase: bool = False) -> None:
        """Give the cursor and the standard streams back; what is shown stays unless `erase` is true."""
        self._live.transient = erase
        self._live.stop()


def import_rich() -> None:
    """Raise `ModuleNotFoundError` with what to install if rich is missing."""
    try:
        import rich.live  # noqa: F401
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "`rich` must be installed to draw RichProgressBar, but it is missing. Run"
            " `pip install camshaft-callbacks[rich]`, or leave RichProgressBar out.",
            name=error.name,
        ) from error


def render(rows: Sequence[Reading], metrics: MetricTexts, width: int) -> RenderableType:
    """Rows below each other in columns; the metrics go beside the first where there is room, else below.

    Args:
        rows: At least one.
        metrics: Names and values as they are shown.
        width: Width of the terminal in characters.
    """
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    texts = [_row_texts(row) for row in rows]
    column_widths = [max(cell.cell_len for cell in column) + 1 for column in zip(*texts, strict=True)]
    # On a narrow terminal the rate goes first, then the time.
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
    below = [] if is_beside else [_metrics_text(line) for line in fold(metrics, width)]
    return Group(grid, *below) if below else grid


def _row_texts(row: Reading) -> tuple[Text, Text, Text, Text]:
    from rich.text import Text

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
    from rich.text import Text

    parts: list[Any] = []
    for name, value in metrics:
        parts += ["  " if parts else "", (name, "dim"), " ", value]
    return Text.assemble(*parts, no_wrap=True, overflow="ellipsis")

"""A progress bar drawn with rich."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from camshaft.callbacks.arguments import check_installed
from camshaft.callbacks.progress.meter import Output, ProgressDisplay
from camshaft.callbacks.progress.progress_bar import ProgressBar

if TYPE_CHECKING:
    from camshaft.hooks_core.protocols import TrainerProtocol


@dataclass
class RichProgressBarTheme:
    """Styles of a `RichProgressBar`, as rich names them: "bold red", "#6206E0"; "" for none.

    Args:
        description: Style of the title.
        progress_bar: Style of the finished part of a bar.
        progress_bar_finished: Style of a finished bar.
        progress_bar_pulse: Style of a bar of unknown length.
        batch_progress: Style of the number of batches.
        time: Style of elapsed and remaining time.
        processing_speed: Style of the batches per second.
        metrics: Style of the metrics.
        metrics_text_delimiter: Text between two metrics.
        metrics_format: Format of numbers among the metrics.
    """

    description: str = ""
    progress_bar: str = "#6206E0"
    progress_bar_finished: str = "#6206E0"
    progress_bar_pulse: str = "#6206E0"
    batch_progress: str = ""
    time: str = "dim"
    processing_speed: str = "dim underline"
    metrics: str = "italic"
    metrics_text_delimiter: str = " "
    metrics_format: str = ".3f"


class RichProgressBar(ProgressBar):
    """Shows batches done, time, estimated time to go, rate and the metrics logged for the progress bar, in colours.

    Drawn with rich (the extra `camshaft-callbacks[rich]`); a notebook needs no widgets for it. See `ProgressBar` for
    what is shown and when. While it is drawn, the cursor is hidden, and the standard streams pass through rich, so
    that printed text appears above the bar.

    With a theme, or a subclass that overrides `configure_columns`, a terminal shows the columns of a rich `Progress`.

    Args:
        refresh_rate, leave, refresh_rate_seconds: As in `ProgressBar`.
        theme: The styles; None is camshaft's own layout.
        console_kwargs: Arguments of rich's `Console` on a terminal.

    Raises:
        InvalidArgumentError: If a number is negative, or both rates are given.
        ModuleNotFoundError: When it first draws, if rich is not installed.
    """

    def __init__(
        self,
        refresh_rate: int | float | None = None,
        leave: bool = False,
        theme: RichProgressBarTheme | None = None,
        console_kwargs: dict[str, Any] | None = None,
        *,
        refresh_rate_seconds: float | None = None,
    ) -> None:
        super().__init__(refresh_rate_seconds=refresh_rate_seconds, leave=leave, refresh_rate=refresh_rate)
        self._has_theme = theme is not None
        self.theme = RichProgressBarTheme() if theme is None else theme
        self._console_kwargs = console_kwargs or {}

    def configure_columns(self, trainer: Any) -> list[Any]:
        """Return the columns of a rich `Progress`, before that of the metrics; to be overridden.

        Each task is a pass over batches.
        """
        check_installed("rich", "rich", self)
        from camshaft.callbacks.progress.rich_display import default_columns

        return list(default_columns(self.theme))

    def open_display(self, output: Output) -> ProgressDisplay:
        """Return the display."""
        check_installed("rich", "rich", self)
        from camshaft.callbacks.progress.rich_display import ColumnsDisplay, NotebookDisplay, TerminalDisplay

        if output == "notebook":
            return NotebookDisplay()
        if self._has_theme or type(self).configure_columns is not RichProgressBar.configure_columns:
            columns, theme = self.configure_columns(self.trainer), self.theme
            return ColumnsDisplay(columns, theme.metrics, theme.metrics_text_delimiter, self._console_kwargs)
        return TerminalDisplay(self._console_kwargs)

    def _shown_metrics(self, trainer: TrainerProtocol, module: Any) -> list[tuple[str, str]]:
        if not self._has_theme:
            return super()._shown_metrics(trainer, module)
        metrics = self.get_metrics(trainer, module)
        return [(name, _format_metric(value, self.theme.metrics_format)) for name, value in metrics.items()]


def _format_metric(value: Any, metrics_format: str) -> str:
    if isinstance(value, str):
        return value
    try:
        return format(value, metrics_format)
    except (TypeError, ValueError):
        return str(value)

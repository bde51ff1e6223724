"""A progress bar drawn with rich."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from camshaft.callbacks.progress.meter import Output, ProgressDisplay
from camshaft.callbacks.progress.progress_bar import ProgressBar


@dataclass
class RichProgressBarTheme:
    """Styles of a `RichProgressBar`, in the words of rich: "bold red", "#6206E0"; "" for none.

    Args:
        description: Of what is running.
        progress_bar: Of the part of the bar that is done.
        progress_bar_finished: Of a bar that is done.
        progress_bar_pulse: Of a bar whose end is not known.
        batch_progress: Of the number of batches.
        time: Of the times spent and to go.
        processing_speed: Of the batches per second.
        metrics: Of the metrics.
        metrics_text_delimiter: What is between two metrics.
        metrics_format: How a metric that is a number is written, as in `format`.
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
    that what is printed appears above the bar.

    With a theme, or a subclass that overrides `configure_columns`, a terminal shows the columns of a rich `Progress`.

    Args:
        refresh_rate: Batches from one drawing to the next, an int; 0 shows nothing. None draws by time; a float is
            taken for `refresh_rate_seconds`.
        leave: Whether the bar of each finished training epoch stays, above the running one.
        theme: The styles; None takes camshaft's own form.
        console_kwargs: Arguments of rich's `Console` on a terminal.
        refresh_rate_seconds: In place of `refresh_rate`, the least time between two drawings, in seconds; 0 draws after
            every batch. None means 0.1.

    Raises:
        InvalidArgumentError: If a number is negative, or both rates are given.
        ModuleNotFoundError: When it first draws, if rich is not installed.
    """

    _uncalled_methods: ClassVar[Mapping[str, str]] = {
        **ProgressBar._uncalled_methods,
        **dict.fromkeys(
            (
                "_init_progress",
                "_add_task",
                "_initialize_train_progress_bar_id",
                "_update",
                "_stop_progress",
                "_reset_progress_bar_ids",
                "refresh",
            ),
            "Override `configure_columns` or `open_display`.",
        ),
        "_update_metrics": "Override `get_metrics`.",
        "train_progress_bar": "Override `configure_columns`.",
        "val_progress_bar": "Override `configure_columns`.",
        "val_sanity_check_bar": "Override `configure_columns`.",
        "test_progress_bar": "Override `configure_columns`.",
    }

    def __init__(
        self,
        refresh_rate: int | float | None = None,
        leave: bool = False,
        theme: RichProgressBarTheme | None = None,
        console_kwargs: dict[str, Any] | None = None,
        *,
        refresh_rate_seconds: float | None = None,
    ) -> None:
        if isinstance(refresh_rate, float) and refresh_rate_seconds is None:
            refresh_rate, refresh_rate_seconds = None, refresh_rate
        super().__init__(refresh_rate_seconds=refresh_rate_seconds, leave=leave, refresh_rate=refresh_rate)
        self._has_theme = theme is not None
        self.theme = RichProgressBarTheme() if theme is None else theme
        self._console_kwargs = console_kwargs or {}

    def configure_columns(self, trainer: Any) -> list[Any]:
        """Return the columns of a rich `Progress`, to which one of the metrics is added; to be overridden.

        The tasks that they show have the batches of a pass.
        """
        from camshaft.callbacks.progress.rich_display import import_rich

        import_rich()
        from camshaft.callbacks.progress.rich_display import default_columns

        return list(default_columns(self.theme))

    def open_display(self, output: Output) -> ProgressDisplay:
        """Return what draws with rich."""
        if output == "notebook":
            from camshaft.callbacks.progress.rich_display import NotebookDisplay

            return NotebookDisplay()
        if self._has_theme or type(self).configure_columns is not RichProgressBar.configure_columns:
            columns = self.configure_columns(self.trainer)
            from camshaft.callbacks.progress.rich_display import ColumnsDisplay

            theme = self.theme
            return ColumnsDisplay(columns, theme.metrics, theme.metrics_text_delimiter, self._console_kwargs)
        from camshaft.callbacks.progress.rich_display import TerminalDisplay

        return TerminalDisplay(self._console_kwargs)

    def _format(self, metrics: Mapping[str, Any]) -> list[tuple[str, str]]:
        if not self._has_theme:
            return super()._format(metrics)
        return [(name, _formatted(value, self.theme.metrics_format)) for name, value in metrics.items()]


def _formatted(value: Any, metrics_format: str) -> str:
    if isinstance(value, str):
        return value
    try:
        return format(value, metrics_format)
    except (TypeError, ValueError):
        return str(value)

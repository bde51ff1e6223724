"""A progress bar drawn with rich."""

from __future__ import annotations

from typing import Any

from camshaft.callbacks.arguments import check_installed
from camshaft.callbacks.progress.meter import Output, ProgressDisplay
from camshaft.callbacks.progress.progress_bar import ProgressBar


class RichProgressBar(ProgressBar):
    """Shows batches done, time, estimated time to go, rate and the metrics logged for the progress bar, in colours.

    Drawn with rich (the extra `camshaft-callbacks[rich]`); a notebook needs no widgets for it. See `ProgressBar` for
    what is shown and when. While it is drawn, the cursor is hidden, and the standard streams pass through rich, so
    that printed text appears above the bar.

    Args:
        refresh_rate, leave, refresh_rate_seconds: As in `ProgressBar`.
        console_kwargs: Arguments of rich's `Console` on a terminal.

    Raises:
        InvalidArgumentError: If a number is negative, or both rates are given.
        ModuleNotFoundError: When it first draws, if rich is not installed.
    """

    def __init__(
        self,
        refresh_rate: int | float | None = None,
        leave: bool = False,
        *,
        console_kwargs: dict[str, Any] | None = None,
        refresh_rate_seconds: float | None = None,
    ) -> None:
        super().__init__(refresh_rate_seconds=refresh_rate_seconds, leave=leave, refresh_rate=refresh_rate)
        self._console_kwargs = console_kwargs or {}

    def open_display(self, output: Output) -> ProgressDisplay:
        """Return the display."""
        check_installed("rich", "rich", self)
        from camshaft.callbacks.progress.rich_display import NotebookDisplay, TerminalDisplay

        return NotebookDisplay() if output == "notebook" else TerminalDisplay(self._console_kwargs)

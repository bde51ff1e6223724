"""A progress bar drawn with rich."""

from __future__ import annotations

from camshaft.callbacks.displays.progress_display import Output, ProgressDisplay
from camshaft.callbacks.progress_bar import ProgressBar


class RichProgressBar(ProgressBar):
    """Shows batches done, time, estimated time to go, rate and the metrics logged for the progress bar, in colours.

    Drawn with rich (the extra `camshaft-callbacks[rich]`); a notebook needs no widgets for it. See `ProgressBar` for
    what is shown and when. While it is drawn, the cursor is hidden, and the standard streams pass through rich, so
    that what is printed appears above the bar.

    Args:
        refresh_rate_seconds: Least time between two drawings, in seconds; 0 draws after every batch.
        leave: Whether the bar of each finished training epoch stays, above the running one.

    Raises:
        InvalidArgumentError: If `refresh_rate_seconds` is negative.
        ModuleNotFoundError: When it first draws, if rich is not installed.
    """

    def open_display(self, output: Output) -> ProgressDisplay:
        """What draws with rich."""
        if output == "notebook":
            from camshaft.callbacks.displays.notebook_display import NotebookDisplay

            return NotebookDisplay()
        from camshaft.callbacks.displays.terminal_display import TerminalDisplay

        return TerminalDisplay()

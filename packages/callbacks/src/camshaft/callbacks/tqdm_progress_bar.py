"""A progress bar drawn with tqdm."""

from __future__ import annotations

from camshaft.callbacks.displays.progress_display import Output, ProgressDisplay
from camshaft.callbacks.progress_bar import ProgressBar


class TQDMProgressBar(ProgressBar):
    """Shows batches done, time, estimated time to go, rate and the metrics logged for the progress bar, as tqdm does.

    Drawn with `tqdm.auto` (the extra `camshaft-callbacks[tqdm]`): on a terminal as text, in a notebook by its widget,
    or, without ipywidgets, as a line of text that shows what runs innermost. See `ProgressBar` for what is shown and
    when. While it is drawn on a terminal, the standard streams pass through it, so that whole lines that are printed
    appear above the bar.

    Args:
        refresh_rate_seconds: Least time between two drawings, in seconds; 0 draws after every batch.
        leave: Whether the bar of each finished training epoch stays, above the running one.

    Raises:
        InvalidArgumentError: If `refresh_rate_seconds` is negative.
        ModuleNotFoundError: When it first draws, if tqdm is not installed.
    """

    def open_display(self, output: Output) -> ProgressDisplay:
        """What draws with tqdm."""
        from camshaft.callbacks.displays.tqdm_display import TqdmDisplay

        return TqdmDisplay(output)

"""Progress bar drawn with tqdm."""

from __future__ import annotations

from camshaft.callbacks.arguments import check_installed, check_number
from camshaft.callbacks.progress.meter import Output, ProgressDisplay
from camshaft.callbacks.progress.progress_bar import ProgressBar


class TQDMProgressBar(ProgressBar):
    """Shows batches done, time, estimated time to go, rate and the metrics logged for the progress bar, as tqdm does.

    Drawn with `tqdm.auto` (the extra `camshaft-callbacks[tqdm]`): on a terminal as text, in a notebook as a widget, or,
    without ipywidgets, as a line of text for the innermost pass. See `ProgressBar` for what is shown and when. While it
    is drawn on a terminal, the standard streams pass through it, so that printed lines appear above the bar.

    Args:
        refresh_rate, leave, refresh_rate_seconds: As in `ProgressBar`.
        process_position: Number of other progress bars above this one, of up to two lines each.

    Raises:
        InvalidArgumentError: If a number is negative, or both rates are given.
        ModuleNotFoundError: When it first draws, if tqdm is not installed.
    """

    def __init__(
        self,
        refresh_rate: int | float | None = None,
        process_position: int = 0,
        leave: bool = False,
        *,
        refresh_rate_seconds: float | None = None,
    ) -> None:
        super().__init__(refresh_rate_seconds=refresh_rate_seconds, leave=leave, refresh_rate=refresh_rate)
        check_number(self, least=0, process_position=process_position)
        self.process_position = process_position

    def open_display(self, output: Output) -> ProgressDisplay:
        """Return the display."""
        check_installed("tqdm", "tqdm", self)
        from camshaft.callbacks.progress.tqdm_display import TqdmDisplay

        return TqdmDisplay(output, 2 * self.process_position)

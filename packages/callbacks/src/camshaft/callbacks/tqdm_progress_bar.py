"""A progress bar drawn with tqdm."""

from __future__ import annotations

from camshaft.callbacks.displays.progress_display import Output, ProgressDisplay
from camshaft.callbacks.errors import InvalidArgumentError
from camshaft.callbacks.progress_bar import ProgressBar


class TQDMProgressBar(ProgressBar):
    """Shows batches done, time, estimated time to go, rate and the metrics logged for the progress bar, as tqdm does.

    Drawn with `tqdm.auto` (the extra `camshaft-callbacks[tqdm]`): on a terminal as text, in a notebook by its widget,
    or, without ipywidgets, as a line of text that shows what runs innermost. See `ProgressBar` for what is shown and
    when. While it is drawn on a terminal, the standard streams pass through it, so that whole lines that are printed
    appear above the bar.

    Args:
        refresh_rate: Batches after whose multiples it may draw, if it is time; it may after an epoch's last, too. 0
            shows nothing.
        process_position: 0.
        leave: Whether the bar of each finished training epoch stays, above the running one.
        refresh_rate_seconds: Least time between two drawings, in seconds; 0 draws after every batch.

    Raises:
        InvalidArgumentError: If `refresh_rate` or `refresh_rate_seconds` is negative, or `process_position` is not 0.
        ModuleNotFoundError: When it first draws, if tqdm is not installed.
    """

    def __init__(
        self,
        refresh_rate: int = 1,
        process_position: int = 0,
        leave: bool = False,
        *,
        refresh_rate_seconds: float = 0.1,
    ) -> None:
        super().__init__(refresh_rate_seconds=refresh_rate_seconds, leave=leave)
        if process_position != 0:
            rule, where = "0, since a bar is drawn at the end of the output", type(self).__name__
            raise InvalidArgumentError("process_position", rule, process_position, where, "Leave it out.")
        self._refresh_every(refresh_rate)

    def open_display(self, output: Output) -> ProgressDisplay:
        """What draws with tqdm."""
        from camshaft.callbacks.displays.tqdm_display import TqdmDisplay

        return TqdmDisplay(output)

"""A progress bar drawn with rich."""

from __future__ import annotations

from typing import Any

from camshaft.callbacks.displays.progress_display import Output, ProgressDisplay
from camshaft.callbacks.errors import InvalidArgumentError
from camshaft.callbacks.progress_bar import ProgressBar


class RichProgressBar(ProgressBar):
    """Shows batches done, time, estimated time to go, rate and the metrics logged for the progress bar, in colours.

    Drawn with rich (the extra `camshaft-callbacks[rich]`); a notebook needs no widgets for it. See `ProgressBar` for
    what is shown and when. While it is drawn, the cursor is hidden, and the standard streams pass through rich, so
    that what is printed appears above the bar.

    Args:
        refresh_rate: Batches after whose multiples it may draw, if it is time; it may after an epoch's last, too. 0
            shows nothing.
        leave: Whether the bar of each finished training epoch stays, above the running one.
        theme: None.
        console_kwargs: None, or empty.
        refresh_rate_seconds: Least time between two drawings, in seconds; 0 draws after every batch.

    Raises:
        InvalidArgumentError: If `refresh_rate` or `refresh_rate_seconds` is negative, or `theme` or `console_kwargs` is
            given.
        ModuleNotFoundError: When it first draws, if rich is not installed.
    """

    def __init__(
        self,
        refresh_rate: int = 1,
        leave: bool = False,
        theme: Any = None,
        console_kwargs: dict[str, Any] | None = None,
        *,
        refresh_rate_seconds: float = 0.1,
    ) -> None:
        super().__init__(refresh_rate_seconds=refresh_rate_seconds, leave=leave)
        where, action = type(self).__name__, "Leave it out, or define `open_display` in a subclass."
        if theme is not None:
            raise InvalidArgumentError("theme", "None, since colours cannot be chosen", theme, where, action)
        if console_kwargs:
            rule = "None, since rich's own console is used"
            raise InvalidArgumentError("console_kwargs", rule, console_kwargs, where, action)
        self._refresh_every(refresh_rate)

    def open_display(self, output: Output) -> ProgressDisplay:
        """What draws with rich."""
        if output == "notebook":
            from camshaft.callbacks.displays.notebook_display import NotebookDisplay

            return NotebookDisplay()
        from camshaft.callbacks.displays.terminal_display import TerminalDisplay

        return TerminalDisplay()

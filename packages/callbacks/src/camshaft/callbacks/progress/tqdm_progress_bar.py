"""Progress bar drawn with tqdm, on a terminal or in a notebook."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, TextIO

from camshaft.callbacks.arguments import check_installed, check_number
from camshaft.callbacks.progress.meter import MetricTexts, Output, ProgressDisplay, Reading, wrap_metrics
from camshaft.callbacks.progress.progress_bar import ProgressBar

_UNKNOWN_WIDTH = 110


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
        return TqdmDisplay(output, 2 * self.process_position)


class TqdmDisplay:
    """One tqdm bar per row, and further rows of text for metrics that do not fit beside the first.

    Args:
        output: "terminal" or "notebook".
        position: Number of lines of other bars above the first row.
    """

    def __init__(self, output: Output, position: int = 0) -> None:
        tqdm: Any = import_module("tqdm.auto").tqdm
        self._position = position
        self._bar_class = _bar_class(tqdm)
        self._has_widgets = any(klass.__name__ == "tqdm_notebook" for klass in tqdm.__mro__)
        # Text in a notebook can return to the start of its line, but not further up.
        self._is_one_line = output == "notebook" and not self._has_widgets
        self._file: TextIO = sys.stdout
        self._bars: list[Any] = []
        self._replaced: dict[str, _LinesAboveBars] = {}
        if not self._has_widgets:
            self._take_streams()

    def draw(self, rows: Sequence[Reading], metrics: MetricTexts) -> None:
        """Redraw the rows."""
        if self._is_one_line:
            rows = rows[-1:]
        first = self._row(0, rows[0])
        postfix = _join(metrics)
        is_beside = self._has_widgets or self._is_one_line or first.has_room(postfix)
        texts = [] if is_beside else [_join(line) for line in wrap_metrics(metrics, first.width)]
        while len(self._bars) > len(rows) + len(texts):
            _close(self._bars.pop(), leave=False)
        first.show(rows[0], postfix if is_beside else "")
        below: list[Reading | str] = [*rows[1:], *texts]
        for row_idx, content in enumerate(below, start=1):
            self._row(row_idx, content).show(content, "")

    def keep(self, row: Reading, metrics: MetricTexts) -> None:
        """Draw a permanent row, above those that are redrawn."""
        self.draw([row], metrics)
        if self._has_widgets:
            self._close_bars(leave=True)  # the next drawing makes new widgets below
        else:
            self.write_above("".join(f"{bar}\n" for bar in self._bars), self._file)

    def close(self, erase: bool = False) -> None:
        """Restore the standard streams; the drawing stays unless `erase` is true."""
        # As in tqdm, a bar below another does not stay.
        is_lowest = bool(self._bars) and (self._has_widgets or self._bars[0].pos == 0)
        self._close_bars(leave=is_lowest and not erase)
        for name, stream in self._replaced.items():
            if getattr(sys, name) is stream:
                setattr(sys, name, stream.original)
            stream.finish()
        self._replaced = {}

    def write_above(self, text: str, file: TextIO) -> None:
        """Write complete lines above the bars, and redraw these."""
        with self._bar_class.external_write_mode(file=self._file):
            file.write(text)
            file.flush()

    def _row(self, row_idx: int, content: Reading | str) -> Any:
        if row_idx == len(self._bars):
            options: dict[str, Any] = {"position": self._position + row_idx} if self._position else {}
            self._bars.append(self._bar_class(content, file=self._file, dynamic_ncols=True, unit="batch", **options))
        bar = self._bars[row_idx]
        bar.content = content
        return bar

    def _close_bars(self, leave: bool) -> None:
        bars, self._bars = self._bars, []
        # In order if they stay, since each then moves the cursor below itself.
        for bar in bars if leave else reversed(bars):
            _close(bar, leave)

    def _take_streams(self) -> None:
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if stream is self._file or stream.isatty():
                self._replaced[name] = replacement = _LinesAboveBars(stream, self)
                setattr(sys, name, replacement)


class _LinesAboveBars:
    """A text stream whose complete lines appear above the bars; an incomplete line waits for its end."""

    def __init__(self, original: TextIO, display: TqdmDisplay) -> None:
        self.original = original
        self._display = display
        self._incomplete = ""
        self._process = os.getpid()

    def write(self, text: str) -> int:
        # Other tqdm bars place themselves, and a forked process has no bars to redraw.
        is_placed = str(sys._getframe(1).f_globals.get("__name__")).partition(".")[0] == "tqdm"
        if is_placed or os.getpid() != self._process:
            return self.original.write(text)
        lines, newline, incomplete = text.rpartition("\n")
        if not newline:
            self._incomplete += text
            return len(text)
        whole, self._incomplete = f"{self._incomplete}{lines}\n", incomplete
        self._display.write_above(whole, self.original)
        return len(text)

    def writelines(self, lines: Sequence[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        self.original.flush()

    def finish(self) -> None:
        """Write the incomplete line."""
        incomplete, self._incomplete = self._incomplete, ""
        self.original.write(incomplete)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.original, name)


def _close(bar: Any, leave: bool) -> None:
    bar.leave = leave
    if not leave:
        bar.total = None  # an unfinished widget would stay, in red
    bar.close()


def _join(metrics: MetricTexts) -> str:
    return ", ".join(f"{name}={value}" for name, value in metrics)


def _bar_class(base: Any) -> Any:
    """Return a subclass of tqdm that shows a reading rather than its own counts and times."""

    class ReadingBar(base):  # type: ignore[misc]
        monitor_interval = 0  # no thread: only hooks draw

        def __init__(self, content: Reading | str, **options: Any) -> None:
            self.content = content
            super().__init__(total=content.total if isinstance(content, Reading) else None, **options)

        @property
        def format_dict(self) -> dict[str, Any]:
            facts: dict[str, Any] = super().format_dict
            content = self.content
            if isinstance(content, str):
                return {**facts, "bar_format": "{desc}", "prefix": content, "postfix": None}
            return {
                **facts,
                "n": content.position,
                "initial": content.position,  # else tqdm would compute a rate from batches before a resume
                "total": content.total,
                "elapsed": content.elapsed_seconds,
                "rate": content.batches_per_second,
                "prefix": content.label,
            }

        @property
        def width(self) -> int:
            return int(self.format_dict["ncols"] or _UNKNOWN_WIDTH)

        def has_room(self, postfix: str, bar_format: str | None = None) -> bool:
            """Return whether the row with the postfix has room for a bar of the default width."""
            facts = {**self.format_dict, "ncols": None, "bar_format": bar_format, "postfix": postfix}
            return len(self.format_meter(**facts)) <= self.width

        def _fitting_format(self) -> str | None:
            """Return a format that fits: a narrow terminal drops the rate first, then the time."""
            if hasattr(self, "container") or self.has_room(self.postfix):
                return None
            short = "{desc}: {n_fmt}" if self.total is None else "{l_bar}{bar}| {n_fmt}/{total_fmt}"
            timed = f"{short} [{{elapsed}}]" if self.total is None else f"{short} [{{elapsed}}<{{remaining}}]"
            return timed if self.has_room("", timed) else short

        def __str__(self) -> str:
            return str(super().__str__())[: self.width]  # tqdm itself cuts only what has a bar

        def show(self, content: Reading | str, postfix: str) -> None:
            self.content, self.postfix = content, postfix
            if isinstance(content, Reading):
                self.n, self.total = content.position, content.total
                self.bar_format = self._fitting_format()
                if hasattr(self, "container"):  # a widget has a separate maximum
                    self.container.children[1].max = content.total or 1
            self.refresh()

    return ReadingBar

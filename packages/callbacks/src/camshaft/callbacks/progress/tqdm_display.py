"""Drawing progress on a terminal or in a notebook, with tqdm."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, TextIO

from camshaft.callbacks.progress.meter import MetricTexts, Output, Reading, fold

_UNKNOWN_WIDTH = 110


class TqdmDisplay:
    """One tqdm bar a row, and further rows of text for metrics that do not fit beside the first.

    Args:
        output: "terminal" or "notebook".
        position: Number of lines above the first row that other bars of the terminal take.

    Raises:
        ModuleNotFoundError: If tqdm is not installed.
    """

    def __init__(self, output: Output, position: int = 0) -> None:
        tqdm = import_tqdm()
        self._position = position
        self._bar_class = _bar_class(tqdm)
        self._has_widgets = any(klass.__name__ == "tqdm_notebook" for klass in tqdm.__mro__)
        # Text in a notebook can go back to the beginning of its line, and no further up.
        self._is_one_line = output == "notebook" and not self._has_widgets
        self._file: TextIO = sys.stdout
        self._bars: list[Any] = []
        self._replaced: dict[str, _LinesAboveBars] = {}
        if not self._has_widgets:
            self._take_streams()

    def draw(self, rows: Sequence[Reading], metrics: MetricTexts) -> None:
        """Replace what is shown."""
        if self._is_one_line:
            rows = rows[-1:]
        first = self._row(0, rows[0])
        postfix = _join(metrics)
        is_beside = self._has_widgets or self._is_one_line or first.has_room(postfix)
        texts = [] if is_beside else [_join(line) for line in fold(metrics, first.width)]
        while len(self._bars) > len(rows) + len(texts):
            _close(self._bars.pop(), leave=False)
        first.show(rows[0], postfix if is_beside else "")
        below: list[Reading | str] = [*rows[1:], *texts]
        for row_idx, content in enumerate(below, start=1):
            self._row(row_idx, content).show(content, "")

    def keep(self, row: Reading, metrics: MetricTexts) -> None:
        """Leave a row above those that are redrawn."""
        self.draw([row], metrics)
        if self._has_widgets:
            self._close_bars(leave=True)  # the next drawing begins new widgets, below
            return
        kept = [str(bar) for bar in self._bars]
        self.write_above("".join(f"{line}\n" for line in kept), self._file)

    def close(self, erase: bool = False) -> None:
        """Give the standard streams back."""
        # As tqdm does: a bar below somebody else's bar does not stay.
        is_lowest = bool(self._bars) and (self._has_widgets or self._bars[0].pos == 0)
        self._close_bars(leave=is_lowest and not erase)
        for name, stream in self._replaced.items():
            if getattr(sys, name) is stream:
                setattr(sys, name, stream.original)
            stream.finish()
        self._replaced = {}

    def write_above(self, text: str, file: TextIO) -> None:
        """Write whole lines where the bars begin, and draw these again below."""
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
        # From the first to the last if they stay, since each that does moves the cursor below itself.
        for bar in bars if leave else reversed(bars):
            _close(bar, leave)

    def _take_streams(self) -> None:
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if stream is self._file or stream.isatty():
                self._replaced[name] = replacement = _LinesAboveBars(stream, self)
                setattr(sys, name, replacement)


def import_tqdm() -> Any:
    """Return tqdm's class; raise `ModuleNotFoundError` with what to install if it is missing."""
    try:
        return import_module("tqdm.auto").tqdm
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "`tqdm` must be installed to draw TQDMProgressBar, but it is missing. Run"
            " `pip install camshaft-callbacks[tqdm]`, or leave TQDMProgressBar out.",
            name=error.name,
        ) from error


class _LinesAboveBars:
    """A text stream whose whole lines appear above the bars; the beginning of a line waits for its end."""

    def __init__(self, original: TextIO, display: TqdmDisplay) -> None:
        self.original = original
        self._display = display
        self._begun = ""
        self._process = os.getpid()

    def write(self, text: str) -> int:
        # Other bars know where they stand, and a forked process does not know where these do.
        is_placed = str(sys._getframe(1).f_globals.get("__name__")).partition(".")[0] == "tqdm"
        if is_placed or os.getpid() != self._process:
            return self.original.write(text)
        lines, newline, begun = text.rpartition("\n")
        if not newline:
            self._begun += text
            return len(text)
        whole, self._begun = f"{self._begun}{lines}\n", begun
        self._display.write_above(whole, self.original)
        return len(text)

    def writelines(self, lines: Sequence[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        self.original.flush()

    def finish(self) -> None:
        """Write the line that was begun and not ended."""
        begun, self._begun = self._begun, ""
        self.original.write(begun)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.original, name)


def _close(bar: Any, leave: bool) -> None:
    bar.leave = leave
    if not leave:
        bar.total = None  # a widget that was drawn before its end would stay, in red
    bar.close()


def _join(metrics: MetricTexts) -> str:
    return ", ".join(f"{name}={value}" for name, value in metrics)


def _bar_class(base: Any) -> Any:
    """A kind of tqdm that says what a reading says, not what it counts and times itself."""

    class ReadingBar(base):  # type: ignore[misc]
        monitor_interval = 0  # no thread: nothing is drawn but when a hook says so

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
                "initial": content.position,  # without a rate, tqdm would divide what ran in an earlier run by the time
                "total": content.total,
                "elapsed": content.elapsed_seconds,
                "rate": content.batches_per_second,
                "prefix": content.label,
            }

        @property
        def width(self) -> int:
            return int(self.format_dict["ncols"] or _UNKNOWN_WIDTH)

        def has_room(self, postfix: str, bar_format: str | None = None) -> bool:
            """Whether the row with the postfix leaves room for a bar, of the width that it has where none is set."""
            facts = {**self.format_dict, "ncols": None, "bar_format": bar_format, "postfix": postfix}
            return len(self.format_meter(**facts)) <= self.width

        def _fitting_format(self) -> str | None:
            """The format with which the row fits: on a narrow terminal the rate goes first, then the time."""
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
                if hasattr(self, "container"):  # a widget has a maximum of its own
                    self.container.children[1].max = content.total or 1
            self.refresh()

    return ReadingBar


_WIDTH = 5

if TYPE_CHECKING:
    _Base = Any
else:
    _Base = import_tqdm()


class Tqdm(_Base):  # type: ignore[misc]
    """tqdm's bar, with numbers of the metrics so padded that the line keeps still."""

    monitor_interval = 0  # no thread

    @staticmethod
    def format_num(n: int | float | str) -> str:
        """Return a number, or a text that is one, with at least five characters; whole numbers stay as they are."""
        text = n if isinstance(n, str) else str(_Base.format_num(n))
        if isinstance(n, int) or "e" in text or len(text) >= _WIDTH:
            return text
        if "." not in text:
            try:
                float(text)
            except ValueError:
                return text
            text += "."
        return text.ljust(_WIDTH, "0")

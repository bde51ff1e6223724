"""A CSV file of metrics that grows by rows and, when a new metric appears, by columns."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from camshaft.hooks_core.durable_paths import written_whole

Row = Mapping[str, float | int | None]


class MetricsFile:
    """Appends rows of numbers to a CSV file; a column that a row lacks stays empty in it.

    A file that exists is continued. Its last line, if a crash left it unfinished, is cut off. Nothing is
    written before the first row.

    Args:
        path: Where the file is or will be; its folder is made when needed.

    Attributes:
        columns: Names of the file's columns, known once something was appended.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.columns: list[str] = []
        self._is_open = False

    def __getattr__(self, name: str) -> Any:
        """Raise `AttributeError` that says which loggers have more than numbers, such as `add_histogram`."""
        raise AttributeError(
            f"`experiment` must be one that has {name!r}, but got a {type(self).__name__} in "
            f"{self.__dict__.get('path')}. Pass the trainer a logger that has it, such as "
            "logger=TensorBoardLogger(...): a CSV file holds numbers alone."
        )

    def append(self, rows: Sequence[Row]) -> None:
        """Add rows; they outlive this process when this returns. On an error the file is as it was.

        Raises:
            OSError: If the file cannot be written.
        """
        if not rows:
            return
        if not self._is_open:
            self._continue_or_create()
        new_columns = dict.fromkeys(name for row in rows for name in row if name not in self.columns)
        if new_columns:
            self._widen([*self.columns, *new_columns], rows)
            return
        text = io.StringIO(newline="")
        _write(text, self.columns, rows)
        left = memoryview(text.getvalue().encode())
        # Past Python's buffer, whose rest would follow as the file is closed, after it was cut. What is written is with
        # the operating system: a killed process loses nothing, and training waits for no disk.
        with self.path.open("ab", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            try:
                while left:
                    left = left[file.write(left) :]
            except BaseException:
                file.truncate(size)
                raise

    def _continue_or_create(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            with self.path.open("rb+") as file:
                content = file.read()
                file.truncate(content.rfind(b"\n") + 1)
            with self.path.open(newline="", encoding="utf-8") as text:
                self.columns = next(csv.reader(text), [])
        self._is_open = True

    def _widen(self, columns: list[str], rows: Sequence[Row]) -> None:
        """Write the file anew with more columns, and further rows, beside the old one, and take its place."""
        with written_whole(self.path) as fresh, fresh.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerow(columns)
            if self.columns:
                with self.path.open(newline="", encoding="utf-8") as old:
                    _write(file, columns, csv.DictReader(old))
            _write(file, columns, rows)
            file.flush()
            if self.columns:
                os.fsync(file.fileno())  # before the rename, or a power cut could lose the rows that were there
        self.columns = columns


def _write(file: TextIO, columns: list[str], rows: Iterable[Mapping[str, Any]]) -> None:
    csv.writer(file, lineterminator="\n").writerows([row.get(column) for column in columns] for row in rows)

"""Logger that writes metrics to a CSV file and hyperparameters to a JSON file."""

from __future__ import annotations

import csv
import io
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TextIO

from camshaft.callbacks.arguments import InvalidArgumentError, check_number
from camshaft.callbacks.loggers.logged_values import numbers_by_name
from camshaft.callbacks.loggers.run_folder import RunFolderLogger
from camshaft.hooks_core.support.durable_files import append, flush, make_folder, replace_file
from camshaft.hooks_core.support.remote_files import edit_file, exists, is_url, join, local_copy, parent_of

Row = Mapping[str, float | int | None]
"""Numbers by column; None leaves a cell empty."""
Cells = frozenset[tuple[str, str]]
"""A row as it is written, without its empty cells."""


class CSVLogger(RunFolderLogger):
    """Writes `<save_dir>/<name>/<version>/metrics.csv` and, beside it, `hparams.json`.

    The CSV file has a column "step" and one per metric; each call of `log_metrics` makes a row. Rows are buffered
    and written in groups; those that `save` or `finalize` has written survive the process, and those before a
    checkpoint of the trainer a power cut, too. A fit that resumes in the folder leaves out rows that are there already.
    In a store each group makes the file anew. Only rank 0 writes: the trainer calls loggers there. See
    `RunFolderLogger` for when a version is claimed and its folder made.

    Args:
        save_dir: Folder of all experiments, or its URL.
        name: Folder of the experiment in it; "" uses `save_dir` itself.
        version: Folder of the run in that: a number n is "version_n", a text is the folder's name. None is the number
            after the highest that exists when it is first read. A given version is continued if it exists.
        prefix: Prefix of the metrics' names, followed by "-"; "" adds none.
        flush_logs_every_n_steps: Largest number of steps, or rows, that are buffered.

    Raises:
        InvalidArgumentError: If `flush_logs_every_n_steps` is less than 1.
    """

    METRICS_FILE: ClassVar[str] = "metrics.csv"

    def __init__(
        self,
        save_dir: str | os.PathLike[str],
        name: str = "camshaft_logs",
        version: int | str | None = None,
        prefix: str = "",
        flush_logs_every_n_steps: int = 100,
    ) -> None:
        action = "Use 1 to write each step at once."
        check_number(self, action, least=1, flush_logs_every_n_steps=flush_logs_every_n_steps)
        super().__init__(save_dir, name, version)
        self.prefix = prefix
        self.flush_logs_every_n_steps = flush_logs_every_n_steps
        self._newest_step: int | None = None
        self._step_on_disk: int | None = None
        self._file: MetricsFile | None = None
        self._known: Counter[Cells] = Counter()  # rows in the file that a resumed fit logs again

    @property
    def experiment(self) -> MetricsFile:
        """The CSV file."""
        if self._file is None:
            self._file = self._open()
        return self._file

    def _open(self) -> MetricsFile:
        return MetricsFile(join(self.log_dir, self.METRICS_FILE))

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Add a row. Tensors are read now, which waits for their device.

        Args:
            metrics: Numbers or scalar tensors by name; if empty, no row is added.
            step: Number of optimizer updates; None takes a metric called "step", or leaves the cell empty.

        Raises:
            InvalidArgumentError: If a value is no number, or a name holds a line break.
        """
        if not metrics:
            return
        row = numbers_by_name(metrics, self._names_start, self)
        for name in row:
            if "\n" in name or "\r" in name:
                # Each row is a line, so that one that a crash cut short can be recognised.
                rule, action = "numbers under names without line breaks", "Log scalars under names without line breaks."
                raise InvalidArgumentError("metrics", rule, name, self, action)
        logged_step = row.pop("step", None)
        held = self.experiment.metrics
        with_step: Row = {"step": logged_step if step is None else step, **row}
        if self._known and (cells := _cells(with_step)) in self._known:
            self._known -= Counter([cells])
        else:
            held.append(with_step)
        num_held_steps = 0
        if step is not None:
            self._step_on_disk = step - 1 if self._step_on_disk is None else self._step_on_disk
            num_held_steps = step - self._step_on_disk
            self._newest_step = step
        if max(num_held_steps, len(held)) >= self.flush_logs_every_n_steps:
            self.save()

    def save(self) -> None:
        """Write the buffered rows; they survive the end of this process when this returns.

        Raises:
            OSError: If the file cannot be written; the rows stay buffered.
        """
        if self._file is not None:
            self._file.save()
        self._step_on_disk = self._newest_step

    def sync(self) -> None:
        """Write the buffered rows; they and those before survive a power cut when this returns.

        Raises:
            OSError: If the file cannot be written.
        """
        self.save()
        if self._file is not None:
            self._file.sync()

    def resume_fit(self, global_step: int) -> None:
        """Leave out rows that are in the file already, when they are logged again. A new version has none.

        Args:
            global_step: Number of updates after which the fit goes on.
        """
        self._known.clear()
        if self._version is not None:
            self.save()
            path = join(self.log_dir, self.METRICS_FILE)
            self._known.update(_rows_since(global_step - 1, path) if exists(path) else ())

    def finalize(self, status: str) -> None:
        """Write the buffered rows, whatever `status` is. Logging may continue afterwards."""
        self.save()
        super().finalize(status)


class MetricsFile:
    """Appends rows of numbers to a CSV file; the cells of missing columns are empty.

    An existing file is continued. Its last line is removed if a crash left it incomplete. Nothing is written before the
    first row.

    Args:
        path: Path of the file, or its URL; its folder is made when needed. A store cannot append: each time the whole
            file is read, and a longer one is uploaded in its place.

    Attributes:
        columns: Names of the file's columns, known once rows were appended.
        metrics: Rows that `save` is to append.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._url = path if isinstance(path, str) and is_url(path) else None
        self.path = Path(path)
        self.columns: list[str] = []
        self.metrics: list[Row] = []
        self._is_open = False

    def __getattr__(self, name: str) -> Any:
        """Raise `AttributeError` if more than numbers is to be written, as by `add_histogram`; it names loggers."""
        raise AttributeError(
            f"{type(self).__name__} of {self.__dict__.get('path')} has no {name!r}, as a CSV file holds only numbers. "
            "Pass the trainer a logger that has it, such as logger=TensorBoardLogger(...)."
        )

    @property
    def log_dir(self) -> str:
        """Folder of the file."""
        return parent_of(self.metrics_file_path)

    @property
    def metrics_file_path(self) -> str:
        """Path of the file."""
        return self._url or str(self.path)

    @property
    def metrics_keys(self) -> list[str]:
        """Names of the columns."""
        return self.columns

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Hold back a row, until `save`.

        Args:
            metrics: Numbers or scalar tensors by name.
            step: Number of optimizer updates; None is the number of rows that are held back.

        Raises:
            InvalidArgumentError: If a value is no number.
        """
        numbers = numbers_by_name(metrics, "", self)
        self.metrics.append({"step": len(self.metrics) if step is None else step, **numbers})

    def save(self) -> None:
        """Append the rows that are held back.

        Raises:
            OSError: If the file cannot be written; the rows stay held back.
        """
        self.append(self.metrics)
        self.metrics = []

    def sync(self) -> None:
        """Flush the file to the disk; a store keeps what it has acknowledged."""
        if self._url is None and self.path.exists():
            flush(self.path)
            flush(self.path.parent)

    def append(self, rows: Sequence[Row]) -> None:
        """Append rows; they survive the end of this process when this returns. On an error the file is unchanged.

        Raises:
            OSError: If the file cannot be written.
        """
        if not rows:
            return
        if self._url is not None:
            with edit_file(self._url) as copied:
                longer = MetricsFile(copied)
                longer.append(rows)
            self.columns = longer.columns
            return
        if not self._is_open:
            self._continue_or_create()
        new_columns = dict.fromkeys(name for row in rows for name in row if name not in self.columns)
        if new_columns:
            self._widen([*self.columns, *new_columns], rows)
            return
        text = io.StringIO(newline="")
        _write(text, self.columns, rows)
        append(self.path, text.getvalue().encode())

    def _continue_or_create(self) -> None:
        make_folder(self.path.parent)
        if self.path.exists():
            with self.path.open("rb+") as file:
                content = file.read()
                file.truncate(content.rfind(b"\n") + 1)
            with self.path.open(newline="", encoding="utf-8") as text:
                self.columns = next(csv.reader(text), [])
        self._is_open = True

    def _widen(self, columns: list[str], rows: Sequence[Row]) -> None:
        """Replace the file by one with more columns and further rows."""
        with replace_file(self.path) as fresh, fresh.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerow(columns)
            if self.columns:
                with self.path.open(newline="", encoding="utf-8") as old:
                    _write(file, columns, csv.DictReader(old))
            _write(file, columns, rows)
            file.flush()
            if self.columns:
                os.fsync(file.fileno())  # before the rename, or a power cut could lose existing rows
        self.columns = columns


def _cells(row: Mapping[str, Any]) -> Cells:
    return frozenset((name, str(value)) for name, value in row.items() if value not in (None, ""))


def _rows_since(first_step: int, path: str) -> Iterator[Cells]:
    """Yield the rows of a file from a step on, without one that a crash left incomplete."""
    with local_copy(path) as file:
        content = file.read_bytes()
    whole = content[: content.rfind(b"\n") + 1].decode(errors="replace")
    for row in csv.DictReader(io.StringIO(whole, newline="")):
        if row.get("step") and float(row["step"]) >= first_step:
            yield _cells(row)


def _write(file: TextIO, columns: list[str], rows: Iterable[Mapping[str, Any]]) -> None:
    csv.writer(file, lineterminator="\n").writerows([row.get(column) for column in columns] for row in rows)

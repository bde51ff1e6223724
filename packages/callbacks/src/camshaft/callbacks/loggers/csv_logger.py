"""Logging metrics to a CSV file and hyperparameters to a JSON file."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TextIO

from camshaft.callbacks.arguments import InvalidArgumentError
from camshaft.callbacks.loggers.logged_values import numbers_by_name
from camshaft.callbacks.loggers.run_folder import RunFolderLogger
from camshaft.hooks_core.durable_paths import written_whole


class CSVLogger(RunFolderLogger):
    """Writes `<save_dir>/<name>/<version>/metrics.csv` and, beside it, `hparams.json`.

    The CSV file has a column "step" and one per metric; each call of `log_metrics` makes a row. Rows are held back and
    written in groups; what `save` or `finalize` has written survives a crash. One process writes: the trainer calls
    loggers on rank 0. See `RunFolderLogger` for when a version is claimed and its folder made.

    Args:
        save_dir: Folder of all experiments.
        name: Folder of the experiment in it; "" uses `save_dir` itself.
        version: Folder of the run in that: a number n stands for "version_n", a text for itself. None takes the number
            after the highest there is when it is first asked for. A version that is given is continued if it exists.
        prefix: Put before the metrics' names, with "-" between; "" leaves them as they are.
        flush_logs_every_n_steps: Rows are written at the latest this many steps, or rows, after those before.

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
        if flush_logs_every_n_steps < 1:
            raise InvalidArgumentError(
                "flush_logs_every_n_steps",
                "1 or more",
                flush_logs_every_n_steps,
                type(self).__name__,
                "Use 1 to write each step at once.",
            )
        super().__init__(save_dir, name, version)
        self.prefix = prefix
        self.flush_logs_every_n_steps = flush_logs_every_n_steps
        self._rows: list[Row] = []
        self._newest_step: int | None = None
        self._step_on_disk: int | None = None
        self._file: MetricsFile | None = None

    @property
    def experiment(self) -> MetricsFile:
        """The CSV file."""
        if self._file is None:
            self._file = MetricsFile(Path(self.log_dir, self.METRICS_FILE))
        return self._file

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Add a row; values are taken as they are now, those of tensors by waiting for their device.

        Args:
            metrics: Numbers or scalar tensors by name; without any, there is no row.
            step: Number of optimizer updates; None leaves the cell to a metric called "step", or empty.

        Raises:
            InvalidArgumentError: If a value is no number, or a name holds a line break.
        """
        if not metrics:
            return
        row = numbers_by_name(metrics, self.prefix, type(self).__name__)
        self._check_names(row)
        logged_step = row.pop("step", None)
        self._rows.append({"step": logged_step if step is None else step, **row})
        num_held_steps = 0
        if step is not None:
            if self._step_on_disk is None:
                self._step_on_disk = step - 1
            num_held_steps = step - self._step_on_disk
            self._newest_step = step
        if max(num_held_steps, len(self._rows)) >= self.flush_logs_every_n_steps:
            self.save()

    def save(self) -> None:
        """Write the rows that are held back; they survive a crash when this returns.

        Raises:
            OSError: If the file cannot be written; the rows are still held back then.
        """
        if self._rows:
            self.experiment.append(self._rows)
        self._rows = []
        self._step_on_disk = self._newest_step

    def finalize(self, status: str) -> None:
        """Write the rows that are held back, whatever `status` is. Logging may go on afterwards."""
        self.save()
        super().finalize(status)

    def _check_names(self, names: Mapping[str, object]) -> None:
        for name in names:
            if "\n" in name or "\r" in name:
                # In a CSV file a row is a line: what a crash cut short could not be told apart.
                rule, action = "numbers by name, each on one line", "Log scalars under names without line breaks."
                raise InvalidArgumentError("metrics", rule, name, type(self).__name__, action)


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

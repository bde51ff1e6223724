"""Logging metrics to a CSV file and hyperparameters to a JSON file."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from camshaft.callbacks.errors import InvalidArgumentError
from camshaft.callbacks.metrics_file import MetricsFile, Row


class CSVLogger:
    """Writes `<save_dir>/<name>/<version>/metrics.csv` and, beside it, `hparams.json`.

    The CSV file has a column "step" and one per metric; each call of `log_metrics` makes a row. Rows are held back and
    written in groups; what `save` or `finalize` has written survives a crash. Folders are made when something is
    first written. One process writes: the trainer calls loggers on rank 0.

    Args:
        save_dir: Folder of all experiments.
        name: Folder of the experiment in it; "" uses `save_dir` itself.
        version: Folder of the run in that: a number n stands for "version_n", a text for itself. None takes the number
            after the highest there is when it is first asked for. A version that exists is continued.
        prefix: Put before the metrics' names, with "-" between; "" leaves them as they are.
        flush_logs_every_n_steps: Rows are written at the latest this many steps, or rows, after those before.

    Raises:
        InvalidArgumentError: If `flush_logs_every_n_steps` is less than 1.
    """

    METRICS_FILE: ClassVar[str] = "metrics.csv"
    HPARAMS_FILE: ClassVar[str] = "hparams.json"

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
        self.prefix = prefix
        self.flush_logs_every_n_steps = flush_logs_every_n_steps
        self.hparams: dict[str, Any] = {}
        self._save_dir = os.fspath(save_dir)
        self._name = name
        self._version = version
        self._rows: list[Row] = []
        self._newest_step: int | None = None
        self._step_on_disk: int | None = None
        self._file: MetricsFile | None = None

    @property
    def save_dir(self) -> str:
        """Folder of all experiments."""
        return self._save_dir

    @property
    def name(self) -> str:
        """Name of the experiment; may be empty."""
        return self._name

    @property
    def root_dir(self) -> str:
        """Folder of the experiment, which holds its versions."""
        return os.path.join(self._save_dir, self._name) if self._name else self._save_dir

    @property
    def version(self) -> int | str:
        """Number or name of the run; chosen when first read, if the constructor did not say."""
        if self._version is None:
            self._version = self._next_version()
        return self._version

    @property
    def log_dir(self) -> str:
        """Folder of the run."""
        version = self.version
        return os.path.join(self.root_dir, version if isinstance(version, str) else f"version_{version}")

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
        start = f"{self.prefix}-" if self.prefix else ""
        row = {f"{start}{name}": self._number(name, value) for name, value in metrics.items()}
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

    def log_hyperparams(self, params: Mapping[str, Any]) -> None:
        """Add to `hparams.json` and write it; a name that is there already gets the new value.

        Args:
            params: Values by name; what JSON does not know is written as its `str`.
        """
        self.hparams.update(params)
        path = Path(self.log_dir, self.HPARAMS_FILE)
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
        try:
            fresh.write_text(json.dumps(_jsonable(self.hparams), indent=2) + "\n", encoding="utf-8")
            os.replace(fresh, path)
        finally:
            fresh.unlink(missing_ok=True)

    def save(self) -> None:
        """Write the rows that are held back; they survive a crash when this returns.

        Raises:
            OSError: If the file cannot be written; the rows are still held back then.
        """
        self.experiment.append(self._rows)
        self._rows = []
        self._step_on_disk = self._newest_step

    def finalize(self, status: str) -> None:
        """Write the rows that are held back, whatever `status` is. Logging may go on afterwards."""
        self.save()

    def _number(self, name: str, value: Any) -> float | int:
        number = value.item() if hasattr(value, "item") else value
        where, action = type(self).__name__, "Log scalars under names without line breaks."
        if not isinstance(number, int | float):
            raise InvalidArgumentError("metrics", f"numbers, also for {name!r}", value, where, action)
        if "\n" in name or "\r" in name:
            # In a CSV file a row is a line: what a crash cut short could not be told apart.
            raise InvalidArgumentError("metrics", "numbers by name, each on one line", name, where, action)
        return number

    def _next_version(self) -> int:
        try:
            names = os.listdir(self.root_dir)
        except FileNotFoundError:
            return 0
        matches = (re.fullmatch(r"version_(\d+)", name) for name in names)
        return max((int(match[1]) for match in matches if match), default=-1) + 1


def _jsonable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _jsonable(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)

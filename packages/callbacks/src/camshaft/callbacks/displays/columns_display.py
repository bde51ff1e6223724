"""Drawing progress on a terminal with the columns of a `rich.progress.Progress`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.text import Text

from camshaft.callbacks.displays.progress_display import MetricTexts
from camshaft.callbacks.displays.progress_meter import Reading


class ColumnsDisplay:
    """One task of a `Progress` for each row, drawn when a hook says so.

    Args:
        columns: What is shown of a task; its description, total and completed batches are those of the row.
        metrics_style: The style of the metrics, which are in a column behind the others, or "".
        delimiter: What is between two metrics.
        console_arguments: Arguments of rich's `Console`.
    """

    def __init__(
        self,
        columns: Sequence[ProgressColumn | str],
        metrics_style: str = "",
        delimiter: str = "  ",
        console_arguments: dict[str, Any] | None = None,
    ) -> None:
        column = TextColumn("{task.fields[metrics]}", style=metrics_style or "none", markup=False)
        self._delimiter = delimiter
        self._console = Console(**console_arguments or {})
        self._progress = Progress(*columns, column, console=self._console, auto_refresh=False)
        self._tasks: list[TaskID] = []
        self._progress.start()

    def draw(self, rows: Sequence[Reading], metrics: MetricTexts) -> None:
        """Replace what is shown."""
        progress = self._progress
        while len(self._tasks) > len(rows):
            progress.remove_task(self._tasks.pop())
        while len(self._tasks) < len(rows):
            self._tasks.append(progress.add_task("", total=None, metrics=""))
        for row_idx, (task, row) in enumerate(zip(self._tasks, rows, strict=True)):
            self._show(task, row, metrics if row_idx == 0 else ())
        progress.refresh()

    def keep(self, row: Reading, metrics: MetricTexts) -> None:
        """Print a row that stays, above those that are redrawn."""
        self.draw([row], metrics)
        self._console.print(self._progress.make_tasks_table(self._progress.tasks))

    def close(self, erase: bool = False) -> None:
        """Give the cursor and the standard streams back; what is shown stays unless `erase` is true."""
        self._progress.live.transient = erase
        self._progress.stop()

    def _show(self, task_id: TaskID, row: Reading, metrics: MetricTexts) -> None:
        progress = self._progress
        task = next(task for task in progress.tasks if task.id == task_id)
        if task.description != row.label:
            progress.reset(task_id, total=None)  # another pass, with a time of its own
        text = self._delimiter.join(f"{name}: {value}" for name, value in metrics)
        progress.update(task_id, description=row.label, total=row.total, completed=row.position, metrics=text)


class BatchesColumn(ProgressColumn):
    """Batches done and in all."""

    def __init__(self, style: str) -> None:
        self.style = style
        super().__init__()

    def render(self, task: Task) -> Text:
        """Return such as "3/10", "3/--" where the number is not known."""
        total = "--" if task.total is None else int(task.total)
        return Text(f"{int(task.completed)}/{total}", style=self.style)


class TimeColumn(BatchesColumn):
    """Time spent and to go."""

    max_refresh = 0.5

    def render(self, task: Task) -> Text:
        """Return such as "0:00:03 • 0:01:10"."""
        seconds = (task.finished_time if task.finished else task.elapsed, task.time_remaining)
        texts = ("-:--:--" if one is None else str(timedelta(seconds=int(one))) for one in seconds)
        return Text(" • ".join(texts), style=self.style)


class RateColumn(BatchesColumn):
    """Batches per second."""

    def render(self, task: Task) -> Text:
        """Return such as "12.30it/s"."""
        return Text(f"{task.speed or 0.0:.2f}it/s", style=self.style)


def default_columns(theme: Any) -> list[ProgressColumn]:
    """Return the columns of description, bar, batches, time and rate, in the styles of a theme."""
    description = theme.description or "progress.description"
    return [
        TextColumn(f"[{description}]{{task.description}}"),
        BarColumn(
            complete_style=theme.progress_bar,
            finished_style=theme.progress_bar_finished,
            pulse_style=theme.progress_bar_pulse,
        ),
        BatchesColumn(theme.batch_progress),
        TimeColumn(theme.time),
        RateColumn(theme.processing_speed),
    ]

"""A rich `Progress` and columns under their names in Lightning, for bars that choose their columns; needs rich."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

from rich.progress import BarColumn, Progress, ProgressColumn, Task
from rich.text import Text


class CustomProgress(Progress):
    """A rich `Progress` that can wait with a drawing."""

    def soft_refresh(self) -> None:
        """Have the tasks drawn at the next refresh."""
        if not self.disable and self.live.is_started:
            self.live.update(self.get_renderable())


class CustomBarColumn(BarColumn):
    """A bar."""


class _StyledColumn(ProgressColumn):
    def __init__(self, style: Any) -> None:
        super().__init__()
        self.style = style

    def render(self, task: Task) -> Text:
        """Return the text."""
        return Text(self.describe(task), style=self.style)

    def describe(self, task: Task) -> str:
        """Return what is known of a task."""
        raise NotImplementedError


class BatchesProcessedColumn(_StyledColumn):
    """Finished and total batches, such as "3/10", or "3/--" if the total is unknown.

    Args:
        style: Style of the text.
    """

    def describe(self, task: Task) -> str:
        """Return the batches."""
        return f"{int(task.completed)}/{'--' if task.total is None else int(task.total)}"


class CustomTimeColumn(_StyledColumn):
    """Elapsed and remaining time, such as "0:00:03 • 0:01:10".

    Args:
        style: Style of the text.
    """

    max_refresh = 0.5

    def describe(self, task: Task) -> str:
        """Return the times."""
        seconds = (task.finished_time if task.finished else task.elapsed, task.time_remaining)
        return " • ".join("-:--:--" if one is None else str(timedelta(seconds=int(one))) for one in seconds)


class ProcessingSpeedColumn(_StyledColumn):
    """Batches per second, such as "12.30it/s".

    Args:
        style: Style of the text.
    """

    def describe(self, task: Task) -> str:
        """Return the rate."""
        return f"{task.speed or 0.0:.2f}it/s"


class MetricsTextColumn(ProgressColumn):
    """The latest metrics, beside the newest task that is seen.

    Args:
        trainer: The trainer.
        style: Style of the text.
        text_delimiter: Text between two metrics.
        metrics_format: Format of numbers.
    """

    def __init__(self, trainer: Any, style: Any = "", text_delimiter: str = " ", metrics_format: str = ".3f") -> None:
        super().__init__()
        self._trainer = trainer
        self._style = style
        self._text_delimiter = text_delimiter
        self._metrics_format = metrics_format
        self._metrics: Mapping[str, Any] = {}

    def update(self, metrics: Mapping[str, Any]) -> None:
        """Show these metrics from the next drawing on."""
        self._metrics = metrics

    def render(self, task: Any) -> Text:
        """Return the text."""
        return Text(self._text_delimiter.join(self._generate_metrics_texts()), style=self._style)

    def _generate_metrics_texts(self) -> Iterator[str]:
        for name, value in self._metrics.items():
            try:
                shown = value if isinstance(value, str) else format(value, self._metrics_format)
            except (TypeError, ValueError):
                shown = str(value)
            yield f"{name}: {shown}"

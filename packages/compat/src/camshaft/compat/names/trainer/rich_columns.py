"""A rich `Progress` and columns under their names in Lightning, for bars that choose their columns; needs rich."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.progress import BarColumn, Progress, ProgressColumn
from rich.text import Text

from camshaft.callbacks import RichProgressBarTheme
from camshaft.callbacks.progress.rich_display import StyledColumn, default_columns

_BATCHES, _TIMES, _RATE = (
    one.describe for one in default_columns(RichProgressBarTheme()) if isinstance(one, StyledColumn)
)


class CustomProgress(Progress):
    """A rich `Progress` that can wait with a drawing."""

    def soft_refresh(self) -> None:
        """Have the tasks drawn at the next refresh."""
        if not self.disable and self.live.is_started:
            self.live.update(self.get_renderable())


class CustomBarColumn(BarColumn):
    """A bar."""


class BatchesProcessedColumn(StyledColumn):
    """Finished and total batches.

    Args:
        style: Style of the text.
    """

    def __init__(self, style: Any) -> None:
        super().__init__(_BATCHES, style)


class CustomTimeColumn(StyledColumn):
    """Elapsed and remaining time.

    Args:
        style: Style of the text.
    """

    def __init__(self, style: Any) -> None:
        super().__init__(_TIMES, style, max_refresh=0.5)


class ProcessingSpeedColumn(StyledColumn):
    """Batches per second.

    Args:
        style: Style of the text.
    """

    def __init__(self, style: Any) -> None:
        super().__init__(_RATE, style)


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

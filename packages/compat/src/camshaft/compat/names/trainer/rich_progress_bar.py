"""`RichProgressBar` of the import names, whose subclasses may draw with a rich `Progress` of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from camshaft.callbacks import RichProgressBar as _RichProgressBar
from camshaft.callbacks.arguments import check_installed
from camshaft.compat.names.stand_ins import StandIn, settable
from camshaft.compat.names.trainer.progress_bars import LightningBar, overridden_names, todays_refresh_rate
from camshaft.hooks_core.support.messages import must_be

_DRAWING = {
    *("_init_progress", "_add_task", "_initialize_train_progress_bar_id", "_update", "_stop_progress", "refresh"),
    *("_reset_progress_bar_ids", "_update_metrics"),
}
"""Methods of Lightning's class that draw; a subclass that overrides one draws by all of them."""


@dataclass
class RichProgressBarTheme:
    """Styles of a `RichProgressBar`, as rich names them: "bold red", "#6206E0"; "" for none.

    Args:
        description: Style of the title.
        progress_bar: Style of the finished part of a bar.
        progress_bar_finished: Style of a finished bar.
        progress_bar_pulse: Style of a bar of unknown length.
        batch_progress: Style of the number of batches.
        time: Style of elapsed and remaining time.
        processing_speed: Style of the batches per second.
        metrics: Style of the metrics.
        metrics_text_delimiter: Text between two metrics.
        metrics_format: Format of numbers among the metrics.
    """

    description: str = ""
    progress_bar: str = "#6206E0"
    progress_bar_finished: str = "#6206E0"
    progress_bar_pulse: str = "#6206E0"
    batch_progress: str = ""
    time: str = "dim"
    processing_speed: str = "dim underline"
    metrics: str = "italic"
    metrics_text_delimiter: str = " "
    metrics_format: str = ".3f"


def _id_property(stage: str) -> property:
    def get(bar: RichProgressBar) -> Any:
        return bar._task_id(stage)

    def set_(bar: RichProgressBar, task_id: Any) -> None:
        bar._own_task_ids[stage] = task_id

    return property(get, set_, doc=f"The rich task of the pass {stage!r}; None if `progress` has none.")


def _task_property(stage: str) -> property:
    def get(bar: RichProgressBar) -> Any:
        task_id = bar._task_id(stage)
        if task_id is None:
            where, action = type(bar).__name__, "Pass a `theme` or override `configure_columns` to have tasks."
            raise TypeError(must_be(f"{stage} task", "read while its pass is drawn", None, where, action))
        return next(task for task in bar.progress.tasks if task.id == task_id)

    return property(get, doc=f"The rich `Task` of the pass {stage!r}; raises `TypeError` while it is not drawn.")


class RichProgressBar(LightningBar, _RichProgressBar, metaclass=StandIn):
    """The bar of releases since 1.5, drawn with rich; by the methods of Lightning's class if one is overridden.

    Args:
        refresh_rate: Batches between two drawings; 0 draws none, and 1 draws by time.
        leave: As today.
        theme: The styles; None is camshaft's own layout. With a theme, or in a subclass that overrides
            `configure_columns`, a terminal shows the columns of a rich `Progress`.
        console_kwargs: As today.
        refresh_rate_per_second: In 1.5: drawings a second; 0 draws none.
    """

    train_progress_bar_id = _id_property("train")
    val_progress_bar_id = _id_property("validation")
    val_sanity_progress_bar_id = _id_property("sanity")
    test_progress_bar_id = _id_property("test")
    predict_progress_bar_id = _id_property("predict")
    train_progress_bar = _task_property("train")
    val_progress_bar = _task_property("validation")
    val_sanity_check_bar = _task_property("sanity")
    test_progress_bar = _task_property("test")

    def __init__(
        self,
        refresh_rate: int = 1,
        leave: bool = False,
        theme: Any = None,
        console_kwargs: dict[str, Any] | None = None,
        *,
        refresh_rate_per_second: int | None = None,
    ) -> None:
        batches = todays_refresh_rate(0 if refresh_rate_per_second == 0 else refresh_rate)
        seconds = 1 / refresh_rate_per_second if refresh_rate_per_second and batches is None else None
        super().__init__(batches, leave, console_kwargs=console_kwargs, refresh_rate_seconds=seconds)
        self._has_theme = theme is not None
        self.theme = RichProgressBarTheme() if theme is None else theme
        self._progress: Any = None
        self._own_task_ids: dict[str, Any] = {}  # of a subclass that draws tasks by itself
        self._progress_stopped = False
        self._console: Any = None
        self._metric_component: Any = None

    @settable
    def progress(self) -> Any:
        """The rich `Progress`; None while there is none."""
        return getattr(self._display, "progress", None) if self._progress is None else self._progress

    def refresh(self, hard: bool = False) -> None:
        """Redraw `progress`, if there is one; `hard` makes no difference."""
        if self.progress is not None:
            self.progress.refresh()

    def _task_id(self, stage: str) -> Any:
        """Return the id of a pass's task, as it was drawn last."""
        if self._own_task_ids.get(stage) is not None:
            return self._own_task_ids[stage]
        passes = [name for name, meter in (("train", self._train), (self._stage, self._evaluation)) if meter]
        drawn = dict(zip(passes, getattr(self._display, "task_ids", ()), strict=False))
        return drawn.get(stage)

    def __getstate__(self) -> dict[str, Any]:
        """Exclude run state from copies and pickles."""
        of_run = dict.fromkeys(("_progress", "_console", "_metric_component"))
        return {**super().__getstate__(), **of_run, "_own_task_ids": {}}

    def open_display(self, output: Any) -> Any:
        """Return the display."""
        own_columns = type(self).configure_columns is not RichProgressBar.configure_columns
        if self._draws_by_methods or (output == "terminal" and (self._has_theme or own_columns)):
            return _DisplayByMethods(self)
        return super().open_display(output)

    def configure_columns(self, trainer: Any) -> list[Any]:
        """Return the columns of a rich `Progress`, before that of the metrics; to be overridden.

        Each task is a pass over batches.
        """
        check_installed("rich", "rich", self)
        from rich.progress import TextColumn

        from camshaft.compat.names.trainer import rich_columns

        theme = self.theme
        styles = (theme.progress_bar, theme.progress_bar_finished, theme.progress_bar_pulse)
        return [
            TextColumn(f"[{theme.description or 'progress.description'}]{{task.description}}"),
            rich_columns.CustomBarColumn(40, "bar.back", *styles),
            rich_columns.BatchesProcessedColumn(theme.batch_progress),
            rich_columns.CustomTimeColumn(theme.time),
            rich_columns.ProcessingSpeedColumn(theme.processing_speed),
        ]

    def setup(self, trainer: Any, module: Any, stage: str) -> None:
        """Detect the kind of output."""
        super().setup(trainer, module, stage)
        if self._draws_by_methods:
            self._output = "terminal"  # rich itself knows what to do with others
            self.refresh_rate_seconds = 0.0  # which overrides of hooks rely on

    def on_sanity_check_start(self, trainer: Any, module: Any) -> None:
        """Begin to draw, if a subclass does it."""
        self._open_if_drawn_by_methods()

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """Begin the training bar, and to draw, if a subclass does it."""
        super().on_train_start(trainer, module)
        self._open_if_drawn_by_methods()

    def _open_if_drawn_by_methods(self) -> None:
        if self._draws_by_methods and self._is_shown:
            self._opened_display()

    @property
    def _draws_by_methods(self) -> bool:
        return not _DRAWING.isdisjoint(overridden_names(type(self), RichProgressBar))

    # the methods of Lightning's class, for overrides and those that call them

    def _init_progress(self, trainer: Any) -> None:
        from rich import get_console, reconfigure

        from camshaft.compat.names.trainer.rich_columns import CustomProgress, MetricsTextColumn

        if self.is_enabled and (self.progress is None or self._progress_stopped):
            self._reset_progress_bar_ids()
            reconfigure(**self._console_kwargs)
            self._console = get_console()
            theme = self.theme
            settings = (theme.metrics, theme.metrics_text_delimiter, theme.metrics_format)
            self._metric_component = MetricsTextColumn(trainer, *settings)
            columns = (*self.configure_columns(trainer), self._metric_component)
            self.progress = CustomProgress(*columns, auto_refresh=False, console=self._console)
            self.progress.start()
            self._progress_stopped = False

    def _stop_progress(self) -> None:
        if self.progress is not None:
            self.progress.stop()
            self._progress_stopped = True

    def _reset_progress_bar_ids(self) -> None:
        self._own_task_ids = {}

    def _initialize_train_progress_bar_id(self) -> None:
        description = self._get_train_description(self.trainer.current_epoch)
        self.train_progress_bar_id = self._add_task(self.total_train_batches, description)

    def _add_task(self, total_batches: float, description: str, visible: bool = True) -> Any:
        style = self.theme.description
        shown = f"[{style}]{description}" if style else description
        return self.progress.add_task(shown, total=total_batches, visible=visible)

    def _update(self, progress_bar_id: Any, current: int, visible: bool = True, hard: bool = False) -> None:
        if self.progress is not None and self.is_enabled and progress_bar_id is not None:
            self.progress.update(progress_bar_id, completed=current, visible=visible)
            self.refresh(hard=hard)

    def _update_metrics(self, trainer: Any, pl_module: Any) -> None:
        if self.is_enabled and self._metric_component is not None:
            self._metric_component.update(self.get_metrics(trainer, pl_module))


class _DisplayByMethods:
    """A display of a bar that draws by its own methods: a task for each row.

    Args:
        bar: The bar.

    Attributes:
        task_ids: The task of each row that was drawn last.
    """

    def __init__(self, bar: RichProgressBar) -> None:
        self._bar = bar
        self._begin()

    def _begin(self) -> None:
        self.task_ids: list[Any] = []
        self._labels: list[str] = []
        self._bar._init_progress(self._bar.trainer)

    def draw(self, rows: Any, metrics: Any) -> None:
        """Redraw the rows."""
        bar = self._bar
        if bar.progress is None:
            return  # an override draws otherwise, or not at all
        for task_id in self.task_ids[len(rows) :]:
            bar.progress.update(task_id, visible=False)
        del self.task_ids[len(rows) :], self._labels[len(rows) :]
        for idx, row in enumerate(rows):
            if idx == len(self.task_ids):
                self.task_ids.append(bar._add_task(row.total, row.label))
                self._labels.append(row.label)
            elif self._labels[idx] != row.label:
                bar.progress.reset(self.task_ids[idx], total=row.total, description=row.label, visible=True)
                self._labels[idx] = row.label
            bar._update(self.task_ids[idx], row.position)
        bar._update_metrics(bar.trainer, getattr(bar.trainer, "lightning_module", None))
        bar.refresh()

    def keep(self, row: Any, metrics: Any) -> None:
        """Let a row stay, above those that are redrawn."""
        self.draw([row], metrics)
        self._bar._stop_progress()
        self._begin()

    def close(self, erase: bool = False) -> None:
        """Stop drawing."""
        self._bar._stop_progress()

"""A progress bar drawn with rich."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from camshaft.callbacks.arguments import check_installed
from camshaft.callbacks.progress.meter import Output, ProgressDisplay
from camshaft.callbacks.progress.progress_bar import ProgressBar, Stage
from camshaft.hooks_core.messages import must_be

if TYPE_CHECKING:
    from camshaft.hooks_core.protocols import TrainerProtocol


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


def _id_property(stage: str, doc: str) -> property:
    def get(bar: RichProgressBar) -> Any:
        return bar._task_id(stage)

    def set_(bar: RichProgressBar, task_id: Any) -> None:
        bar._own_task_ids[stage] = task_id

    return property(get, set_, doc=doc)


def _task_property(stage: str, doc: str) -> property:
    def get(bar: RichProgressBar) -> Any:
        task_id = bar._task_id(stage)
        if task_id is None:
            where, action = type(bar).__name__, "Pass a `theme` or override `configure_columns` to have tasks."
            raise TypeError(must_be(f"{stage} task", "read while its pass is drawn", None, where, action))
        return next(task for task in bar.progress.tasks if task.id == task_id)

    return property(get, doc=f"{doc} Raises `TypeError` while it is not drawn.")


class RichProgressBar(ProgressBar):
    """Shows batches done, time, estimated time to go, rate and the metrics logged for the progress bar, in colours.

    Drawn with rich (the extra `camshaft-callbacks[rich]`); a notebook needs no widgets for it. See `ProgressBar` for
    what is shown and when. While it is drawn, the cursor is hidden, and the standard streams pass through rich, so
    that printed text appears above the bar.

    With a theme, or a subclass that overrides `configure_columns`, a terminal shows the columns of a rich `Progress`.

    Args:
        refresh_rate: Batches from one drawing to the next, an int; 0 shows nothing. None draws by time; a float is
            `refresh_rate_seconds`.
        leave: Whether the bar of each finished training epoch stays, above the running one.
        theme: The styles; None is camshaft's own layout.
        console_kwargs: Arguments of rich's `Console` on a terminal.
        refresh_rate_seconds: Instead of `refresh_rate`, the least time between two drawings, in seconds; 0 draws after
            every batch. None means 0.1.

    Raises:
        InvalidArgumentError: If a number is negative, or both rates are given.
        ModuleNotFoundError: When it first draws, if rich is not installed.
    """

    _uncalled_methods: ClassVar[Mapping[str, str]] = {
        **ProgressBar._uncalled_methods,
        **dict.fromkeys(
            (
                "_init_progress",
                "_add_task",
                "_initialize_train_progress_bar_id",
                "_update",
                "_stop_progress",
                "_reset_progress_bar_ids",
                "refresh",
                "train_progress_bar",
                "val_progress_bar",
                "val_sanity_check_bar",
                "test_progress_bar",
            ),
            "Override `configure_columns` or `open_display`.",
        ),
        "_update_metrics": "Override `get_metrics`.",
    }

    def __init__(
        self,
        refresh_rate: int | float | None = None,
        leave: bool = False,
        theme: RichProgressBarTheme | None = None,
        console_kwargs: dict[str, Any] | None = None,
        *,
        refresh_rate_seconds: float | None = None,
    ) -> None:
        if isinstance(refresh_rate, float) and refresh_rate_seconds is None:
            refresh_rate, refresh_rate_seconds = None, refresh_rate
        super().__init__(refresh_rate_seconds=refresh_rate_seconds, leave=leave, refresh_rate=refresh_rate)
        self._has_theme = theme is not None
        self.theme = RichProgressBarTheme() if theme is None else theme
        self._console_kwargs = console_kwargs or {}
        self._evaluated: Stage | None = None
        self._own_task_ids: dict[str, Any] = {}  # of a subclass that draws tasks by itself

    def configure_columns(self, trainer: Any) -> list[Any]:
        """Return the columns of a rich `Progress`, before that of the metrics; to be overridden.

        Each task is a pass over batches.
        """
        check_installed("rich", "rich", type(self).__name__)
        from camshaft.callbacks.progress.rich_display import default_columns

        return list(default_columns(self.theme))

    @property
    def progress(self) -> Any:
        """The rich `Progress` while one is shown: on a terminal, with a theme or an override of `configure_columns`."""
        return getattr(self._display, "progress", None)

    train_progress_bar_id = _id_property("train", "The rich task of the training epoch; None if `progress` has none.")
    val_progress_bar_id = _id_property("validation", "The rich task of validation; None if `progress` has none.")
    val_sanity_progress_bar_id = _id_property("sanity", "The rich task of the sanity check; None if there is none.")
    test_progress_bar_id = _id_property("test", "The rich task of testing; None if `progress` has none.")
    predict_progress_bar_id = _id_property("predict", "The rich task of prediction; None if `progress` has none.")
    train_progress_bar = _task_property("train", "The rich `Task` of the training epoch.")
    val_progress_bar = _task_property("validation", "The rich `Task` of validation.")
    val_sanity_check_bar = _task_property("sanity", "The rich `Task` of the sanity check.")
    test_progress_bar = _task_property("test", "The rich `Task` of testing.")

    def refresh(self, hard: bool = False) -> None:
        """Redraw `progress`, if there is one; `hard` makes no difference."""
        if self.progress is not None:
            self.progress.refresh()

    def open_display(self, output: Output) -> ProgressDisplay:
        """Return the display."""
        check_installed("rich", "rich", type(self).__name__)
        from camshaft.callbacks.progress.rich_display import ColumnsDisplay, NotebookDisplay, TerminalDisplay

        if output == "notebook":
            return NotebookDisplay()
        if self._has_theme or type(self).configure_columns is not RichProgressBar.configure_columns:
            columns, theme = self.configure_columns(self.trainer), self.theme
            return ColumnsDisplay(columns, theme.metrics, theme.metrics_text_delimiter, self._console_kwargs)
        return TerminalDisplay(self._console_kwargs)

    def _begin_evaluation(self, trainer: TrainerProtocol, module: Any, stage: Stage, num_batches: int | float) -> None:
        self._evaluated = stage
        super()._begin_evaluation(trainer, module, stage, num_batches)

    def _task_id(self, stage: str) -> Any:
        """Return the id of a pass's task, as it was drawn last."""
        if self._own_task_ids.get(stage) is not None:
            return self._own_task_ids[stage]
        passes = [name for name, meter in (("train", self._train), (self._evaluated, self._evaluation)) if meter]
        drawn = dict(zip(passes, getattr(self._display, "task_ids", ()), strict=False))
        return drawn.get(stage)

    def _format(self, metrics: Mapping[str, Any]) -> list[tuple[str, str]]:
        if not self._has_theme:
            return super()._format(metrics)
        return [(name, _format_metric(value, self.theme.metrics_format)) for name, value in metrics.items()]


def _format_metric(value: Any, metrics_format: str) -> str:
    if isinstance(value, str):
        return value
    try:
        return format(value, metrics_format)
    except (TypeError, ValueError):
        return str(value)

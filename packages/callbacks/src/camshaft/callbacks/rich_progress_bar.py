"""Showing how far training and evaluation have come."""

from __future__ import annotations

import math
import os
import sys
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar

from camshaft.callbacks.errors import InvalidArgumentError
from camshaft.callbacks.progress_meter import Meter, format_metrics
from camshaft.hooks_core import Callback

if TYPE_CHECKING:
    from camshaft.callbacks.terminal_display import TerminalDisplay
    from camshaft.hooks_core.protocols import TrainerProtocol


class RichProgressBar(Callback):
    """Shows batches done, time, estimated time to go, rate and the metrics logged for the progress bar.

    On a terminal: bars that are redrawn in place, drawn with rich (the extra `camshaft-callbacks[rich]`). Elsewhere,
    such as in a pipe or a log file: one plain line at the end of each epoch and each evaluation, without rich. Rank 0
    alone shows anything. A batch costs one addition and one look at the clock; metrics are read, which may wait
    for the device, only when something is drawn. Epochs count from zero, as in checkpoint names.

    Args:
        refresh_rate_seconds: Least time between two drawings on a terminal, in seconds; 0 draws after every batch.
        leave: Whether the bar of each finished training epoch stays on the terminal, above the running one.

    Raises:
        InvalidArgumentError: If `refresh_rate_seconds` is negative.
        ModuleNotFoundError: When it first draws on a terminal, if rich is not installed.
    """

    monitors: ClassVar[bool] = True  # what the module logs at an epoch's end belongs to that epoch's line

    def __init__(self, refresh_rate_seconds: float = 0.1, leave: bool = False) -> None:
        if not refresh_rate_seconds >= 0:
            raise InvalidArgumentError(
                "refresh_rate_seconds",
                "0 or more",
                refresh_rate_seconds,
                type(self).__name__,
                "To show nothing, leave RichProgressBar out.",
            )
        self.refresh_rate_seconds = refresh_rate_seconds
        self.leave = leave
        self._is_shown = False
        self._is_terminal = False
        self._display: TerminalDisplay | None = None
        self._train: Meter | None = None
        self._evaluation: Meter | None = None
        self._running = Meter("", math.inf)  # the innermost of the two
        self._look_at_seconds = math.inf  # when a batch end does more than count
        self._draw_at_seconds = 0.0

    def setup(self, trainer: TrainerProtocol, module: Any, stage: str) -> None:
        """Find out where the output goes."""
        self._is_shown = trainer.is_global_zero
        self._is_terminal = sys.stdout.isatty() and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")
        self._train = self._evaluation = None
        self._look_at_seconds = math.inf
        self._draw_at_seconds = 0.0

    def on_train_epoch_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Begin a training bar."""
        self._train = self._begin(_epoch_label(trainer), trainer.num_training_batches)
        self._look_at_seconds = 0.0 if self._is_shown else math.inf
        self._draw_if_due(trainer)

    def on_train_batch_end(
        self, trainer: TrainerProtocol, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count; draw if it is time."""
        self._running.num_run += 1
        if monotonic() >= self._look_at_seconds:
            # Looked at after the epoch's first batch, whatever the time: a resumed epoch starts in its middle.
            self._running.num_before = batch_idx + 1 - self._running.num_run
            self._draw_if_due(trainer)

    def on_train_epoch_end(self, trainer: TrainerProtocol, module: Any) -> None:
        """Finish the training bar."""
        if self._train is None or not self._is_shown:
            return
        if not self._is_terminal:
            self._print_line(trainer, self._train)
        elif self.leave:
            self._open_display().keep(self._train.read(), format_metrics(trainer.progress_bar_metrics))
        else:
            self._draw_if_due(trainer)

    def on_train_end(self, trainer: TrainerProtocol, module: Any) -> None:
        """Leave the last state on the terminal."""
        if self._display is not None and not self.leave:
            self._draw(trainer)
        self._close(erase=self.leave)

    def on_validation_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Begin a validation bar, below the training bar if there is one."""
        is_sanity_check = trainer.sanity_checking
        num_batches = trainer.num_sanity_val_batches if is_sanity_check else trainer.num_val_batches
        self._begin_evaluation(trainer, "Sanity check" if is_sanity_check else "Validate", num_batches)

    def on_validation_batch_end(
        self,
        trainer: TrainerProtocol,
        module: Any,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Count; draw if it is time."""
        self._running.num_run += 1
        if monotonic() >= self._look_at_seconds:
            self._draw_if_due(trainer)

    def on_validation_end(self, trainer: TrainerProtocol, module: Any) -> None:
        """Finish the validation bar."""
        self._end_evaluation(trainer)

    def on_test_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Begin a test bar."""
        self._begin_evaluation(trainer, "Test", trainer.num_test_batches)

    on_test_batch_end = on_validation_batch_end

    def on_test_end(self, trainer: TrainerProtocol, module: Any) -> None:
        """Finish the test bar."""
        self._end_evaluation(trainer)

    def on_predict_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Begin a predict bar."""
        self._begin_evaluation(trainer, "Predict", trainer.num_predict_batches)

    on_predict_batch_end = on_validation_batch_end

    def on_predict_end(self, trainer: TrainerProtocol, module: Any) -> None:
        """Finish the predict bar."""
        self._end_evaluation(trainer)

    def on_exception(self, trainer: TrainerProtocol, module: Any, exception: BaseException) -> None:
        """Give the terminal back, so that the traceback appears below the bars."""
        self._close()

    def teardown(self, trainer: TrainerProtocol, module: Any, stage: str) -> None:
        """Give the terminal back, whatever has happened."""
        self._close()
        self._train = self._evaluation = None

    def _begin(self, label: str, total: float) -> Meter:
        self._running = Meter(label, total)
        return self._running

    def _begin_evaluation(self, trainer: TrainerProtocol, label: str, num_batches: list[int | float]) -> None:
        if self._train is not None:
            self._train.pause()
        self._evaluation = self._begin(label, sum(num_batches))
        self._look_at_seconds = self._draw_at_seconds if self._is_shown and self._is_terminal else math.inf
        self._draw_if_due(trainer)

    def _end_evaluation(self, trainer: TrainerProtocol) -> None:
        ended, self._evaluation = self._evaluation, None
        if ended is None or not self._is_shown:
            return
        is_told_by_epoch = self._train is not None and trainer.is_last_batch  # its line follows at once
        if not self._is_terminal and not is_told_by_epoch:
            self._print_line(trainer, ended)
        if self._train is not None:
            self._train.resume()
            self._running = self._train
            self._draw_if_due(trainer)
        elif trainer.sanity_checking:
            self._draw_if_due(trainer)
        elif self._is_terminal:
            self._evaluation = ended
            self._draw(trainer)
            self._close()

    def _draw_if_due(self, trainer: TrainerProtocol) -> None:
        if not (self._is_shown and self._is_terminal):
            self._look_at_seconds = math.inf
            return
        if monotonic() >= self._draw_at_seconds:
            self._draw(trainer)
        self._look_at_seconds = self._draw_at_seconds

    def _draw(self, trainer: TrainerProtocol) -> None:
        rows = [meter.read() for meter in (self._train, self._evaluation) if meter is not None]
        if rows:
            metrics = {} if trainer.sanity_checking else trainer.progress_bar_metrics
            self._open_display().draw(rows, format_metrics(metrics))
        # Counted from the end of the drawing: where that is slow, training still gets its share.
        self._draw_at_seconds = monotonic() + self.refresh_rate_seconds

    def _open_display(self) -> TerminalDisplay:
        if self._display is None:
            from camshaft.callbacks.terminal_display import TerminalDisplay

            self._display = TerminalDisplay()
        return self._display

    def _close(self, erase: bool = False) -> None:
        display, self._display = self._display, None
        if display is not None:
            display.close(erase)

    def _print_line(self, trainer: TrainerProtocol, meter: Meter) -> None:
        label = meter.label
        if self._train is not None and meter is not self._train:
            label = f"{self._train.label}, {label.lower()}"
        metrics = {} if trainer.sanity_checking else trainer.progress_bar_metrics
        texts = [meter.summarize(), *(f"{name} {value}" for name, value in format_metrics(metrics))]
        print(f"{label}: {', '.join(texts)}", flush=True)


def _epoch_label(trainer: TrainerProtocol) -> str:
    label = f"Epoch {trainer.current_epoch}"
    max_epochs = trainer.max_epochs
    return label if max_epochs is None or max_epochs < 1 else f"{label}/{max_epochs - 1}"

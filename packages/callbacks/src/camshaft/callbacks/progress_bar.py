"""Showing how far training and evaluation have come: what is shown, and when."""

from __future__ import annotations

import math
from collections.abc import Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar

from camshaft.callbacks.displays.progress_display import Output, ProgressDisplay, current_output
from camshaft.callbacks.displays.progress_meter import Meter, format_metrics
from camshaft.callbacks.errors import InvalidArgumentError
from camshaft.hooks_core import Callback

if TYPE_CHECKING:
    from camshaft.hooks_core.protocols import TrainerProtocol

_MAX_DRAWING_SHARE = 0.05  # of the time


class ProgressBar(Callback):
    """Base class of progress bars; a subclass says what draws by `open_display`.

    In a terminal or a notebook: a bar that is redrawn in place, with another one below it while validation runs.
    Elsewhere, such as in a pipe or a log file: one plain line at the end of each epoch and each evaluation, drawn by
    nobody. Rank 0 alone shows anything. A batch costs one addition and one look at the clock; metrics are read, which
    may wait for the device, only when something is drawn, and drawing takes at most a twentieth of the time. Epochs
    count from zero, as in checkpoint names.

    Args:
        refresh_rate_seconds: Least time between two drawings, in seconds; 0 draws after every batch.
        leave: Whether the bar of each finished training epoch stays, above the running one.

    Attributes:
        refresh_rate: Batches after whose multiples alone it draws, beside the last one.

    Raises:
        InvalidArgumentError: If `refresh_rate_seconds` is negative.
    """

    monitors: ClassVar[bool] = True  # what the module logs at an epoch's end belongs to that epoch's line

    def __init__(self, *, refresh_rate_seconds: float = 0.1, leave: bool = False) -> None:
        if not refresh_rate_seconds >= 0:
            name = type(self).__name__
            action = f"To show nothing, leave {name} out."
            raise InvalidArgumentError("refresh_rate_seconds", "0 or more", refresh_rate_seconds, name, action)
        self.refresh_rate_seconds = refresh_rate_seconds
        self.leave = leave
        self.refresh_rate = 1
        self._is_enabled = True
        self._is_first_process = True
        self._is_shown = False
        self._output: Output = "plain"
        self._display: ProgressDisplay | None = None
        self._train: Meter | None = None
        self._evaluation: Meter | None = None
        self._running = Meter("", math.inf)  # the innermost of the two
        self._look_at_seconds = math.inf  # when a batch end does more than count
        self._draw_at_seconds = 0.0

    # what a subclass or a user may change

    def open_display(self, output: Output) -> ProgressDisplay:
        """Take what is drawn on; called at the first drawing of a run.

        Args:
            output: "terminal" or "notebook".
        """
        raise NotImplementedError(f"{type(self).__name__} must define `open_display(output)`.")

    def get_metrics(self, trainer: TrainerProtocol, module: Any) -> Mapping[str, float | int | str]:
        """The metrics beside the bar, by name; override it to show others. May wait for the device."""
        return {} if trainer.sanity_checking else trainer.progress_bar_metrics

    @property
    def is_enabled(self) -> bool:
        """Whether it shows anything."""
        return self._is_enabled

    def disable(self) -> None:
        """Show nothing from now on; what is drawn is erased."""
        self._is_enabled = self._is_shown = False
        self._look_at_seconds = math.inf
        self._close(erase=True)

    def enable(self) -> None:
        """Show again what runs, after `disable`."""
        self._is_enabled = True
        self._is_shown = self._is_first_process
        self._look_at_seconds = 0.0

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print above the bar, on rank 0 alone; arguments are those of Python's `print`, which does likewise."""
        if self._is_first_process:
            print(*args, **kwargs)

    # hooks

    def setup(self, trainer: TrainerProtocol, module: Any, stage: str) -> None:
        """Find out where the output goes."""
        self._is_first_process = trainer.is_global_zero
        self._is_shown = self._is_first_process and self._is_enabled
        self._output = current_output()
        self._train = self._evaluation = None
        self._look_at_seconds = math.inf
        self._draw_at_seconds = 0.0

    def on_train_epoch_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Begin a training bar."""
        self._train = self._begin(_epoch_label(trainer), trainer.num_training_batches)
        self._draw_if_due(trainer, module)
        # The first batch is looked at whatever the time: a resumed epoch starts in its middle.
        self._look_at_seconds = 0.0 if self._is_shown else math.inf

    def on_train_batch_end(
        self, trainer: TrainerProtocol, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count; draw if it is time."""
        self._running.num_run += 1
        if monotonic() >= self._look_at_seconds:
            self._running.num_before = batch_idx + 1 - self._running.num_run
            self._draw_after_batch(trainer, module)

    def on_train_epoch_end(self, trainer: TrainerProtocol, module: Any) -> None:
        """Finish the training bar."""
        if self._train is None or not self._is_shown:
            return
        if self._output == "plain":
            self._print_line(trainer, module, self._train)
        elif self.leave:
            self._opened_display().keep(self._train.read(), format_metrics(self.get_metrics(trainer, module)))
        else:
            self._draw_if_due(trainer, module)

    def on_train_end(self, trainer: TrainerProtocol, module: Any) -> None:
        """Leave the last state where it is."""
        if self._display is not None and not self.leave:
            self._draw(trainer, module)
        self._close(erase=self.leave)

    def on_validation_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Begin a validation bar, below the training bar if there is one."""
        is_sanity_check = trainer.sanity_checking
        num_batches = trainer.num_sanity_val_batches if is_sanity_check else trainer.num_val_batches
        self._begin_evaluation(trainer, module, "Sanity check" if is_sanity_check else "Validate", num_batches)

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
            self._draw_after_batch(trainer, module)

    def on_validation_end(self, trainer: TrainerProtocol, module: Any) -> None:
        """Finish the validation bar."""
        self._end_evaluation(trainer, module)

    def on_test_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Begin a test bar."""
        self._begin_evaluation(trainer, module, "Test", trainer.num_test_batches)

    on_test_batch_end = on_validation_batch_end

    def on_test_end(self, trainer: TrainerProtocol, module: Any) -> None:
        """Finish the test bar."""
        self._end_evaluation(trainer, module)

    def on_predict_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Begin a predict bar."""
        self._begin_evaluation(trainer, module, "Predict", trainer.num_predict_batches)

    on_predict_batch_end = on_validation_batch_end

    def on_predict_end(self, trainer: TrainerProtocol, module: Any) -> None:
        """Finish the predict bar."""
        self._end_evaluation(trainer, module)

    def on_exception(self, trainer: TrainerProtocol, module: Any, exception: BaseException) -> None:
        """Give the output back, so that the traceback appears below the bars."""
        self._close()

    def teardown(self, trainer: TrainerProtocol, module: Any, stage: str) -> None:
        """Give the output back, whatever has happened."""
        self._close()
        self._train = self._evaluation = None

    # parts

    def _begin(self, label: str, total: float) -> Meter:
        self._running = Meter(label, total)
        return self._running

    def _begin_evaluation(
        self, trainer: TrainerProtocol, module: Any, label: str, num_batches: list[int | float]
    ) -> None:
        if self._train is not None:
            self._train.pause()
        self._evaluation = self._begin(label, sum(num_batches))
        self._draw_if_due(trainer, module)

    def _end_evaluation(self, trainer: TrainerProtocol, module: Any) -> None:
        ended, self._evaluation = self._evaluation, None
        if ended is None:
            return
        if self._train is not None:  # whether or not it is shown: it may be enabled again
            self._train.resume()
            self._running = self._train
        if not self._is_shown:
            return
        is_told_by_epoch = self._train is not None and trainer.is_last_batch  # its line follows at once
        if self._output == "plain":
            if not is_told_by_epoch:
                self._print_line(trainer, module, ended)
        elif self._train is not None or trainer.sanity_checking:
            self._draw_if_due(trainer, module)
        else:
            self._evaluation = ended
            self._draw(trainer, module)
            self._close()

    def _refresh_every(self, refresh_rate: int) -> None:
        """Draw after multiples of so many batches alone; nothing at all for 0."""
        if isinstance(refresh_rate, bool) or not isinstance(refresh_rate, int) or refresh_rate < 0:
            action = "Pass seconds as `refresh_rate_seconds`."
            where = type(self).__name__
            raise InvalidArgumentError("refresh_rate", "an int, 0 or more batches", refresh_rate, where, action)
        self.refresh_rate = refresh_rate
        if refresh_rate == 0:
            self.disable()

    def _draw_after_batch(self, trainer: TrainerProtocol, module: Any) -> None:
        num_done = self._running.num_before + self._running.num_run
        if self.refresh_rate < 2 or num_done % self.refresh_rate == 0 or num_done >= self._running.total:
            self._draw_if_due(trainer, module)

    def _draw_if_due(self, trainer: TrainerProtocol, module: Any) -> None:
        if not self._is_shown or self._output == "plain":
            self._look_at_seconds = math.inf
            return
        if monotonic() >= self._draw_at_seconds:
            self._draw(trainer, module)
        self._look_at_seconds = self._draw_at_seconds

    def _draw(self, trainer: TrainerProtocol, module: Any) -> None:
        rows = [meter.read() for meter in (self._train, self._evaluation) if meter is not None]
        if not rows or not self._is_shown:
            return
        metrics = format_metrics(self.get_metrics(trainer, module))  # what waits for the device is not drawing
        began = monotonic()
        self._opened_display().draw(rows, metrics)
        # Counted from the end of the drawing: where that is slow, training still gets its share.
        ended = monotonic()
        pause = max(self.refresh_rate_seconds, (ended - began) * (1 / _MAX_DRAWING_SHARE - 1))
        self._draw_at_seconds = ended + pause if self.refresh_rate_seconds > 0 else 0.0

    def _opened_display(self) -> ProgressDisplay:
        if self._display is None:
            self._display = self.open_display(self._output)
        return self._display

    def _close(self, erase: bool = False) -> None:
        display, self._display = self._display, None
        if display is not None:
            display.close(erase)

    def _print_line(self, trainer: TrainerProtocol, module: Any, meter: Meter) -> None:
        label = meter.label
        if self._train is not None and meter is not self._train:
            label = f"{self._train.label}, {label.lower()}"
        metrics = format_metrics(self.get_metrics(trainer, module))
        texts = [meter.summarize(), *(f"{name} {value}" for name, value in metrics)]
        print(f"{label}: {', '.join(texts)}", flush=True)


def _epoch_label(trainer: TrainerProtocol) -> str:
    label = f"Epoch {trainer.current_epoch}"
    max_epochs = trainer.max_epochs
    return label if max_epochs is None or max_epochs < 1 else f"{label}/{max_epochs - 1}"

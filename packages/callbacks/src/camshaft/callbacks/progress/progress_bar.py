"""Base class of progress bars: what is shown, and when."""

from __future__ import annotations

import math
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from camshaft.callbacks.arguments import check_not_both, check_number
from camshaft.callbacks.progress.meter import Meter, Output, ProgressDisplay, current_output, format_metrics
from camshaft.hooks_core import Callback
from camshaft.hooks_core.support.messages import must_be

if TYPE_CHECKING:
    from camshaft.hooks_core.protocols import TrainerProtocol


Stage = Literal["train", "sanity", "validation", "test", "predict"]
"""Passes that have a row of their own; "train" is one epoch."""

_MAX_DRAWING_SHARE = 0.05  # of the time


class ProgressBar(Callback):
    """Base class of progress bars; a subclass defines the display by `open_display`.

    In a terminal or a notebook: a bar that is redrawn in place, with another one below it while validation runs.
    Elsewhere, such as in a pipe or a log file: one plain line at the end of each epoch and each evaluation. Only rank 0
    shows anything. A batch costs one addition and one reading of the clock; metrics are read, which may wait for the
    device, only for a drawing, and drawing takes at most a twentieth of the time. Epochs count from zero, as in
    checkpoint names.

    Args:
        refresh_rate_seconds: Least time between two drawings, in seconds; 0 draws after every batch. None means 0.1.
        leave: Whether the bar of each finished training epoch stays, above the running one.
        refresh_rate: Instead of the time, batches from one drawing to the next, an int; 0 shows nothing. None draws by
            time, so that training never waits for drawing; a float is `refresh_rate_seconds`.

    Raises:
        InvalidArgumentError: If a rate is negative, or both are given.
    """

    only_observes = True
    monitors: ClassVar[bool] = True  # so that an epoch's line has the values that the module logs at its end

    def __init__(
        self, *, refresh_rate_seconds: float | None = None, leave: bool = False, refresh_rate: float | None = None
    ) -> None:
        if isinstance(refresh_rate, float) and refresh_rate_seconds is None:
            refresh_rate, refresh_rate_seconds = None, refresh_rate
        where, action = type(self).__name__, "To show nothing, pass refresh_rate=0."
        rates: dict[str, Any] = {"refresh_rate_seconds": refresh_rate_seconds, "refresh_rate": refresh_rate}
        check_number(where, action, least=0, or_none=True, **rates)
        check_not_both(where, **rates)
        if refresh_rate_seconds is None:
            refresh_rate_seconds = 0.1 if refresh_rate is None else 0.0
        self._refresh_rate = refresh_rate
        self.refresh_rate_seconds = refresh_rate_seconds
        self.leave = leave
        self._trainer: Any = None
        self._stage: Stage = "train"  # of the innermost row
        self._is_enabled = True
        self._is_rank_zero = True
        self._is_shown = False
        self._output: Output = "plain"
        self._display: ProgressDisplay | None = None
        self._train: Meter | None = None
        self._evaluation: Meter | None = None
        self._running = Meter("", math.inf)  # the innermost of the two
        self._next_look_seconds = math.inf  # when the end of a batch does more than count
        self._next_draw_seconds = 0.0

    # for subclasses and users

    def open_display(self, output: Output) -> ProgressDisplay:
        """Return the display of a terminal or notebook, at the first drawing of a run. Plain output has lines instead.

        Without an override nothing is shown.

        Args:
            output: "terminal" or "notebook".
        """
        raise NotImplementedError(f"{type(self).__name__}.open_display is not implemented. Return a display there.")

    def get_metrics(self, trainer: TrainerProtocol, module: Any) -> dict[str, Any]:
        """Return the metrics to show, by name; an override may show others. May wait for the device."""
        return {} if trainer.sanity_checking else dict(trainer.progress_bar_metrics)

    def title(self, stage: Stage) -> str:
        """Return the title of a pass; "train" is one epoch."""
        if stage != "train":
            return {"sanity": "Sanity check", "validation": "Validate"}.get(stage, stage.capitalize())
        label, max_epochs = f"Epoch {self.trainer.current_epoch}", self.trainer.max_epochs
        return label if max_epochs is None or max_epochs < 1 else f"{label}/{max_epochs - 1}"

    def num_batches(self, stage: Stage) -> int | float:
        """Return the batches of a pass over all loaders, infinite if unknown; of training at most to `max_steps`."""
        trainer = self.trainer
        if stage != "train":
            names = {"sanity": "num_sanity_val_batches", "validation": "num_val_batches"}
            of_loaders: list[int | float] = getattr(trainer, names.get(stage, f"num_{stage}_batches"))
            return sum(of_loaders)
        num_batches: int | float = trainer.num_training_batches
        max_steps = getattr(trainer, "max_steps", None)
        if trainer.max_epochs == -1 and max_steps is not None and max_steps > 0:
            return min(num_batches, int(max_steps) - int(trainer.global_step))
        return num_batches

    @property
    def trainer(self) -> Any:
        """The trainer of the run.

        Raises:
            TypeError: Before a run.
        """
        if self._trainer is None:
            where = type(self).__name__
            raise TypeError(must_be("trainer", "read in a run", None, where, "Read it in `setup` or later."))
        return self._trainer

    @property
    def refresh_rate(self) -> float | None:
        """Batches from one drawing to the next; 0 shows nothing, None draws by time."""
        return self._refresh_rate

    @property
    def is_enabled(self) -> bool:
        """True if it shows progress."""
        return self._is_enabled and self.refresh_rate != 0

    def disable(self) -> None:
        """Show nothing from now on, and erase the drawing."""
        self._is_enabled = self._is_shown = False
        self._next_look_seconds = math.inf
        self._close(erase=True)

    def enable(self) -> None:
        """Show progress again, after `disable`."""
        self._is_enabled = True
        self._is_shown = self._shows()
        self._next_look_seconds = 0.0

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print above the bar, on rank 0 only; arguments are those of Python's `print`."""
        if self._is_rank_zero:
            print(*args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        """Exclude run state from copies and pickles."""
        return {**vars(self), "_trainer": None, "_display": None}

    # hooks

    def setup(self, trainer: TrainerProtocol, module: Any, stage: str) -> None:
        """Detect the kind of output."""
        self._trainer = trainer
        self._is_rank_zero = trainer.is_global_zero
        if not self._is_rank_zero:
            self.disable()
        self._is_shown = self._shows()
        self._output = current_output()
        self._train = self._evaluation = None
        self._next_look_seconds = math.inf
        self._next_draw_seconds = 0.0

    def on_train_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Begin the training bar of an epoch that is resumed inside, which has no `on_train_epoch_start`."""
        self._begin_training()

    def on_train_epoch_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Begin a training bar."""
        self._begin_training()
        self._draw_if_due(trainer, module)

    def on_train_batch_end(
        self, trainer: TrainerProtocol, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count; draw if due."""
        self._running.num_run += 1
        if monotonic() >= self._next_look_seconds:
            self._running.num_before = batch_idx + 1 - self._running.num_run
            self._draw_if_due(trainer, module)

    def on_train_epoch_end(self, trainer: TrainerProtocol, module: Any) -> None:
        """Finish the training bar."""
        if self._train is None or not self._is_shown:
            return
        if self._output == "plain":
            self._print_line(trainer, module, self._train)
        elif self.leave:
            self._opened_display().keep(self._train.read(), self._shown_metrics(trainer, module))
        else:
            self._draw_if_due(trainer, module)

    def on_train_end(self, trainer: TrainerProtocol, module: Any) -> None:
        """Draw the last state, and close the display."""
        if self._display is not None and not self.leave:
            self._draw(trainer, module)
        self._close(erase=self.leave)

    def on_validation_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Begin a validation bar, below the training bar if there is one."""
        self._begin_evaluation(trainer, module, "sanity" if trainer.sanity_checking else "validation")

    def on_validation_batch_end(
        self, trainer: TrainerProtocol, module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Count; draw if due."""
        self._running.num_run += 1
        if monotonic() >= self._next_look_seconds:
            self._draw_if_due(trainer, module)

    def on_validation_end(self, trainer: TrainerProtocol, module: Any) -> None:
        """Finish the bar of an evaluation."""
        self._end_evaluation(trainer, module)

    def on_test_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Begin a test bar."""
        self._begin_evaluation(trainer, module, "test")

    on_test_batch_end = on_validation_batch_end
    on_test_end = on_validation_end

    def on_predict_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Begin a predict bar."""
        self._begin_evaluation(trainer, module, "predict")

    on_predict_batch_end = on_validation_batch_end
    on_predict_end = on_validation_end

    def on_exception(self, trainer: TrainerProtocol, module: Any, exception: BaseException) -> None:
        """Close the display, so that the traceback appears below the bars."""
        self._close()

    def teardown(self, trainer: TrainerProtocol, module: Any, stage: str) -> None:
        """Close the display."""
        self._close()
        self._train = self._evaluation = None

    # helpers

    def _begin(self, stage: Stage) -> Meter:
        self._stage = stage
        self._running = Meter(self.title(stage), self.num_batches(stage))
        return self._running

    def _begin_training(self) -> None:
        self._train = self._begin("train")
        # The first batch is always looked at: a resumed epoch starts in its middle.
        self._next_look_seconds = 0.0 if self._is_shown else math.inf

    def _begin_evaluation(self, trainer: TrainerProtocol, module: Any, stage: Stage) -> None:
        if self._train is not None:
            self._train.pause()
        self._evaluation = self._begin(stage)
        self._draw_if_due(trainer, module)

    def _end_evaluation(self, trainer: TrainerProtocol, module: Any) -> None:
        ended, self._evaluation = self._evaluation, None
        if ended is None:
            return
        if self._train is not None:  # also if it is not shown, since it may be enabled again
            self._train.resume()
            self._running = self._train
        if not self._is_shown:
            return
        is_in_epoch_line = self._train is not None and trainer.is_last_batch  # which is printed next
        if self._output == "plain":
            if not is_in_epoch_line:
                self._print_line(trainer, module, ended)
        elif self._train is not None or trainer.sanity_checking:
            self._draw_if_due(trainer, module)
        else:
            self._evaluation = ended
            self._draw(trainer, module)
            self._close()

    def _draw_if_due(self, trainer: TrainerProtocol, module: Any) -> None:
        if not self._is_shown or self._output == "plain":
            self._next_look_seconds = math.inf
            return
        if self._refresh_rate is not None:
            position = self._running.num_before + self._running.num_run
            if position % self._refresh_rate == 0 or position == self._running.total:
                self._draw(trainer, module)
            return
        if monotonic() >= self._next_draw_seconds:
            self._draw(trainer, module)
        self._next_look_seconds = self._next_draw_seconds

    def _draw(self, trainer: TrainerProtocol, module: Any) -> None:
        rows = [meter.read() for meter in (self._train, self._evaluation) if meter is not None]
        if not rows or not self._is_shown:
            return
        metrics = self._shown_metrics(trainer, module)  # outside the timing: it waits for the device
        began = monotonic()
        self._opened_display().draw(rows, metrics)
        # Counted from the end of the drawing, so that slow drawing does not slow training down.
        ended = monotonic()
        pause = max(self.refresh_rate_seconds, (ended - began) * (1 / _MAX_DRAWING_SHARE - 1))
        self._next_draw_seconds = ended + pause if self.refresh_rate_seconds > 0 else 0.0

    def _shown_metrics(self, trainer: TrainerProtocol, module: Any) -> list[tuple[str, str]]:
        return format_metrics(self.get_metrics(trainer, module))

    def _shows(self) -> bool:
        """Return whether this process draws."""
        has_display = type(self).open_display is not ProgressBar.open_display
        return self._is_rank_zero and self.is_enabled and has_display

    def _opened_display(self) -> ProgressDisplay:
        self._display = self._display or self.open_display(self._output)
        return self._display

    def _close(self, erase: bool = False) -> None:
        display, self._display = self._display, None
        if display is not None:
            display.close(erase)

    def _print_line(self, trainer: TrainerProtocol, module: Any, meter: Meter) -> None:
        is_inside = self._train is not None and meter is not self._train
        label = f"{self._train.label}, {meter.label.lower()}" if self._train and is_inside else meter.label
        texts = [meter.summarize(), *(f"{name} {value}" for name, value in self._shown_metrics(trainer, module))]
        print(f"{label}: {', '.join(texts)}", flush=True)

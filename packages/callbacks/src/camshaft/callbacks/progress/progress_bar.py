"""Base class of progress bars: what is shown, and when."""

from __future__ import annotations

import math
from collections.abc import Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from camshaft.callbacks.arguments import check_not_both, check_number
from camshaft.callbacks.progress.meter import Meter, Output, ProgressDisplay, current_output, format_metrics
from camshaft.hooks_core import Callback
from camshaft.hooks_core.messages import must_be

if TYPE_CHECKING:
    from camshaft.hooks_core.protocols import TrainerProtocol


Stage = Literal["sanity", "validation", "test", "predict"]
"""Stages of evaluation that have a row of their own."""

_MAX_DRAWING_SHARE = 0.05  # of the time


class ProgressBar(Callback):
    """Base class of progress bars; a subclass defines the display by `open_display`.

    In a terminal or a notebook: a bar that is redrawn in place, with another one below it while validation runs.
    Elsewhere, such as in a pipe or a log file: one plain line at the end of each epoch and each evaluation. Only rank 0
    shows anything. A batch costs one addition and one reading of the clock; metrics are read, which may wait for the
    device, only for a drawing, and drawing takes at most a twentieth of the time. Epochs count from zero, as in
    checkpoint names.

    A subclass that overrides hooks and not `open_display` draws by itself: the base class only counts batches.

    Args:
        refresh_rate_seconds: Least time between two drawings, in seconds; 0 draws after every batch. None means 0.1.
        leave: Whether the bar of each finished training epoch stays, above the running one.
        refresh_rate: Instead of the time, batches from one drawing to the next; 0 shows nothing. None draws by time, so
            that training never waits for drawing.

    Raises:
        InvalidArgumentError: If a rate is negative, or both are given.
    """

    only_observes = True
    monitors: ClassVar[bool] = True  # so that an epoch's line has the values that the module logs at its end

    _uncalled_methods: ClassVar[Mapping[str, str]] = dict.fromkeys(
        (
            "has_dataloader_changed",
            "reset_dataloader_idx_tracker",
            "total_val_batches_current_dataloader",
            "total_test_batches_current_dataloader",
            "total_predict_batches_current_dataloader",
        ),
        "Override the hooks of batches, which get `dataloader_idx`.",
    )
    """Methods of Lightning's class that are not called here, with what to override instead."""

    def __init__(
        self, *, refresh_rate_seconds: float | None = None, leave: bool = False, refresh_rate: float | None = None
    ) -> None:
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
        self._dataloader_idx: int | None = None
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

        Args:
            output: "terminal" or "notebook".
        """
        raise NotImplementedError(f"{type(self).__name__} must define `open_display(output)`. Return a display there.")

    def get_metrics(self, trainer: TrainerProtocol, module: Any) -> dict[str, Any]:
        """Return the metrics by name, and the version of the loggers' run as "v_num". May wait for the device.

        Override it to show others than the metrics.

        Args:
            trainer: The trainer.
            module: The module.
        """
        return {**version_metrics(trainer), **_metrics(trainer)}

    @property
    def sanity_check_description(self) -> str:
        """Title of the bar of the sanity check; to be overridden, as the four that follow."""
        return "Sanity check"

    @property
    def train_description(self) -> str:
        """Title of the bar of training if it does not name the epoch."""
        return "Train"

    @property
    def validation_description(self) -> str:
        """Title of the bar of validation."""
        return "Validate"

    @property
    def test_description(self) -> str:
        """Title of the bar of testing."""
        return "Test"

    @property
    def predict_description(self) -> str:
        """Title of the bar of prediction."""
        return "Predict"

    def _get_train_description(self, current_epoch: int) -> str:
        """Return the title of an epoch's bar; the name is that of Lightning's class."""
        max_epochs = self.trainer.max_epochs
        label = f"Epoch {current_epoch}"
        return label if max_epochs is None or max_epochs < 1 else f"{label}/{max_epochs - 1}"

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
    def total_train_batches(self) -> int | float:
        """Number of training batches of the epoch, infinite if unknown; at most the rest of `max_steps`."""
        trainer = self.trainer
        num_batches: int | float = trainer.num_training_batches
        max_steps = getattr(trainer, "max_steps", None)
        if trainer.max_epochs == -1 and max_steps is not None and max_steps > 0:
            return min(num_batches, int(max_steps) - int(trainer.global_step))
        return num_batches

    @property
    def total_val_batches(self) -> int | float:
        """Number of validation batches of all loaders, or of the sanity check while that runs.

        0 in an epoch of training that has no validation.
        """
        trainer, every = self.trainer, self.trainer.check_val_every_n_epoch
        if self._train is not None and every is not None and (trainer.current_epoch + 1) % every:
            return 0
        return sum(self._num_val_batches())

    @property
    def total_test_batches(self) -> int | float:
        """Number of test batches of all loaders."""
        num_batches: list[int | float] = self.trainer.num_test_batches
        return sum(num_batches)

    @property
    def total_predict_batches(self) -> int | float:
        """Number of prediction batches of all loaders."""
        num_batches: list[int | float] = self.trainer.num_predict_batches
        return sum(num_batches)

    @property
    def total_val_batches_current_dataloader(self) -> int | float:
        """Number of validation batches of the loader last passed to `has_dataloader_changed`."""
        return self._num_val_batches()[self._dataloader_idx or 0]

    @property
    def total_test_batches_current_dataloader(self) -> int | float:
        """The same for test batches."""
        return self.trainer.num_test_batches[self._dataloader_idx or 0]  # type: ignore[no-any-return]

    @property
    def total_predict_batches_current_dataloader(self) -> int | float:
        """The same for prediction batches."""
        return self.trainer.num_predict_batches[self._dataloader_idx or 0]  # type: ignore[no-any-return]

    def _num_val_batches(self) -> list[int | float]:
        trainer = self.trainer
        found: list[int | float] = (
            trainer.num_sanity_val_batches if trainer.sanity_checking else trainer.num_val_batches
        )
        return found

    def has_dataloader_changed(self, dataloader_idx: int) -> bool:
        """Return whether the loader has changed since the last call; to be called by subclasses."""
        before, self._dataloader_idx = self._dataloader_idx, dataloader_idx
        return before != dataloader_idx

    def reset_dataloader_idx_tracker(self) -> None:
        """Make `has_dataloader_changed` true for the next loader."""
        self._dataloader_idx = None

    @property
    def refresh_rate(self) -> float | None:
        """Batches from one drawing to the next; 0 shows nothing, None draws by time."""
        return self._refresh_rate

    @refresh_rate.setter
    def refresh_rate(self, refresh_rate: float | None) -> None:
        self._refresh_rate = refresh_rate

    @property
    def is_enabled(self) -> bool:
        """True if it shows progress."""
        return self._is_enabled and self.refresh_rate != 0

    @property
    def is_disabled(self) -> bool:
        """True if it shows nothing."""
        return not self.is_enabled

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
        """Return the attributes without what belongs to a run, so that bars can be copied and pickled at any time."""
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

    def on_train_epoch_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Begin a training bar."""
        self._train = self._begin(self._get_train_description(trainer.current_epoch), self.total_train_batches)
        self._draw_if_due(trainer, module)
        # The first batch is always looked at: a resumed epoch starts in its middle.
        self._next_look_seconds = 0.0 if self._is_shown else math.inf

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
        stage: Stage = "sanity" if trainer.sanity_checking else "validation"
        self._begin_evaluation(trainer, module, stage, self.total_val_batches)

    def on_validation_batch_end(
        self,
        trainer: TrainerProtocol,
        module: Any,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
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
        self._begin_evaluation(trainer, module, "test", self.total_test_batches)

    on_test_batch_end = on_validation_batch_end
    on_test_end = on_validation_end

    def on_predict_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Begin a predict bar."""
        self._begin_evaluation(trainer, module, "predict", self.total_predict_batches)

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

    def _begin(self, label: str, total: float) -> Meter:
        self._running = Meter(label, total)
        return self._running

    def _begin_evaluation(self, trainer: TrainerProtocol, module: Any, stage: Stage, num_batches: int | float) -> None:
        if self._train is not None:
            self._train.pause()
        self._evaluation = self._begin(self._description(stage), num_batches)
        self._draw_if_due(trainer, module)

    def _description(self, stage: Stage) -> str:
        return str(getattr(self, "sanity_check_description" if stage == "sanity" else f"{stage}_description"))

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
            running = self._running
            position = running.num_before + running.num_run
            if position % self._refresh_rate == 0 or position == running.total:
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
        is_overridden = self._is_overridden("get_metrics")
        return self._format(self.get_metrics(trainer, module) if is_overridden else _metrics(trainer))

    def _format(self, metrics: Mapping[str, Any]) -> list[tuple[str, str]]:
        return format_metrics(metrics)

    def _shows(self) -> bool:
        """Return whether this base class draws, on this rank."""
        draws_itself = not self._is_overridden("open_display") and any(
            name.startswith("on_") for name in overridden_names(type(self), ProgressBar)
        )
        return self._is_rank_zero and self.is_enabled and not draws_itself

    def _is_overridden(self, name: str) -> bool:
        return getattr(type(self), name) is not getattr(ProgressBar, name)

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
        metrics = self._shown_metrics(trainer, module)
        texts = [meter.summarize(), *(f"{name} {value}" for name, value in metrics)]
        print(f"{label}: {', '.join(texts)}", flush=True)


def overridden_names(cls: type, base: type) -> set[str]:
    """Return the names that the classes between a class and one of its bases define."""
    mro = cls.__mro__
    return {name for one in mro[: mro.index(base)] for name in vars(one)}


def _metrics(trainer: TrainerProtocol) -> dict[str, Any]:
    return {} if trainer.sanity_checking else dict(trainer.progress_bar_metrics)


def version_metrics(trainer: TrainerProtocol) -> dict[str, int | str]:
    """Return what a bar shows beside metrics: the version of the loggers' run as "v_num", of a text its end."""
    versions = [one for logger in trainer.loggers if (one := getattr(logger, "version", None)) not in (None, "")]
    version = versions[0] if len(versions) == 1 else "_".join(str(one) for one in versions)
    if version == "":
        return {}
    return {"v_num": version[-4:] if isinstance(version, str) else version}

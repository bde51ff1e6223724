"""Progress bar drawn with tqdm."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from camshaft.callbacks.arguments import check_installed, check_number
from camshaft.callbacks.progress.meter import Output, ProgressDisplay
from camshaft.callbacks.progress.progress_bar import ProgressBar, Stage, overridden_names
from camshaft.hooks_core.messages import must_be

if TYPE_CHECKING:
    from camshaft.hooks_core.protocols import TrainerProtocol


_ATTRIBUTES: dict[Stage, str] = {
    "sanity": "_val_progress_bar",
    "validation": "_val_progress_bar",
    "test": "_test_progress_bar",
    "predict": "_predict_progress_bar",
}


def _bar_property(name: str, doc: str) -> property:
    def get_bar(self: TQDMProgressBar) -> Any:
        return self._get_bar(name)

    def set_bar(self: TQDMProgressBar, bar: Any) -> None:
        setattr(self, f"_{name}", bar)

    return property(get_bar, set_bar, doc=doc)


class TQDMProgressBar(ProgressBar):
    """Shows batches done, time, estimated time to go, rate and the metrics logged for the progress bar, as tqdm does.

    Drawn with `tqdm.auto` (the extra `camshaft-callbacks[tqdm]`): on a terminal as text, in a notebook as a widget, or,
    without ipywidgets, as a line of text for the innermost pass. See `ProgressBar` for what is shown and when. While it
    is drawn on a terminal, the standard streams pass through it, so that printed lines appear above the bar.

    A subclass that overrides a hook, or a method such as `init_train_tqdm`, has separate tqdm bars for each pass, as in
    Lightning: created by these methods, available as `train_progress_bar` and so on, and written to standard output of
    any kind. The same holds for any progress bar once `train_progress_bar` is read.

    Args:
        refresh_rate: Batches from one drawing to the next, an int; 0 shows nothing. None draws by time; a float is
            taken for `refresh_rate_seconds`.
        process_position: Number of other progress bars above this one, of up to two lines each.
        leave: Whether the bar of each finished training epoch stays, above the running one.
        refresh_rate_seconds: Instead of `refresh_rate`, the least time between two drawings, in seconds; 0 draws after
            every batch. None means 0.1.

    Raises:
        InvalidArgumentError: If a number is negative, or both rates are given.
        ModuleNotFoundError: When it first draws, if tqdm is not installed.
    """

    BAR_FORMAT = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_noinv_fmt}{postfix}]"

    _uncalled_methods: ClassVar[Mapping[str, str]] = {
        **ProgressBar._uncalled_methods,
        "_should_update": "Pass `refresh_rate`.",
        "_resolve_refresh_rate": "Pass `refresh_rate`.",
    }

    def __init__(
        self,
        refresh_rate: int | float | None = None,
        process_position: int = 0,
        leave: bool = False,
        *,
        refresh_rate_seconds: float | None = None,
    ) -> None:
        if isinstance(refresh_rate, float) and refresh_rate_seconds is None:
            refresh_rate, refresh_rate_seconds = None, refresh_rate
        super().__init__(refresh_rate_seconds=refresh_rate_seconds, leave=leave, refresh_rate=refresh_rate)
        check_number(type(self).__name__, least=0, process_position=process_position)
        self.process_position = process_position
        self._makes_bars = any(
            name.startswith("on_") or (name.startswith("init_") and name.endswith("_tqdm"))
            for name in overridden_names(type(self), TQDMProgressBar)
        )
        self._owns_bars = True  # else a subclass draws with bars of its own
        self._train_progress_bar: Any = None
        self._val_progress_bar: Any = None
        self._test_progress_bar: Any = None
        self._predict_progress_bar: Any = None

    def open_display(self, output: Output) -> ProgressDisplay:
        """Return the display."""
        check_installed("tqdm", "tqdm", type(self).__name__)
        from camshaft.callbacks.progress.tqdm_display import TqdmDisplay

        return TqdmDisplay(output, 2 * self.process_position)

    # methods that subclasses of Lightning's class override

    def init_sanity_tqdm(self) -> Any:
        """Return the bar of the sanity check; to be overridden, as the four that follow."""
        return self._new_bar(self.sanity_check_description, leave=False)

    def init_train_tqdm(self) -> Any:
        """Return the bar of training."""
        return self._new_bar(self.train_description, smoothing=0)

    def init_validation_tqdm(self) -> Any:
        """Return the bar of validation, below that of training if there is one."""
        is_below = self._train is not None
        return self._new_bar(self.validation_description, is_below, leave=not is_below)

    def init_test_tqdm(self) -> Any:
        """Return the bar of testing."""
        return self._new_bar(self.test_description)

    def init_predict_tqdm(self) -> Any:
        """Return the bar of prediction."""
        return self._new_bar(self.predict_description, smoothing=0)

    @property
    def train_progress_bar(self) -> Any:
        """The tqdm bar of training.

        Raises:
            TypeError: Outside of training, as the other bars outside of their pass.
        """
        if self._train_progress_bar is None and self._train is not None and self._owns_bars:
            self._close()
            self._makes_bars = True
            self._begin_train_bar(self.trainer)
        return self._get_bar("train_progress_bar")

    @train_progress_bar.setter
    def train_progress_bar(self, bar: Any) -> None:
        self._train_progress_bar = bar

    main_progress_bar = train_progress_bar  # alias in older code

    val_progress_bar = _bar_property("val_progress_bar", "The tqdm bar of validation, or of the sanity check.")
    test_progress_bar = _bar_property("test_progress_bar", "The tqdm bar of testing.")
    predict_progress_bar = _bar_property("predict_progress_bar", "The tqdm bar of prediction.")

    def print(self, *args: Any, sep: str = " ", **kwargs: Any) -> None:
        """Print above the bar, on rank 0 only; arguments are those of Python's `print`."""
        bar = self._train_progress_bar or self._val_progress_bar or self._test_progress_bar
        if self._is_rank_zero and bar is not None and not bar.disable and kwargs.keys() <= {"file", "end"}:
            bar.write(sep.join(map(str, args)), **kwargs)
        else:
            super().print(*args, sep=sep, **kwargs)

    # hooks

    def on_train_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Create the bar of training, if there are separate bars."""
        if self._makes_bars and not self.leave:  # else each epoch creates one
            self._train_progress_bar = self.init_train_tqdm()

    def on_train_epoch_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Begin a training bar."""
        super().on_train_epoch_start(trainer, module)
        if self._makes_bars:
            self._begin_train_bar(trainer)

    def on_train_epoch_end(self, trainer: TrainerProtocol, module: Any) -> None:
        """Finish the training bar."""
        bar = self._train_progress_bar
        if bar is None or not self._makes_bars:
            super().on_train_epoch_end(trainer, module)
            return
        self._show(bar, trainer, module, is_last=True)
        if self.leave:
            bar.close()

    def on_train_end(self, trainer: TrainerProtocol, module: Any) -> None:
        """Close the bar, which stays."""
        if self._train_progress_bar is None or not self._makes_bars:
            super().on_train_end(trainer, module)
        else:
            self._train_progress_bar.close()

    # helpers

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the tqdm bars, which cannot be copied."""
        bars = dict.fromkeys(("_train_progress_bar", *_ATTRIBUTES.values()))
        return {**super().__getstate__(), **bars}

    def _new_bar(self, description: str, is_below: bool = False, leave: bool = True, **options: Any) -> Any:
        from camshaft.callbacks.progress.tqdm_display import Tqdm

        return Tqdm(
            desc=description,
            position=2 * self.process_position + is_below,
            disable=self.is_disabled,
            leave=leave,
            dynamic_ncols=True,
            file=sys.stdout,
            bar_format=self.BAR_FORMAT,
            **options,
        )

    def _get_bar(self, name: str) -> Any:
        bar = getattr(self, f"_{name}")
        if bar is None:
            where = type(self).__name__
            action = "Override a hook or a method such as `init_train_tqdm` to have bars from the start."
            raise TypeError(must_be(name, "read while its pass runs", None, where, action))
        return bar

    def _begin_train_bar(self, trainer: TrainerProtocol) -> None:
        if self.leave or self._train_progress_bar is None:
            self._train_progress_bar = self.init_train_tqdm()
        bar, meter = self._train_progress_bar, self._train
        if meter is not None:
            _restart(bar, meter.total)
            bar.n = meter.num_before + meter.num_run
        bar.set_description(self._get_train_description(trainer.current_epoch))
        self._next_look_seconds = 0.0

    def _begin_evaluation(self, trainer: TrainerProtocol, module: Any, stage: Stage, num_batches: int | float) -> None:
        if self._makes_bars:
            bar = getattr(self, f"init_{stage}_tqdm")()
            _restart(bar, num_batches)
            setattr(self, _ATTRIBUTES[stage], bar)
        super()._begin_evaluation(trainer, module, stage, num_batches)
        if self._makes_bars:
            self._next_look_seconds = 0.0

    def _end_evaluation(self, trainer: TrainerProtocol, module: Any) -> None:
        if not self._makes_bars:
            super()._end_evaluation(trainer, module)
            return
        self._show_evaluation(trainer, module, is_last=True)
        for name in _ATTRIBUTES.values():
            bar = getattr(self, name)
            if bar is not None:
                bar.close()
        self._evaluation = None
        if self._train is not None:
            self._train.resume()
            self._running = self._train
            if self._train_progress_bar is not None:
                self._train_progress_bar.set_postfix(self.get_metrics(trainer, module))

    def _draw_if_due(self, trainer: TrainerProtocol, module: Any) -> None:
        if not self._makes_bars:
            super()._draw_if_due(trainer, module)
        elif self._evaluation is not None:
            self._show_evaluation(trainer, module)
        elif self._train_progress_bar is not None:
            self._show(self._train_progress_bar, trainer, module)

    def _show_evaluation(self, trainer: TrainerProtocol, module: Any, is_last: bool = False) -> None:
        bars = [bar for name in dict.fromkeys(_ATTRIBUTES.values()) if (bar := getattr(self, name)) is not None]
        position = self._running.num_run
        for bar in bars:
            if _is_due(bar, position, 1 if is_last else self._refresh_rate) and self.is_enabled:
                bar.n = position
                bar.refresh()

    def _show(self, bar: Any, trainer: TrainerProtocol, module: Any, is_last: bool = False) -> None:
        meter = self._train
        if meter is None or self.is_disabled:
            return
        position = meter.num_before + meter.num_run
        if is_last or _is_due(bar, position, self._refresh_rate):
            bar.n = position
            bar.set_postfix(self.get_metrics(trainer, module))  # which draws it

    def _close(self, erase: bool = False) -> None:
        super()._close(erase)
        if not self._makes_bars:
            return
        for name in ("_train_progress_bar", *_ATTRIBUTES.values()):
            bar = getattr(self, name, None)
            if bar is not None:
                bar.close()
                setattr(self, name, None)


def _restart(bar: Any, total: float) -> None:
    bar.reset()
    bar.total = int(total) if math.isfinite(total) else None
    bar.initial = 0


def _is_due(bar: Any, position: int, refresh_rate: float | None) -> bool:
    return not bar.disable and (position % (refresh_rate or 1) == 0 or position == bar.total)


def __getattr__(name: str) -> Any:
    """Import `Tqdm`, and with it tqdm, when it is asked for."""
    if name == "Tqdm":
        from camshaft.callbacks.progress.tqdm_display import Tqdm

        return Tqdm
    raise AttributeError(name)

"""Progress bars under Lightning's names, whose subclasses may draw with tqdm bars of their own."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from camshaft.callbacks import ProgressBar as _ProgressBar
from camshaft.callbacks import TQDMProgressBar as _TQDMProgressBar
from camshaft.compat.names.stand_ins import StandIn, settable
from camshaft.hooks_core.dispatch.implementation import mentions_method
from camshaft.hooks_core.support.messages import must_be

if TYPE_CHECKING:
    _Bar = _ProgressBar
else:
    _Bar = object


def overridden_names(cls: type, base: type) -> set[str]:
    """Return the names that the classes between a class and one of its bases define."""
    mro = cls.__mro__
    return {name for one in mro[: mro.index(base)] for name in vars(one)}


def todays_refresh_rate(batches: int) -> int | None:
    """Return today's argument: 1, which was the default, leaves it to the time."""
    return None if batches == 1 else batches


def version_metrics(trainer: Any) -> dict[str, int | str]:
    """Return what a bar shows beside metrics: the version of the loggers' run as "v_num", of a text its end."""
    versions = [one for logger in trainer.loggers if (one := getattr(logger, "version", None)) not in (None, "")]
    version = versions[0] if len(versions) == 1 else "_".join(str(one) for one in versions)
    if version == "":
        return {}
    return {"v_num": version[-4:] if isinstance(version, str) else version}


def _batches_of_loader(stage: str) -> property:
    def get(bar: LightningBar) -> Any:
        return getattr(bar.trainer, f"num_{stage}_batches")[bar._current_eval_dataloader_idx or 0]

    return property(get, doc=f"Number of {stage} batches of the loader last passed to `has_dataloader_changed`.")


class LightningBar(_Bar):
    """Attributes and methods of Lightning's bars, to be read and overridden; a base beside one of camshaft's bars."""

    _current_eval_dataloader_idx: int | None = None

    sanity_check_description = property(lambda _: "Sanity check", doc="Title of the bar of the sanity check.")
    train_description = property(lambda _: "Train", doc="Title of a bar of training that does not name the epoch.")
    validation_description = property(lambda _: "Validate", doc="Title of the bar of validation.")
    test_description = property(lambda _: "Test", doc="Title of the bar of testing.")
    predict_description = property(lambda _: "Predict", doc="Title of the bar of prediction.")

    def _get_train_description(self, current_epoch: int) -> str:
        max_epochs = self.trainer.max_epochs
        label = f"Epoch {current_epoch}"
        return label if max_epochs is None or max_epochs < 1 else f"{label}/{max_epochs - 1}"

    def title(self, stage: Any) -> str:
        """Return the title of a pass, as its description says."""
        if stage == "train":
            return self._get_train_description(self.trainer.current_epoch)
        return str(getattr(self, f"{'sanity_check' if stage == 'sanity' else stage}_description"))

    @property
    def total_train_batches(self) -> int | float:
        """Number of training batches of the epoch, infinite if unknown; at most the rest of `max_steps`."""
        return super().num_batches("train")

    @property
    def total_val_batches(self) -> int | float:
        """Number of validation batches of all loaders; 0 in an epoch of training that has no validation."""
        trainer, every = self.trainer, self.trainer.check_val_every_n_epoch
        if self._train is not None and every is not None and (trainer.current_epoch + 1) % every:
            return 0
        return super().num_batches("sanity" if trainer.sanity_checking else "validation")

    def num_batches(self, stage: Any) -> int | float:
        """Return the batches of a pass, as the attribute of Lightning's class says."""
        if stage == "train":
            return self.total_train_batches
        return self.total_val_batches if stage in ("sanity", "validation") else super().num_batches(stage)

    @property
    def total_val_batches_current_dataloader(self) -> int | float:
        """Number of validation batches of the loader last passed to `has_dataloader_changed`."""
        of_all = self.trainer.num_sanity_val_batches if self.trainer.sanity_checking else self.trainer.num_val_batches
        return of_all[self._current_eval_dataloader_idx or 0]  # type: ignore[no-any-return]

    total_test_batches_current_dataloader = _batches_of_loader("test")
    total_predict_batches_current_dataloader = _batches_of_loader("predict")

    def has_dataloader_changed(self, dataloader_idx: int) -> bool:
        """Return whether the loader has changed since the last call; to be called by subclasses."""
        before, self._current_eval_dataloader_idx = self._current_eval_dataloader_idx, dataloader_idx
        return before != dataloader_idx

    def reset_dataloader_idx_tracker(self) -> None:
        """Make `has_dataloader_changed` true for the next loader."""
        self._current_eval_dataloader_idx = None

    def get_metrics(self, trainer: Any, module: Any) -> dict[str, Any]:
        """Return the metrics by name, and the version of the loggers' run as "v_num"."""
        return {**version_metrics(trainer), **super().get_metrics(trainer, module)}

    def _shown_metrics(self, trainer: Any, module: Any) -> Any:
        shown = super()._shown_metrics(trainer, module)
        is_default = type(self).get_metrics is LightningBar.get_metrics
        return [one for one in shown if one[0] != "v_num"] if is_default else shown

    @property
    def is_disabled(self) -> bool:
        """True if it shows nothing."""
        return not self.is_enabled

    @property
    def refresh_rate(self) -> float:
        """Batches between two drawings; 1 also stands for a drawing by time."""
        return 1 if self._refresh_rate is None else self._refresh_rate

    @refresh_rate.setter
    def refresh_rate(self, batches: int) -> None:
        self._refresh_rate = todays_refresh_rate(batches)


_BARS = ("_train_progress_bar", "_val_progress_bar", "_test_progress_bar", "_predict_progress_bar")


def _attribute(stage: str) -> str:
    return f"_{'val' if stage in ('sanity', 'validation') else stage}_progress_bar"


def _bar_property(name: str, doc: str) -> property:
    return property(lambda self: self._get_bar(name), lambda self, bar: setattr(self, f"_{name}", bar), doc=doc)


class _TqdmBars(LightningBar, _TQDMProgressBar):
    """A bar that a subclass may draw with tqdm bars, by methods such as `init_train_tqdm`, as Lightning's does.

    So it is for a subclass that overrides one of them or a hook, and for any bar once `train_progress_bar` is read.
    These bars are written to standard output of any kind.
    """

    BAR_FORMAT = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_noinv_fmt}{postfix}]"

    _makes_bars = False
    _owns_bars = True  # else a subclass draws with bars of its own
    _draws_itself = False
    _train_progress_bar: Any = None
    _val_progress_bar: Any = None
    _test_progress_bar: Any = None
    _predict_progress_bar: Any = None

    def __init__(self, refresh_rate: int = 1, process_position: int = 0, leave: bool = False) -> None:
        super().__init__(_refresh_rate_of_tqdm(refresh_rate), process_position, leave)

    def open_display(self, output: Any) -> Any:
        """Return the display."""
        return _DisplayByBars(self) if self._makes_bars else super().open_display(output)

    def setup(self, trainer: Any, module: Any, stage: str) -> None:
        """Detect the kind of output."""
        super().setup(trainer, module, stage)
        if self._makes_bars:
            self._draw_by_bars()

    def _shows(self) -> bool:
        return super()._shows() and not self._draws_itself

    def _draw_by_bars(self) -> None:
        self._makes_bars, self._draws_itself = True, False
        self._is_shown = self._shows()
        self._output = "terminal"  # tqdm itself knows what to do with others
        self.refresh_rate_seconds = 0.0  # which overrides of hooks rely on

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

    @settable
    def train_progress_bar(self) -> Any:
        """The tqdm bar of training.

        Raises:
            TypeError: Outside of training, as the other bars outside of their pass.
        """
        if self._train_progress_bar is None and self._train is not None and self._owns_bars:
            self._close()
            self._draw_by_bars()
            self._begin_bar("train", self._train)
            self._next_look_seconds = 0.0
        return self._get_bar("train_progress_bar")

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

    def __getstate__(self) -> dict[str, Any]:
        """Exclude run state, and tqdm bars, from copies and pickles."""
        return {**super().__getstate__(), **dict.fromkeys(_BARS)}

    def _new_bar(self, description: str, is_below: bool = False, leave: bool = True, **options: Any) -> Any:
        from camshaft.compat.names.trainer.tqdm_bar import Tqdm

        options |= {"position": 2 * self.process_position + is_below, "disable": self.is_disabled, "leave": leave}
        return Tqdm(desc=description, dynamic_ncols=True, file=sys.stdout, bar_format=self.BAR_FORMAT, **options)

    def _get_bar(self, name: str) -> Any:
        bar = getattr(self, f"_{name}")
        if bar is None:
            action = "Override a hook or a method such as `init_train_tqdm` to have bars from the start."
            raise TypeError(must_be(name, "read while its pass runs", None, type(self).__name__, action))
        return bar

    def _begin(self, stage: Any) -> Any:
        meter = super()._begin(stage)
        if self._makes_bars:
            self._begin_bar(stage, meter)
        return meter

    def _begin_bar(self, stage: str, meter: Any) -> None:
        if stage != "train" or self.leave or self._train_progress_bar is None:
            setattr(self, _attribute(stage), getattr(self, f"init_{stage}_tqdm")())
        bar = getattr(self, _attribute(stage))
        bar.reset()
        bar.total = int(meter.total) if math.isfinite(meter.total) else None
        bar.initial = 0
        if stage == "train":
            bar.n = meter.num_before + meter.num_run
            bar.set_description(meter.label)

    def _end_evaluation(self, trainer: Any, module: Any) -> None:
        if self._makes_bars and self._evaluation is not None:
            self._draw(trainer, module)
            getattr(self, _attribute(self._stage)).close()
        super()._end_evaluation(trainer, module)

    def _shown_metrics(self, trainer: Any, module: Any) -> Any:
        if self._makes_bars:
            return list(self.get_metrics(trainer, module).items())  # tqdm formats them
        return super()._shown_metrics(trainer, module)

    def _close(self, erase: bool = False) -> None:
        super()._close(erase)
        if not self._makes_bars:
            return
        for name in _BARS:
            bar = getattr(self, name)
            if bar is not None:
                bar.close()
                setattr(self, name, None)


class _DisplayByBars:
    """A display that draws each row with the tqdm bar of its pass.

    Args:
        owner: The progress bar that has them.
    """

    def __init__(self, owner: _TqdmBars) -> None:
        self._owner = owner

    def draw(self, rows: Sequence[Any], metrics: Any) -> None:
        """Redraw the rows."""
        owner = self._owner
        passes = (("train", owner._train), (owner._stage, owner._evaluation))
        for row, stage in zip(rows, [stage for stage, meter in passes if meter is not None], strict=True):
            bar = getattr(owner, _attribute(stage))
            bar.n = row.position
            if stage == "train":
                bar.set_postfix(dict(metrics))  # which draws it
            else:
                bar.refresh()

    def keep(self, row: Any, metrics: Any) -> None:
        """Let the row stay, above the next."""
        self.draw([row], metrics)
        self._owner.train_progress_bar.close()

    def close(self, erase: bool = False) -> None:
        """Do nothing: the owner closes its bars."""


def _refresh_rate_of_tqdm(batches: int) -> int | None:
    """Return today's argument, after what the environment asks for: fewer drawings on Colab, or TQDM_MINITERS."""
    if os.environ.get("COLAB_GPU") and batches == 1:
        return 20
    return todays_refresh_rate(max(int(os.environ.get("TQDM_MINITERS", 0)), batches))


def _makers(names: set[str]) -> list[str]:
    return [name for name in names if name.startswith("init_") and name.endswith("_tqdm")]


class ProgressBar(_TqdmBars, metaclass=StandIn):
    """The bar of releases 0.7 to 1.6, drawn with tqdm, and the base class of those since, which draws nothing.

    A subclass draws by itself if it overrides hooks, unless it leaves the calls of methods such as `init_train_tqdm` to
    this class.

    Args:
        refresh_rate: Batches between two drawings; 0 draws none, and 1 draws by time.
        process_position: As today.
    """

    def __init__(self, refresh_rate: int = 1, process_position: int = 0) -> None:
        super().__init__(refresh_rate, process_position)
        names = overridden_names(type(self), ProgressBar)
        makers = _makers(names)
        own_classes = type(self).__mro__[: type(self).__mro__.index(ProgressBar)]
        self._makes_bars = bool(makers) and not any(mentions_method(own_classes, name) for name in makers)
        self._draws_itself = not self._makes_bars and any(name.startswith("on_") for name in names)
        self._owns_bars = not makers or self._makes_bars


class TQDMProgressBar(_TqdmBars, metaclass=StandIn):
    """The bar of releases since 1.5, drawn with tqdm.

    Args:
        refresh_rate: Batches between two drawings; 0 draws none, and 1 draws by time, but on Colab after 20 batches.
            The environment variable TQDM_MINITERS sets the least number.
        process_position: As today.
        leave: As today.
    """

    def __init__(self, refresh_rate: int = 1, process_position: int = 0, leave: bool = False) -> None:
        super().__init__(refresh_rate, process_position, leave)
        names = overridden_names(type(self), TQDMProgressBar)
        self._makes_bars = bool(_makers(names)) or any(name.startswith("on_") for name in names)

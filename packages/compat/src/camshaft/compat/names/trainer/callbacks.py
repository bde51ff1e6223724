"""Callbacks with the arguments of earlier releases."""

from __future__ import annotations

import os
from collections.abc import Mapping
from inspect import signature
from typing import Any, ClassVar, Final

from camshaft.callbacks import EarlyStopping as _EarlyStopping
from camshaft.callbacks import RichProgressBar as _RichProgressBar
from camshaft.callbacks import StochasticWeightAveraging as _StochasticWeightAveraging
from camshaft.callbacks import TQDMProgressBar as _TQDMProgressBar
from camshaft.callbacks.progress.progress_bar import ProgressBar as _ProgressBar
from camshaft.callbacks.progress.progress_bar import overridden_names
from camshaft.compat.names.stand_ins import StandIn, note
from camshaft.hooks_core.dispatch.implementation import mentions_method
from camshaft.hooks_core.messages import must_be

UNSET: Final[Any] = type("Unset", (), {"__repr__": lambda self: "left out"})()
"""The default of an argument for which None means something."""


def chosen_mode(mode: str | None, monitor: str | None, where: str, *, is_auto_by_default: bool) -> str:
    """Return the given direction, or the one of earlier releases.

    Args:
        mode: "min", "max", "auto", or None for what was left out.
        monitor: The metric.
        where: The class, for messages.
        is_auto_by_default: Whether up to 1.2 the default went by any name with "acc" in it, and not by "acc" alone.

    Raises:
        ValueError: If releases differed, or took the wrong one.
    """
    if mode not in (None, "auto"):
        return str(mode)
    name = monitor or ""
    looks_like_accuracy = "acc" in name or name.startswith("fmeasure")
    action = "Pass mode='max' if more is better."
    if mode is None:
        if looks_like_accuracy and (is_auto_by_default or name == "acc"):
            rule = f"given for monitor={name!r}, for which releases up to 1.2 took 'max' and later ones 'min'"
            raise ValueError(must_be("mode", rule, mode, where, action))
        return "min"
    if looks_like_accuracy and not is_auto_by_default and name != "acc":
        rule = f"'min' or 'max' for monitor={name!r}, for which 'auto' was 'min'"
        raise ValueError(must_be("mode", rule, mode, where, action))
    chosen = "max" if looks_like_accuracy else "min"
    note(where, "mode='auto'", f"`mode={chosen!r}` for {name!r}")
    return chosen


def has_arguments_of(today: type) -> Any:
    """Return a decorator of a class that takes others too: editors and command lines see today's arguments."""

    def decorate(cls: Any) -> Any:
        cls.__init__.__signature__ = signature(today.__init__, eval_str=True)  # type: ignore[misc]
        return cls

    return decorate


_EARLY_STOPPING = "EarlyStopping"
_NUM_ARGUMENTS_BEFORE_RANKS = 6  # behind `mode`
_OWN_CHECK = "Override `_evaluate_stopping_criteria`."


@has_arguments_of(_EarlyStopping)
class EarlyStopping(_EarlyStopping, metaclass=StandIn):
    """`camshaft.callbacks.EarlyStopping` with the arguments of releases 0.4 to 1.9.

    Args:
        monitor: The metric. Left out or None it is `val_loss`, as up to 0.9.
        min_delta: As today.
        patience: As today.
        verbose: Whether to print; 0 and 1 mean false and true.
        mode: "min", "max" or "auto", which is "max" for "acc" alone.
        log_rank_zero_only: As today, but the first process alone prints if it is left out.
        arguments: Today's.

    Raises:
        ValueError: If it is not clear which direction is meant, or as `camshaft.callbacks.EarlyStopping`.
    """

    __stands_for__: ClassVar[type] = _EarlyStopping
    _uncalled_methods: ClassVar[Mapping[str, str]] = {
        "check_metrics": _OWN_CHECK,
        "_evalute_stopping_criteria": _OWN_CHECK,
    }

    def __init__(
        self,
        monitor: Any = UNSET,
        min_delta: float = 0.0,
        patience: int = 3,
        verbose: bool | int = False,
        mode: str | None = None,
        *args: Any,
        log_rank_zero_only: bool = True,
        **arguments: Any,
    ) -> None:
        if monitor is UNSET or monitor is None:
            monitor = "val_loss"
            note(_EARLY_STOPPING, "no `monitor`", "`monitor='val_loss'`, as up to 0.9")
        chosen = chosen_mode(mode, monitor, _EARLY_STOPPING, is_auto_by_default=False)
        if len(args) < _NUM_ARGUMENTS_BEFORE_RANKS:
            arguments["log_rank_zero_only"] = log_rank_zero_only
        super().__init__(monitor, min_delta, patience, bool(verbose), chosen, *args, **arguments)


@has_arguments_of(_StochasticWeightAveraging)
class StochasticWeightAveraging(_StochasticWeightAveraging, metaclass=StandIn):
    """Weight averaging as in all releases: without the weights after the last epoch.

    Up to 1.6 the first argument was `swa_epoch_start`, and `swa_lrs` later.

    Args:
        args: None, or a list for `swa_lrs`, which it can only mean.
        swa_lrs: As today; left out, the optimizer keeps its learning rates, as up to 1.6.
        arguments: Today's; see `camshaft.callbacks.StochasticWeightAveraging`.

    Raises:
        TypeError: If an argument is given by position, and it is not clear which one.
        ValueError: As `camshaft.callbacks.StochasticWeightAveraging`.
    """

    __stands_for__: ClassVar[type] = _StochasticWeightAveraging
    includes_last_epoch: ClassVar[bool] = False

    def __init__(self, *args: Any, swa_lrs: float | list[float] | None = None, **arguments: Any) -> None:
        if len(args) == 1 and isinstance(args[0], list) and swa_lrs is None:
            swa_lrs = args[0]
        elif args:
            rule = "given by name: up to 1.6 the first was `swa_epoch_start`, and `swa_lrs` later"
            where = "StochasticWeightAveraging"
            raise TypeError(must_be("args", rule, args, where, "Write swa_lrs=... and swa_epoch_start=..."))
        super().__init__(swa_lrs, **arguments)


def _refresh_rate(batches: int) -> int | None:
    """Return today's argument: 1, which was the default, leaves it to the time."""
    return None if batches == 1 else batches


def _refresh_rate_of_tqdm(batches: int) -> int | None:
    """Return today's argument, after what the environment asks for: fewer drawings on Colab, or TQDM_MINITERS."""
    if os.environ.get("COLAB_GPU") and batches == 1:
        return 20
    return _refresh_rate(max(int(os.environ.get("TQDM_MINITERS", 0)), batches))


def _get_refresh_rate(bar: Any) -> float:
    """Batches between two drawings; 1 also stands for a drawing by time."""
    return 1 if bar._refresh_rate is None else bar._refresh_rate


def _set_refresh_rate(bar: Any, batches: int) -> None:
    bar._refresh_rate = _refresh_rate(batches)


_batches_between = property(_get_refresh_rate, _set_refresh_rate)


class ProgressBar(_TQDMProgressBar, metaclass=StandIn):
    """The bar of releases 0.7 to 1.6, drawn with tqdm, and the base class of those since, which draws nothing.

    A subclass draws by itself if it overrides hooks, unless it leaves the calls of methods such as `init_train_tqdm` to
    this class.

    Args:
        refresh_rate: Batches between two drawings; 0 draws none, and 1 draws by time.
        process_position: As today.
    """

    __stands_for__: ClassVar[type] = _ProgressBar
    refresh_rate = _batches_between

    def __init__(self, refresh_rate: int = 1, process_position: int = 0) -> None:
        super().__init__(_refresh_rate_of_tqdm(refresh_rate), process_position)
        names = overridden_names(type(self), ProgressBar)
        makers = [name for name in names if name.startswith("init_") and name.endswith("_tqdm")]
        own_classes = type(self).__mro__[: type(self).__mro__.index(ProgressBar)]
        self._makes_bars = bool(makers) and not any(mentions_method(own_classes, name) for name in makers)
        self._draws_itself = not self._makes_bars and any(name.startswith("on_") for name in names)
        self._owns_bars = not makers or self._makes_bars

    def _shows(self) -> bool:
        return super()._shows() and not self._draws_itself


class TQDMProgressBar(_TQDMProgressBar, metaclass=StandIn):
    """The bar of releases since 1.5, drawn with tqdm.

    Args:
        refresh_rate: Batches between two drawings; 0 draws none, and 1 draws by time, but on Colab after 20 batches.
            The environment variable TQDM_MINITERS sets the least number.
        process_position: As today.
        leave: As today.
    """

    __stands_for__: ClassVar[type] = _TQDMProgressBar
    refresh_rate = _batches_between

    def __init__(self, refresh_rate: int = 1, process_position: int = 0, leave: bool = False) -> None:
        super().__init__(_refresh_rate_of_tqdm(refresh_rate), process_position, leave)


class RichProgressBar(_RichProgressBar, metaclass=StandIn):
    """The bar of releases since 1.5, drawn with rich.

    Args:
        refresh_rate: Batches between two drawings; 0 draws none, and 1 draws by time.
        leave: As today.
        theme: As today.
        console_kwargs: As today.
        refresh_rate_per_second: In 1.5: drawings a second; 0 draws none.
    """

    __stands_for__: ClassVar[type] = _RichProgressBar
    refresh_rate = _batches_between

    def __init__(
        self,
        refresh_rate: int = 1,
        leave: bool = False,
        theme: Any = None,
        console_kwargs: dict[str, Any] | None = None,
        *,
        refresh_rate_per_second: int | None = None,
    ) -> None:
        batches = _refresh_rate(0 if refresh_rate_per_second == 0 else refresh_rate)
        seconds = 1 / refresh_rate_per_second if refresh_rate_per_second and batches is None else None
        super().__init__(batches, leave, theme, console_kwargs, refresh_rate_seconds=seconds)

"""Callbacks with the arguments of earlier releases."""

from __future__ import annotations

import os
from inspect import signature
from typing import Any, ClassVar, Final

from camshaft.callbacks import EarlyStopping as _EarlyStopping
from camshaft.callbacks import ModelCheckpoint as _ModelCheckpoint
from camshaft.callbacks import RichProgressBar as _RichProgressBar
from camshaft.callbacks import StochasticWeightAveraging as _StochasticWeightAveraging
from camshaft.callbacks import TQDMProgressBar as _TQDMProgressBar
from camshaft.callbacks.arguments import MissingMetricError
from camshaft.callbacks.progress.progress_bar import ProgressBar as _ProgressBar
from camshaft.callbacks.progress.progress_bar import overridden_names
from camshaft.compat.names.stand_ins import StandIn, note, refuse_argument, refuse_overrides
from camshaft.hooks_core.dispatch.implementation import mentions_method
from camshaft.hooks_core.messages import must_be, warn_user
from camshaft.hooks_core.remote_files import is_url, parent_of

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


def _has_arguments_of(today: type) -> Any:
    """Return a decorator of a class that takes others too: editors and command lines see today's arguments."""

    def decorate(cls: Any) -> Any:
        cls.__init__.__signature__ = signature(today.__init__, eval_str=True)  # type: ignore[misc]
        return cls

    return decorate


_CHECKPOINT = "ModelCheckpoint"
_BEHIND_FILENAME = ("monitor", "verbose", "save_last", "save_top_k")  # of all releases since 1.2
_NOT_CALLED_ON_SAVING = ("_save_model", "_do_save", "_do_check_save", "save_checkpoint", "save_function")
_EVERY_EPOCH = "{epoch}"


@_has_arguments_of(_ModelCheckpoint)
class ModelCheckpoint(_ModelCheckpoint, metaclass=StandIn):
    """`camshaft.callbacks.ModelCheckpoint` with the arguments of releases 0.4 to 1.9, and today's by keyword.

    A metric in `filename` that has not been logged is written as 0, with a warning. Slashes in a metric's name stay,
    and make folders.

    Args:
        args: A folder, or where it has places for metrics a path with a file's name: what came first up to 1.1 and
            later. A second one with such places, or None, is the file's name; then `monitor`, `verbose`, `save_last`
            and `save_top_k` may follow.
        filepath: Up to 1.1: a folder that exists, or the path of a file without extension.
        monitor: The metric. Left out it is `val_loss` where other arguments are of 0.x or several are kept.
        mode: "min", "max" or "auto", which is "max" where the metric's name has "acc" in it.
        period: Up to 1.3: `every_n_epochs`. Less than 1 is every validation up to 0.9, and none later.
        every_n_val_epochs: In 1.3 and 1.4: `every_n_epochs`.
        prefix: Up to 1.2: what the file's name begins with.
        save_best_only: In 0.4 and 0.5: whether the best is kept, and not all.
        save_top_k: How many are kept; None and True mean 1, False 0.
        arguments: Today's.

    Raises:
        TypeError: If it is not clear what a second positional argument was, or a subclass overrides what is not called.
        ValueError: If it is not clear which direction is meant, or as `camshaft.callbacks.ModelCheckpoint`.
    """

    __stands_for__: ClassVar[type] = _ModelCheckpoint
    CHECKPOINT_SLASH_CHAR: ClassVar[str] = "/"

    def __init__(
        self,
        *args: Any,
        filepath: str | os.PathLike[str] | None = None,
        monitor: Any = UNSET,
        mode: str | None = None,
        period: int | None = None,
        every_n_val_epochs: int | None = None,
        prefix: str = "",
        save_best_only: bool | None = None,
        save_top_k: int | None = None,
        **arguments: Any,
    ) -> None:
        if len(args) > 2 and _names_a_file(args[1]) and len(args) <= 2 + len(_BEHIND_FILENAME):
            behind = dict(zip(_BEHIND_FILENAME, args[2:], strict=False))
            monitor, save_top_k = behind.pop("monitor"), behind.pop("save_top_k", save_top_k)
            arguments.update(behind)
            args = args[:2]
        is_of_0_x = filepath is not None or save_best_only is not None or bool(prefix) or mode == "auto"
        arguments.update(_place(args, filepath, arguments))
        if save_best_only is not None:
            save_top_k = 1 if save_best_only else -1
            note(_CHECKPOINT, f"save_best_only={save_best_only}", f"`save_top_k={save_top_k}`")
        if save_top_k is None or isinstance(save_top_k, bool):
            save_top_k = int(save_top_k is not False)
        arguments["save_top_k"] = save_top_k
        if monitor is UNSET:
            monitor = "val_loss" if is_of_0_x or arguments["save_top_k"] > 1 else None
            if monitor is not None:
                note(
                    _CHECKPOINT,
                    "no `monitor`",
                    "`monitor='val_loss'`, as up to 0.9; pass monitor=None for the newest",
                )
        if period is not None and period < 1:
            taken, when = (1, "up to 0.9") if is_of_0_x else (0, "from 1.0 on")
            note(_CHECKPOINT, f"period={period}", f"`every_n_epochs={taken}`, as {when}")
            period = taken
        for name, every in (("period", period), ("every_n_val_epochs", every_n_val_epochs)):
            if every is not None:
                refuse_argument(
                    "every_n_epochs", arguments.get("every_n_epochs"), _CHECKPOINT, f"`{name}` is given", ""
                )
                arguments["every_n_epochs"] = every
        if arguments.get("save_on_train_epoch_end") and not arguments.get("every_n_epochs"):
            for name in ("every_n_train_steps", "train_time_interval"):
                if arguments.get(name):
                    note(_CHECKPOINT, f"save_on_train_epoch_end=True beside `{name}`", "left out: no epoch is due")
                    arguments["save_on_train_epoch_end"] = None
        if prefix:
            arguments["filename"] = f"{prefix}-{arguments.get('filename') or _EVERY_EPOCH}"
            note(_CHECKPOINT, f"prefix={prefix!r}", f"`filename={arguments['filename']!r}`")
        mode = chosen_mode(mode, monitor, _CHECKPOINT, is_auto_by_default=True)
        arguments["verbose"] = bool(arguments.get("verbose", False))
        super().__init__(monitor=monitor, mode=mode, **arguments)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        refuse_overrides(
            cls, _NOT_CALLED_ON_SAVING, "Change the checkpoint in `on_save_checkpoint`, or see `camshaft.callbacks`."
        )

    def _remove_checkpoint(self, trainer: Any, filepath: str) -> None:
        """Remove a checkpoint by the strategy, whose plugin may have written it; called on all ranks."""
        if hasattr(trainer.strategy, "remove_checkpoint"):
            trainer.strategy.remove_checkpoint(filepath)
        else:
            super()._remove_checkpoint(trainer, filepath)

    def _format_checkpoint_name(
        self,
        filename: str | None,
        metrics: dict[str, Any],
        prefix: str | None = None,
        auto_insert_metric_name: bool = True,
    ) -> str:
        """Return the name with 0, and a warning, in place of metrics that have not been logged."""
        try:
            return super()._format_checkpoint_name(filename, metrics, prefix, auto_insert_metric_name)
        except MissingMetricError as error:
            warn_user(f"{error} The file's name gets 0 in its place.")
            known = {**metrics, error.metric: 0}
            return self._format_checkpoint_name(filename, known, prefix, auto_insert_metric_name)

    @property
    def best(self) -> Any:
        """The best score, under the name that it had up to 0.7."""
        return self.best_model_score

    @property
    def period(self) -> int:
        """The epochs between checkpoints, under their name up to 1.3."""
        return self.every_n_epochs


def _place(args: tuple[Any, ...], filepath: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the folder and the file's name, if they are given by one of the earlier arguments."""
    if len(args) > 2 or (len(args) == 2 and not _names_a_file(args[1])):
        rule = "given by name after the first one: up to 1.1 the second was `monitor`, and `filename` later"
        action = "Write monitor=... or filename=..."
        raise TypeError(must_be("args", rule, args[1:], _CHECKPOINT, action))
    if args and filepath is not None:
        raise TypeError(
            must_be("filepath", "left out beside a first argument", filepath, _CHECKPOINT, "Pass one of them.")
        )
    if filepath is not None:
        folder, name = _split(os.fspath(filepath))
        note(_CHECKPOINT, f"filepath={os.fspath(filepath)!r}", f"`dirpath={folder!r}, filename={name!r}`")
        return {"dirpath": folder, "filename": name}
    if not args or args[0] is None:
        return {"filename": args[1]} if len(args) == 2 else {}
    first = os.fspath(args[0])
    if len(args) == 2:
        return {"dirpath": first, "filename": args[1]}
    if "{" in first:
        folder, name = _split(first)
        return {"dirpath": folder, "filename": name}
    if "filename" not in arguments and not first.endswith(("/", os.sep)) and not os.path.isdir(first):
        meaning = "the folder `dirpath`, as since 1.2; pass dirpath=... and filename=... for the path of a file"
        note(_CHECKPOINT, f"the path {first!r}", meaning)
    return {"dirpath": first}


def _names_a_file(second: Any) -> bool:
    return second is None or "{" in str(second)


def _split(path: str) -> tuple[str, str | None]:
    if is_url(path):
        return parent_of(path), path.rpartition("/")[2] or None
    if os.path.isdir(path):
        return path, None
    folder, name = os.path.split(path)
    return folder or ".", name or None


_EARLY_STOPPING = "EarlyStopping"
_NUM_ARGUMENTS_BEFORE_RANKS = 6  # behind `mode`
_NOT_CALLED_ON_STOPPING = ("check_metrics", "_evalute_stopping_criteria")


@_has_arguments_of(_EarlyStopping)
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
        TypeError: If a subclass overrides what is not called.
        ValueError: If it is not clear which direction is meant, or as `camshaft.callbacks.EarlyStopping`.
    """

    __stands_for__: ClassVar[type] = _EarlyStopping

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

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        refuse_overrides(cls, _NOT_CALLED_ON_STOPPING, "Override `on_validation_end`, or subclass `Callback`.")


@_has_arguments_of(_StochasticWeightAveraging)
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

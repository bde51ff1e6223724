"""`ModelCheckpoint` of the import names: arguments of all releases, and Lightning's fields and methods."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from inspect import signature
from typing import Any, ClassVar

import torch

from camshaft.callbacks import ModelCheckpoint as _ModelCheckpoint
from camshaft.callbacks.arguments import MissingMetricError
from camshaft.callbacks.checkpoints.files import point_last_at
from camshaft.callbacks.monitoring import from_rank_zero
from camshaft.compat.eras.releases import MODES_ARE_MIN, behaviour_in
from camshaft.compat.names.stand_ins import StandIn, has_arguments_of, note, refuse_argument
from camshaft.compat.names.trainer.callbacks import UNSET, chosen_mode, follow_release, is_before_validation
from camshaft.hooks_core.support.messages import must_be, warn_user
from camshaft.hooks_core.support.remote_files import absolute, is_url, parent_of

_CHECKPOINT = "ModelCheckpoint"
_BEHIND_FILENAME = ("monitor", "verbose", "save_last", "save_top_k")  # of all releases since 1.2
_EVERY_EPOCH = "{epoch}"
_WRITING_METHODS = (
    *("_save_checkpoint", "_save_topk_checkpoint", "_save_last_checkpoint", "_save_monitor_checkpoint"),
    *("_save_none_monitor_checkpoint", "_update_best_and_save"),
)
"""Methods in which subclasses rely on a checkpoint being written when the call returns."""

_EARLIER_METHODS = {
    "_save_model": "_save_checkpoint",
    "_del_model": "_remove_checkpoint",
    "_save_top_k_checkpoint": "_save_topk_checkpoint",
    "_save_top_k_checkpoints": "_save_topk_checkpoint",
}
"""Methods that had other names up to 1.5; their arguments were in another order, and more, in each release."""


def _calling(earlier: str) -> Any:
    """Return a method that calls an override of an earlier name, with the arguments that it takes."""

    def call(self: Any, trainer: Any, value: Any) -> None:
        method = getattr(self, earlier)
        parameters = signature(method).parameters.values()
        if any(one.kind is one.VAR_POSITIONAL for one in parameters):
            method(trainer, value)
            return
        given = {"trainer": trainer, "pl_module": trainer.model, "epoch": trainer.current_epoch}
        method(**{one.name: given.get(one.name, value) for one in parameters if one.default is one.empty})

    return call


def _called(today: str) -> Any:
    """Return the method of an earlier name, for overrides that call it, in any order of arguments."""

    def call(self: Any, *args: Any, **kwargs: Any) -> None:
        given = [*args, *kwargs.values()]
        value = next(one for one in given if isinstance(one, (str, os.PathLike, dict)))
        getattr(ModelCheckpoint, today)(self, next(one for one in given if hasattr(one, "callback_metrics")), value)

    return call


@has_arguments_of(_ModelCheckpoint)
class ModelCheckpoint(_ModelCheckpoint, metaclass=StandIn):
    """`camshaft.callbacks.ModelCheckpoint` with the arguments of releases 0.4 to 1.9, and today's by keyword.

    A metric in `filename` that has not been logged is written as 0, with a warning. Slashes in a metric's name stay,
    and make folders.

    Subclasses may override the methods that Lightning's class has: `_monitor_candidates`, `format_checkpoint_name`,
    `check_monitor_top_k`, `_update_best_and_save`, `_save_checkpoint`, `_remove_checkpoint` and others. Those that
    write are then called at the save point, on all ranks, and `trainer.save_checkpoint` in them writes at once; an
    overridden `_save_checkpoint` writes "last" as well, unless it is a link.

    Args:
        args: A folder, or where it has places for metrics a path with a file's name: what came first up to 1.1 and
            later. A second one with such places, or None, is the file's name; then `monitor`, `verbose`, `save_last`
            and `save_top_k` may follow.
        filepath: Up to 1.1: a folder that exists, or the path of a file without extension.
        monitor: The metric. Left out it is `val_loss` where other arguments are of 0.x or several are kept, and for a
            module of a release up to 1.2 what a result is `checkpoint_on`, or `val_loss`, once that is logged.
        mode: "min", "max" or "auto", which is "max" where the metric's name has "acc" in it. Left out it is that of
            the module's release: "auto" up to 1.2, then "min".
        period: Up to 1.3: `every_n_epochs`. Less than 1 is every validation up to 0.9, and none later.
        every_n_val_epochs: In 1.3 and 1.4: `every_n_epochs`.
        prefix: Up to 1.2: what the file's name begins with.
        save_best_only: In 0.4 and 0.5: whether the best is kept, and not all.
        save_top_k: How many are kept; None and True mean 1, False 0.
        arguments: Today's.

    Raises:
        TypeError: If it is not clear what a second positional argument was.
        ValueError: As `camshaft.callbacks.ModelCheckpoint`; at setup, if it is not clear which direction is meant.
    """

    CHECKPOINT_SLASH_CHAR: ClassVar[str] = "/"

    _is_monitor_open: bool = True
    _is_of_trainer: bool = False
    _is_mode_open: bool = False
    _watched: Sequence[str] = ("val_checkpoint_on", "checkpoint_on", "val_loss")  # where `monitor` is open, up to 1.2
    _key: str | None = None  # before the release of a module chose what was left open
    _last_time_checked: float | None = None
    _last_checkpoint_saved: str = ""
    _saves_at_save_point: bool = False
    _expected: tuple[str, Callable[[], None] | None] | None = None  # the write that `_save_checkpoint` is to ask for

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
        if 2 < len(args) <= 2 + len(_BEHIND_FILENAME) and _names_a_file(args[1]):
            behind = dict(zip(_BEHIND_FILENAME, args[2:], strict=False))
            monitor, save_top_k = behind.pop("monitor"), behind.pop("save_top_k", save_top_k)
            args, arguments = args[:2], {**arguments, **behind}
        is_of_0_x = filepath is not None or save_best_only is not None or bool(prefix) or mode == "auto"
        arguments.update(_place(args, filepath, arguments))
        if save_best_only is not None:
            save_top_k = 1 if save_best_only else -1
            note(_CHECKPOINT, f"save_best_only={save_best_only}", f"`save_top_k={save_top_k}`")
        if save_top_k is None or isinstance(save_top_k, bool):
            save_top_k = int(save_top_k is not False)
        is_monitor_open = monitor is UNSET
        if is_monitor_open:
            monitor = "val_loss" if is_of_0_x or save_top_k > 1 else None
            if monitor is not None:
                meaning = "`monitor='val_loss'`, as up to 0.9; pass monitor=None for the newest"
                note(_CHECKPOINT, "no `monitor`", meaning)
        if period is not None and period < 1:
            taken, when = (1, "up to 0.9") if is_of_0_x else (0, "from 1.0 on")
            note(_CHECKPOINT, f"period={period}", f"`every_n_epochs={taken}`, as {when}")
            period = taken
        for name, every in (("period", period), ("every_n_val_epochs", every_n_val_epochs)):
            if every is not None:
                given, why = arguments.get("every_n_epochs"), f"`{name}` is given"
                refuse_argument("every_n_epochs", given, _CHECKPOINT, why, "")
                arguments["every_n_epochs"] = every
        for name in ("every_n_train_steps", "train_time_interval"):
            at_end = arguments.get("save_on_train_epoch_end") and not arguments.get("every_n_epochs")
            if at_end and arguments.get(name):
                note(_CHECKPOINT, f"save_on_train_epoch_end=True beside `{name}`", "left out: no epoch is due")
                arguments["save_on_train_epoch_end"] = None
        if prefix:
            arguments["filename"] = f"{prefix}-{arguments.get('filename') or _EVERY_EPOCH}"
            note(_CHECKPOINT, f"prefix={prefix!r}", f"`filename={arguments['filename']!r}`")
        arguments["verbose"] = bool(arguments.get("verbose", False))
        chosen, self._is_mode_open = chosen_mode(mode, monitor, _CHECKPOINT, is_auto_by_default=True)
        self._is_monitor_open = is_monitor_open and monitor is None
        super().__init__(monitor=monitor, mode=chosen, save_top_k=save_top_k, **arguments)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Have overrides of earlier names called."""
        super().__init_subclass__(**kwargs)
        for earlier, today in _EARLIER_METHODS.items():
            if earlier in vars(cls) and today not in vars(cls):
                setattr(cls, today, _calling(earlier))

    @classmethod
    def adopt(cls, checkpoint: _ModelCheckpoint) -> None:
        """Make a checkpoint callback that a trainer added one of this class."""
        checkpoint.__class__ = cls
        checkpoint._is_of_trainer = True  # type: ignore[attr-defined]

    @property
    def state_key(self) -> str:
        """Class name and the arguments that tell two of these in one trainer apart, as they were given."""
        return self._key or super().state_key

    @property
    def _fs(self) -> Any:
        """The file system of the folder, by the package fsspec."""
        from camshaft.compat.names.utilities.saving import get_filesystem

        return get_filesystem(self.dirpath or "")

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """Start counting; see `camshaft.callbacks.ModelCheckpoint`."""
        self._last_time_checked = time.monotonic()  # for hooks that are copied from Lightning's class
        super().on_train_start(trainer, module)

    def setup(self, trainer: Any, module: Any, stage: str) -> None:
        """Find the folder, and whether saves wait for the save point; see `camshaft.callbacks.ModelCheckpoint`."""
        if stage == "fit":
            self._key = self.state_key
            self._follow_release(behaviour_in(getattr(trainer, "current_run", None)).since)
            if self._is_mode_open:
                self._is_mode_open = False
                follow_release(self, trainer, _CHECKPOINT)
        super().setup(trainer, module, stage)
        self._saves_at_save_point = any(self._is_overridden(name) for name in _WRITING_METHODS)

    def _follow_release(self, since: tuple[int, ...]) -> None:
        self._is_monitor_open &= since < MODES_ARE_MIN
        if self._is_of_trainer and (0, 8) <= since < (1, 0):  # documented as the newest
            self._watched = self._watched[:-1]

    def _is_overridden(self, name: str) -> bool:
        return getattr(getattr(self, name), "__func__", None) is not getattr(ModelCheckpoint, name)

    def save_checkpoint(self, trainer: Any, pl_module: Any = None) -> None:
        """Save as at a due time, as up to 1.6. Collective."""
        self._save(trainer, self._monitor_candidates(trainer))

    def _should_save_on_train_epoch_end(self, trainer: Any) -> bool:
        is_open = self.save_on_train_epoch_end is None
        return not (is_open and is_before_validation(trainer)) and super()._should_save_on_train_epoch_end(trainer)

    # what writes, for overrides of it

    @property
    def _waits_for_validation(self) -> bool:
        return self._saves_at_save_point or super()._waits_for_validation

    @property
    def _writes_last(self) -> bool:  # type: ignore[override]  # read-only here
        return self.save_last != "link" and self._is_overridden("_save_checkpoint")

    def _decide(self, trainer: Any, candidates: dict[str, Any], *, is_last_alone: bool = False) -> None:
        self._at_save_point(trainer, partial(super()._decide, trainer, candidates, is_last_alone=is_last_alone))

    def _write_missing(self, trainer: Any) -> None:
        if self._unwritten:
            self._at_save_point(trainer, partial(super()._write_missing, trainer))

    def _at_save_point(self, trainer: Any, function: Callable[[], None]) -> None:
        """Call a function now, or at the save point if it relies on checkpoints being written when a call returns."""
        if self._saves_at_save_point:
            trainer.at_save_point(function)
        else:
            function()

    def _keep(self, trainer: Any, candidates: dict[str, Any], score: Any) -> None:
        if score is None:
            self._save_none_monitor_checkpoint(trainer, candidates)
        else:
            self._update_best_and_save(score, trainer, candidates)

    def _update_best_and_save(self, current: Any, trainer: Any, monitor_candidates: dict[str, Any]) -> None:
        """Rank a checkpoint and save it. Collective."""
        super()._keep(trainer, monitor_candidates, current)

    def _save_none_monitor_checkpoint(self, trainer: Any, monitor_candidates: dict[str, Any]) -> None:
        super()._keep(trainer, monitor_candidates, None)

    def _save_last_checkpoint(self, trainer: Any, monitor_candidates: dict[str, Any]) -> None:
        super()._save_last_checkpoint(trainer, monitor_candidates)
        if self.save_last and self.save_last != "link":
            self._last_checkpoint_saved = self.last_model_path

    def _write(self, trainer: Any, path: str, on_saved: Callable[[], None] | None) -> None:
        self._expected = path, on_saved
        self._save_checkpoint(trainer, path)
        if self._expected is not None:  # an override has written other files
            self._expected = None
            if self._pending is not None and self._newest is not None:
                self._pending.finish(self._newest)

    def _save_checkpoint(self, trainer: Any, filepath: str) -> None:
        """Have the trainer write a checkpoint. Collective."""
        self._last_global_step_saved, self._last_checkpoint_saved = trainer.global_step, filepath
        on_saved: Callable[[], None] | None = None
        if self._expected is not None and self._expected[0] == filepath:
            (_, on_saved), self._expected = self._expected, None
        super()._write(trainer, filepath, on_saved)

    def _new_path(self, trainer: Any, candidates: dict[str, Any], displaced: tuple[str, ...]) -> str:
        del_filepath = displaced if len(displaced) > 1 else next(iter(displaced), None)
        return self._get_metric_interpolated_filepath_name(candidates, trainer, del_filepath)

    def _get_metric_interpolated_filepath_name(
        self, monitor_candidates: dict[str, Any], trainer: Any, del_filepath: str | tuple[str, ...] | None = None
    ) -> str:
        """Return the path for a new checkpoint, which may be that of one it displaces. Collective."""
        reusable = (del_filepath,) if isinstance(del_filepath, str) else del_filepath or ()
        return super()._new_path(trainer, monitor_candidates, tuple(reusable))

    def _point_last(self, trainer: Any, path: str, last_path: str) -> None:
        if self.save_last == "link":
            self._link_checkpoint(trainer, path, last_path)
        else:
            super()._point_last(trainer, path, last_path)

    @staticmethod
    def _link_checkpoint(trainer: Any, filepath: str, linkpath: str) -> None:
        """Make a symbolic link to a checkpoint. Collective."""
        from_rank_zero(trainer.strategy, lambda: point_last_at(filepath, linkpath, by_link=True))

    def _monitor_candidates(self, trainer: Any, epoch: int | None = None, step: int | None = None) -> dict[str, Any]:
        """Return the logged values with "epoch" and "step", which up to 1.5 were arguments."""
        given = {"epoch": epoch, "step": step}
        counts = {name: torch.tensor(count) for name, count in given.items() if count is not None}
        candidates = {**super()._monitor_candidates(trainer), **counts}
        if self._is_monitor_open and self.monitor is None and self._is_fitting:
            self.monitor = next((name for name in self._watched if name in candidates), None)
        return candidates

    def _choose_folder(self, trainer: Any) -> str:
        folder = self.__resolve_ckpt_dir(trainer)
        chosen: str = from_rank_zero(trainer.strategy, lambda: absolute(folder))
        return chosen

    def __resolve_ckpt_dir(self, trainer: Any) -> str:
        """Return the folder, under the name that subclasses of Lightning's class override and others call."""
        return self.dirpath or super()._choose_folder(trainer)

    def _remove_checkpoint(self, trainer: Any, filepath: str) -> None:
        """Remove a checkpoint by the strategy, whose plugin may have written it; called on all ranks."""
        if hasattr(trainer.strategy, "remove_checkpoint"):
            trainer.strategy.remove_checkpoint(filepath)
        else:
            super()._remove_checkpoint(trainer, filepath)

    def _format_checkpoint_name(self, filename: str | None, metrics: dict[str, Any], *args: Any, **kwargs: Any) -> str:
        """Return the name with 0, and a warning, in place of metrics that have not been logged."""
        try:
            return super()._format_checkpoint_name(filename, metrics, *args, **kwargs)
        except MissingMetricError as error:
            warn_user(f"{error} The file's name gets 0 in its place.")
            return self._format_checkpoint_name(filename, {**metrics, error.metric: 0}, *args, **kwargs)


for _earlier, _today in _EARLIER_METHODS.items():
    setattr(ModelCheckpoint, _earlier, _called(_today))


def _place(args: tuple[Any, ...], filepath: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the folder and the file's name, if they are given by one of the earlier arguments."""
    if len(args) > 2 or (len(args) == 2 and not _names_a_file(args[1])):
        rule = "given by name after the first one: up to 1.1 the second was `monitor`, and `filename` later"
        raise TypeError(must_be("args", rule, args[1:], _CHECKPOINT, "Write monitor=... or filename=..."))
    if filepath is not None:
        rule = "left out beside a first argument"
        if args:
            raise TypeError(must_be("filepath", rule, filepath, _CHECKPOINT, "Pass one of them."))
        folder, name = _split(os.fspath(filepath))
        note(_CHECKPOINT, f"filepath={os.fspath(filepath)!r}", f"`dirpath={folder!r}, filename={name!r}`")
        return {"dirpath": folder, "filename": name}
    first = None if not args or args[0] is None else os.fspath(args[0])
    place = {} if first is None else {"dirpath": first}
    if len(args) == 2:
        return {**place, "filename": args[1]}
    if first is not None and "{" in first:
        return dict(zip(("dirpath", "filename"), _split(first), strict=True))
    if first and "filename" not in arguments and not first.endswith(("/", os.sep)) and not os.path.isdir(first):
        meaning = "the folder `dirpath`, as since 1.2; pass dirpath=... and filename=... for the path of a file"
        note(_CHECKPOINT, f"the path {first!r}", meaning)
    return place


def _names_a_file(second: Any) -> bool:
    return second is None or "{" in str(second)


def _split(path: str) -> tuple[str, str | None]:
    if is_url(path):
        return parent_of(path), path.rpartition("/")[2] or None
    if os.path.isdir(path):
        return path, None
    folder, name = os.path.split(path)
    return folder or ".", name or None

"""`ModelCheckpoint` of the import names: arguments of all releases, and Lightning's fields and methods."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from datetime import timedelta
from inspect import signature
from typing import Any, ClassVar

import torch

from camshaft.callbacks import ModelCheckpoint as _ModelCheckpoint
from camshaft.callbacks.arguments import MissingMetricError
from camshaft.callbacks.monitoring import from_rank_zero
from camshaft.compat.names.stand_ins import StandIn, has_arguments_of, note, refuse_argument, same_as
from camshaft.compat.names.trainer.callbacks import UNSET, chosen_mode
from camshaft.hooks_core.messages import must_be, warn_user
from camshaft.hooks_core.remote_files import absolute, is_url, parent_of

_CHECKPOINT = "ModelCheckpoint"
_BEHIND_FILENAME = ("monitor", "verbose", "save_last", "save_top_k")  # of all releases since 1.2
_EVERY_EPOCH = "{epoch}"
_IN_HOOK = "Change the checkpoint in `on_save_checkpoint`, or override `_save_checkpoint`."
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
        given = {"trainer": trainer, "pl_module": trainer.lightning_module, "epoch": trainer.current_epoch}
        method(**{one.name: given.get(one.name, value) for one in parameters if one.default is one.empty})

    return call


def _called(today: str) -> Any:
    """Return the method of an earlier name, for overrides that call it, in any order of arguments."""
    method = getattr(_ModelCheckpoint, today)

    def call(self: Any, *args: Any, **kwargs: Any) -> None:
        given = [*args, *kwargs.values()]
        value = next(one for one in given if isinstance(one, (str, os.PathLike, dict)))
        method(self, next(one for one in given if hasattr(one, "callback_metrics")), value)

    return call


@has_arguments_of(_ModelCheckpoint)
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
        TypeError: If it is not clear what a second positional argument was.
        ValueError: If it is not clear which direction is meant, or as `camshaft.callbacks.ModelCheckpoint`.
    """

    __stands_for__: ClassVar[type] = _ModelCheckpoint
    CHECKPOINT_SLASH_CHAR: ClassVar[str] = "/"
    _uncalled_methods: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("_do_save", "_do_check_save", "save_checkpoint", "save_function"), _IN_HOOK
    )

    _every_n_epochs: int = same_as("every_n_epochs")
    _every_n_train_steps: int = same_as("every_n_train_steps")
    _train_time_interval: timedelta | None = same_as("train_time_interval")
    _save_on_train_epoch_end: bool | None = same_as("save_on_train_epoch_end")
    _enable_version_counter: bool = same_as("enable_version_counter")
    _defer_save_until_validation: bool = same_as("_is_deferred")
    _last_time_checked: float | None = None

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
        """Have overrides of earlier names called."""
        super().__init_subclass__(**kwargs)
        for earlier, today in _EARLIER_METHODS.items():
            if earlier in vars(cls) and today not in vars(cls):
                setattr(cls, today, _calling(earlier))

    @property
    def _fs(self) -> Any:
        """The file system of the folder, by the package fsspec."""
        from camshaft.compat.names.utilities.saving import get_filesystem

        return get_filesystem(self.dirpath or "")

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """Start counting; see `camshaft.callbacks.ModelCheckpoint`."""
        self._last_time_checked = time.monotonic()  # for hooks that are copied from Lightning's class
        super().on_train_start(trainer, module)

    def save_checkpoint(self, trainer: Any, pl_module: Any = None) -> None:
        """Save as at a due time, as up to 1.6. Collective."""
        self._save(trainer, self._monitor_candidates(trainer))

    def _monitor_candidates(self, trainer: Any, epoch: int | None = None, step: int | None = None) -> dict[str, Any]:
        """Return the logged values with "epoch" and "step", which up to 1.5 were arguments."""
        given = {"epoch": epoch, "step": step}
        counts = {name: torch.tensor(count) for name, count in given.items() if count is not None}
        return {**super()._monitor_candidates(trainer), **counts}

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


for _earlier, _today in _EARLIER_METHODS.items():
    setattr(ModelCheckpoint, _earlier, _called(_today))


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

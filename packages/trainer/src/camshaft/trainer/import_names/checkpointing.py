"""`ModelCheckpoint` with the arguments of earlier releases."""

from __future__ import annotations

import os
from typing import Any, ClassVar

from camshaft.callbacks import ModelCheckpoint as _ModelCheckpoint
from camshaft.hooks_core.messages import must_be
from camshaft.trainer.import_names.monitoring import UNSET, chosen_mode
from camshaft.trainer.import_names.stand_ins import StandIn, note, refuse_argument, refuse_overrides

_WHERE = "ModelCheckpoint"
_NOT_CALLED = ("_save_model", "_do_save", "_do_check_save", "save_checkpoint", "save_function")
_EVERY_EPOCH = "{epoch}"


class ModelCheckpoint(_ModelCheckpoint, metaclass=StandIn):
    """Takes what releases 0.4 to 1.9 took, and today's arguments by keyword; see `camshaft.callbacks.ModelCheckpoint`.

    Args:
        args: A folder, or where it has places for metrics a path with a file's name: what came first up to 1.1 and
            later. A second one with such places is the file's name.
        filepath: Up to 1.1: a folder that exists, or the path of a file without extension.
        monitor: The metric. Left out it is `val_loss` where other arguments are of 0.x or several are kept.
        mode: "min", "max" or "auto", which is "max" where the metric's name has "acc" in it.
        period: Up to 1.3: `every_n_epochs`.
        every_n_val_epochs: In 1.3 and 1.4: `every_n_epochs`.
        prefix: Up to 1.2: what the file's name begins with.
        save_best_only: In 0.4 and 0.5: whether the best is kept, and not all.
        save_top_k: How many are kept; None means 1.
        arguments: Today's.

    Raises:
        TypeError: If it is not clear what a second positional argument was, or a subclass overrides what is not called.
        ValueError: If it is not clear which direction is meant, or as `camshaft.callbacks.ModelCheckpoint`.
    """

    __stands_for__: ClassVar[type] = _ModelCheckpoint

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
        is_of_0_x = filepath is not None or save_best_only is not None or bool(prefix) or mode == "auto"
        arguments.update(_place(args, filepath, arguments))
        if save_best_only is not None:
            save_top_k = 1 if save_best_only else -1
            note(_WHERE, f"save_best_only={save_best_only}", f"`save_top_k={save_top_k}`")
        arguments["save_top_k"] = 1 if save_top_k is None else save_top_k
        if monitor is UNSET:
            monitor = "val_loss" if is_of_0_x or arguments["save_top_k"] > 1 else None
            if monitor is not None:
                note(_WHERE, "no `monitor`", "`monitor='val_loss'`, as up to 0.9; pass monitor=None for the newest")
        for name, every in (("period", period), ("every_n_val_epochs", every_n_val_epochs)):
            if every is not None:
                refuse_argument("every_n_epochs", arguments.get("every_n_epochs"), _WHERE, f"`{name}` is given", "")
                arguments["every_n_epochs"] = every
        if prefix:
            arguments["filename"] = f"{prefix}-{arguments.get('filename') or _EVERY_EPOCH}"
            note(_WHERE, f"prefix={prefix!r}", f"`filename={arguments['filename']!r}`")
        mode = chosen_mode(mode, monitor, _WHERE, is_auto_by_default=True)
        arguments["verbose"] = bool(arguments.get("verbose", False))
        super().__init__(monitor=monitor, mode=mode, **arguments)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        refuse_overrides(
            cls, _NOT_CALLED, "Change the checkpoint in `on_save_checkpoint`, or see `camshaft.callbacks`."
        )

    @property
    def best(self) -> Any:
        """The best score, under the name that it had up to 0.7."""
        return self.best_model_score

    @property
    def period(self) -> int:
        """Epochs between due times, under the name that they had up to 1.3."""
        return self.every_n_epochs


def _place(args: tuple[Any, ...], filepath: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """Folder and file's name, if they are given by one of the earlier arguments."""
    if len(args) > 2 or (len(args) == 2 and not (args[1] is None or "{" in str(args[1]))):
        rule = "given by name after the first one: up to 1.1 the second was `monitor`, and `filename` later"
        action = "Write monitor=... or filename=..."
        raise TypeError(must_be("args", rule, args[1:], _WHERE, action))
    if args and filepath is not None:
        raise TypeError(must_be("filepath", "left out beside a first argument", filepath, _WHERE, "Pass one of them."))
    if filepath is not None:
        folder, name = _split(os.fspath(filepath))
        note(_WHERE, f"filepath={os.fspath(filepath)!r}", f"`dirpath={folder!r}, filename={name!r}`")
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
        note(_WHERE, f"the path {first!r}", meaning)
    return {"dirpath": first}


def _split(path: str) -> tuple[str, str | None]:
    if os.path.isdir(path):
        return path, None
    folder, name = os.path.split(path)
    return folder or ".", name or None

"""Which combinations of `ModelCheckpoint`'s arguments make sense."""

from __future__ import annotations

import os
from datetime import timedelta

from camshaft.callbacks.errors import InvalidArgumentError, check_local


def check_arguments(
    *,
    where: str,
    monitor: str | None,
    save_top_k: int,
    save_last: object,
    every_n_epochs: int | None,
    every_n_train_steps: int | None,
    train_time_interval: timedelta | None,
    save_on_train_epoch_end: bool | None,
) -> None:
    """Raise on the first argument that cannot be followed.

    Raises:
        InvalidArgumentError: If a number is no int or out of range, two rhythms are given at once, `save_top_k` needs a
            `monitor` that is not there, or the epoch's end is asked for where no epoch is due.
    """
    _check_int("save_top_k", save_top_k, -1, "-1 (all), 0 (none) or more", where, "Use -1 for all.")
    if monitor is None and save_top_k > 1:
        raise InvalidArgumentError(
            "save_top_k", "-1, 0 or 1 without a `monitor`", save_top_k, where, "Pass the metric to rank by."
        )
    if not (monitor is None or isinstance(monitor, str)):
        raise InvalidArgumentError("monitor", "the name of a logged metric", monitor, where, "Pass a string.")
    if save_last not in (True, False, None, "link"):
        action = "True is a hard link, which takes no room either; 'link' is a symbolic one."
        raise InvalidArgumentError("save_last", "True, False, None or 'link'", save_last, where, action)
    if train_time_interval is not None and (
        not isinstance(train_time_interval, timedelta) or train_time_interval < timedelta(0)
    ):
        action = "Pass for example `timedelta(minutes=30)`."
        raise InvalidArgumentError("train_time_interval", "a timedelta from 0", train_time_interval, where, action)
    counts = {"every_n_epochs": every_n_epochs, "every_n_train_steps": every_n_train_steps}
    for field, count in counts.items():
        if count is not None:
            _check_int(field, count, 0, "0 (never) or more", where, "Use 0 to switch it off.")
    rhythms = {"train_time_interval": train_time_interval, **counts}
    given = [field for field, rhythm in rhythms.items() if rhythm is not None and rhythm != 0]
    if len(given) > 1:
        first, second = given[-1], given[0]
        action = "Add a second ModelCheckpoint for the second rhythm."
        raise InvalidArgumentError(first, f"left out beside `{second}`", rhythms[first], where, action)
    if save_on_train_epoch_end and given and given != ["every_n_epochs"]:
        action = "Leave it out, or add a second ModelCheckpoint for the ends of epochs."
        rule = f"left out or False beside `{given[0]}`, by which no epoch is due"
        raise InvalidArgumentError("save_on_train_epoch_end", rule, save_on_train_epoch_end, where, action)


def checked_folder(dirpath: str | os.PathLike[str], where: str) -> str:
    """The absolute path of a folder of checkpoints; "~" is the home directory.

    Raises:
        InvalidArgumentError: If it is the address of something that is not mounted here.
    """
    path = os.fspath(dirpath)
    check_local("dirpath", path, where)
    return os.path.abspath(os.path.expanduser(path))


def checked_name(filename: str, where: str) -> str:
    """A file's name without its extension.

    Raises:
        InvalidArgumentError: If it is empty or leads to another folder.
    """
    if not isinstance(filename, str) or not filename or os.path.basename(filename) != filename:
        action = "Give the folder by `dirpath`."
        raise InvalidArgumentError("filename", "a file's name, without a folder", filename, where, action)
    return filename


def _check_int(field: str, value: object, least: int, rule: str, where: str, action: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidArgumentError(field, f"an int, {rule}", value, where, action)

"""Names of checkpoint files, and checks of the arguments that choose them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import PurePath
from string import Formatter
from typing import Any

import attrs

from camshaft.callbacks.arguments import (
    InvalidArgumentError,
    MissingMetricError,
    check_number,
    check_one_of,
    usable_path,
)
from camshaft.hooks_core.support.remote_files import absolute


@attrs.frozen
class NameTemplate:
    """A file name with places for metrics; it is validated when constructed.

    Args:
        template: Text with `{name}` or `{name:format}`, where `name` is "epoch", "step" or a logged metric and may
            hold slashes and dots; `format` is Python's.
        auto_insert_metric_name: Whether `{name}` becomes `name=value` rather than `value`.
        where: The class to name in errors.
        equals_char: What stands between name and value.
        slash_char: What stands for slashes in a metric's name; a slash makes folders.

    Raises:
        InvalidArgumentError: If `template` is malformed, has an unnamed place or a format that no number takes, or
            leads out of the checkpoints' folder.
    """

    template: str
    auto_insert_metric_name: bool
    where: object
    equals_char: str = "="
    slash_char: str = "_"
    _parts: list[tuple[str, str | None, str]] = attrs.field(init=False)

    @property
    def metrics(self) -> set[str]:
        """The logged metrics in the name."""
        return {name for _, name, _ in self._parts if name not in (None, "epoch", "step")}

    def render(self, metrics: Mapping[str, Any]) -> str:
        """Return the name, without extension, with the values of `metrics` (numbers or scalar tensors).

        Raises:
            MissingMetricError: If the template names a metric that is not in `metrics`.
            InvalidArgumentError: If a value does not take its format, such as a fraction in `{loss:d}`.
        """
        text = ""
        for literal, name, spec in self._parts:
            text += literal
            if name is None:
                continue
            if name not in metrics:
                raise MissingMetricError("filename", name, metrics, self.where)
            value = metrics[name]
            number = value.item() if hasattr(value, "item") else value
            try:
                shown = format(number, spec)
            except ValueError as error:
                raise self._invalid(f"a template whose format in {{{name}:{spec}}} fits {number!r}") from error
            is_named = self.auto_insert_metric_name
            text += f"{name.replace('/', self.slash_char)}{self.equals_char}{shown}" if is_named else shown
        return text

    @_parts.default
    def _parse(self) -> list[tuple[str, str | None, str]]:
        try:
            parts = list(Formatter().parse(self.template))
        except ValueError as error:
            raise self._invalid(f"a well-formed template ({error})") from error
        text = "".join(literal + ("" if name is None else "0") for literal, name, *_ in parts)
        if PurePath(text).is_absolute() or ".." in PurePath(text).parts or text.endswith(("/", os.sep)):
            raise self._invalid("a path inside `dirpath`")
        for _, name, spec, conversion in parts:
            if name is None:
                continue
            if not name or conversion or "{" in (spec or ""):
                raise self._invalid("text with {name} and {name:format}")
            if not any(_takes(sample, spec or "") for sample in (0, 0.0)):
                raise self._invalid(f"a template with a number's format in {{{name}:{spec}}}")
        return [(literal, name, spec or "") for literal, name, spec, _ in parts]

    def _invalid(self, rule: str) -> InvalidArgumentError:
        action = "Write it like '{epoch}-{val_loss:.2f}'."
        return InvalidArgumentError("filename", rule, self.template, self.where, action)


def _takes(sample: float, spec: str) -> bool:
    try:
        format(sample, spec)
    except ValueError:
        return False
    return True


def check_arguments(
    where: object,
    monitor: object,
    save_top_k: int,
    save_last: object,
    time: timedelta | None,
    counts: Mapping[str, int | None],
    save_on_train_epoch_end: bool | None,
) -> None:
    """Check the arguments of a `ModelCheckpoint`.

    Raises:
        InvalidArgumentError: If a number is no int or out of range, two intervals are given at once, or the epoch's end
            is asked for where no epoch is due.
    """
    check_number(where, "Use -1 for all, 0 for none.", least=-1, is_int=True, save_top_k=save_top_k)
    if not (monitor is None or isinstance(monitor, str)):
        raise InvalidArgumentError("monitor", "the name of a logged metric", monitor, where, "Pass a string.")
    check_one_of(where, (True, False, None, "link"), "'link' is a symbolic link.", save_last=save_last)
    if time is not None and (not isinstance(time, timedelta) or time < timedelta(0)):
        raise InvalidArgumentError("train_time_interval", "a timedelta from 0", time, where, "Pass a positive one.")
    check_number(where, "Use 0 to switch it off.", least=0, is_int=True, or_none=True, **counts)
    intervals: dict[str, object] = {"train_time_interval": time, **counts}
    given = [field for field, interval in intervals.items() if interval not in (None, 0)]
    if len(given) > 1:
        first, second = given[-1], given[0]
        action = "Add a second ModelCheckpoint for the second interval."
        raise InvalidArgumentError(first, f"None when `{second}` is given", intervals[first], where, action)
    if save_on_train_epoch_end and given and given != ["every_n_epochs"]:
        action = "Leave it out, or add a second ModelCheckpoint for the ends of epochs."
        rule = f"False or None when `{given[0]}` is given"
        raise InvalidArgumentError("save_on_train_epoch_end", rule, save_on_train_epoch_end, where, action)


def absolute_folder(dirpath: str | os.PathLike[str], where: object) -> str:
    """Return the absolute path or the URL of a folder of checkpoints; "~" is the home directory.

    Raises:
        InvalidArgumentError, ImportError: If it is a URL where nothing can be written; see `usable_path`.
    """
    return absolute(usable_path("dirpath", dirpath, where))

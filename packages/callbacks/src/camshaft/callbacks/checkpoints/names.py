"""Names of checkpoint files, and checks of the arguments that choose them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import PurePath
from string import Formatter
from typing import Any

from camshaft.callbacks.arguments import (
    InvalidArgumentError,
    MissingMetricError,
    check_number,
    check_one_of,
    usable_path,
)
from camshaft.hooks_core.support.messages import warn_user
from camshaft.hooks_core.support.remote_files import absolute


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

    def __init__(
        self,
        template: str,
        auto_insert_metric_name: bool,
        where: object,
        equals_char: str = "=",
        slash_char: str = "_",
    ) -> None:
        self.template = template
        self.auto_insert_metric_name = auto_insert_metric_name
        self.where = where
        self.equals_char = equals_char
        self.slash_char = slash_char
        self._parts = self._parsed()

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

    def _parsed(self) -> list[tuple[str, str | None, str]]:
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


def first_free_path(path_of: Callable[[int | None], str], is_taken: Callable[[str], bool], version: int = 1) -> str:
    """Return the first path that is not taken: the one without a version, else that with the lowest one.

    Args:
        path_of: Returns the path with a version; without one for None.
        is_taken: Returns whether a path is taken.
        version: Number of the first version.

    Raises:
        RuntimeError: If two versions have the same path.
    """
    path = path_of(None)
    while is_taken(path):
        before, path = path, path_of(version)
        if path == before:
            raise RuntimeError(
                f"`format_checkpoint_name` must give each version a distinct path, but got {path!r} (str) for "
                f"version {version} as well in ModelCheckpoint. Put `ver` into the name, or pass "
                "enable_version_counter=False."
            )
        version += 1
    return path


def _takes(sample: float, spec: str) -> bool:
    try:
        format(sample, spec)
    except ValueError:
        return False
    return True


@dataclass(frozen=True)
class CheckpointNames:
    """The names that checkpoints get.

    Args:
        name: Of those that are kept.
        last: Of "last"; None if there is none.
        exception: Of one that an exception leads to.
        extension: With the dot.
        has_versions: Whether a name that is taken gets one; otherwise the file is replaced.
    """

    name: NameTemplate
    last: NameTemplate | None
    exception: NameTemplate
    extension: str
    has_versions: bool

    @property
    def uses_metrics(self) -> bool:
        """True if a logged metric is in a name."""
        return any(template.metrics for template in (self.name, self.last) if template is not None)

    @property
    def depth(self) -> int:
        """Number of folders that a name leads down."""
        return self.name.template.count("/")

    def may_replace(self, other: CheckpointNames) -> bool:
        """Return whether, in one folder, one callback could replace a file of the other."""
        if self.has_versions and other.has_versions:
            return False
        templates = [{one.template for one in (names.name, names.last) if one is not None} for names in (self, other)]
        return self.extension == other.extension and bool(templates[0] & templates[1])


def check_distinct(key: str, other_key: str, names: CheckpointNames, others_in_folder: CheckpointNames | None) -> None:
    """Check that two callbacks of one trainer do not share their state's key, and warn where they share files.

    Args:
        key: The `state_key` of one.
        other_key: That of the other.
        names: Names of the first one's checkpoints.
        others_in_folder: Names of the other's; None if it saves in another folder.

    Raises:
        InvalidArgumentError: If they share the key.
    """
    where = "Trainer(callbacks=...)"
    if key == other_key:
        action = "Distinguish them by `filename`, `monitor`, `mode` or interval."
        raise InvalidArgumentError("state_key", "different for each ModelCheckpoint of a trainer", key, where, action)
    if others_in_folder is not None and names.may_replace(others_in_folder):
        warn_user(
            f"Two ModelCheckpoints in {where} use the same names in one folder, and one of them with "
            "enable_version_counter=False: it replaces files of the other. Give one of them another `dirpath` or "
            "`filename`, and let one save `save_last`."
        )


def check_arguments(
    where: object,
    monitor: object,
    save_top_k: int,
    save_last: object,
    intervals: Mapping[str, int | timedelta | None],
    save_on_train_epoch_end: bool | None,
) -> None:
    """Check the arguments of a `ModelCheckpoint`.

    Raises:
        InvalidArgumentError: If a number is no int or out of range, two intervals are given at once, `save_top_k` needs
            a `monitor` that is missing, or the epoch's end is asked for where no epoch is due.
    """
    check_number(where, "Use -1 for all, 0 for none.", least=-1, is_int=True, save_top_k=save_top_k)
    if monitor is None and save_top_k > 1:
        rule, action = "-1, 0 or 1 without a `monitor`", "Pass the metric to rank by."
        raise InvalidArgumentError("save_top_k", rule, save_top_k, where, action)
    if not (monitor is None or isinstance(monitor, str)):
        raise InvalidArgumentError("monitor", "the name of a logged metric", monitor, where, "Pass a string.")
    action = "True is a hard link, which takes no space either; 'link' is a symbolic one."
    check_one_of(where, (True, False, None, "link"), action, save_last=save_last)
    counts: dict[str, Any] = dict(intervals)
    time = counts.pop("train_time_interval")
    if time is not None and (not isinstance(time, timedelta) or time < timedelta(0)):
        action = "Pass for example `timedelta(minutes=30)`."
        raise InvalidArgumentError("train_time_interval", "a timedelta from 0", time, where, action)
    check_number(where, "Use 0 to switch it off.", least=0, is_int=True, or_none=True, **counts)
    given = [field for field, interval in intervals.items() if interval is not None and interval != 0]
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

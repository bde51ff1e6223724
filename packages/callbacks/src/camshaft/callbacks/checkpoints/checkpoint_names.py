"""How checkpoint files are called."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import PurePath
from string import Formatter
from typing import Any

from camshaft.callbacks.errors import InvalidArgumentError, MissingMetricError


class NameTemplate:
    """A file name with places for metrics, checked when it is made.

    Args:
        template: Text with `{name}` or `{name:format}`, where `name` is "epoch", "step" or a logged metric and may
            hold slashes and dots; `format` is Python's.
        auto_insert_metric_name: Whether `{name}` becomes `name=value` (slashes in the name become "_", so that it
            makes no folder) rather than `value`.
        where: The class to name in errors.
        equals_char: What stands between name and value.

    Raises:
        InvalidArgumentError: If `template` is malformed, has an unnamed place or a format that no number takes, or
            leads out of the checkpoints' folder.
    """

    def __init__(self, template: str, auto_insert_metric_name: bool, where: str, equals_char: str = "=") -> None:
        self.template = template
        self.auto_insert_metric_name = auto_insert_metric_name
        self.where = where
        self.equals_char = equals_char
        self._parts = self._parsed()

    @property
    def metrics(self) -> set[str]:
        """The logged metrics in the name."""
        return {name for _, name, _ in self._parts if name not in (None, "epoch", "step")}

    def render(self, metrics: Mapping[str, Any]) -> str:
        """The name, without extension, with the values of `metrics` (numbers or scalar tensors).

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
                raise self._invalid(f"given a format that {number!r} takes in {{{name}:{spec}}}") from error
            is_named = self.auto_insert_metric_name
            text += f"{name.replace('/', '_')}{self.equals_char}{shown}" if is_named else shown
        return text

    def _parsed(self) -> list[tuple[str, str | None, str]]:
        try:
            parts = list(Formatter().parse(self.template))
        except ValueError as error:
            raise self._invalid(f"a well-formed template ({error})") from error
        text = "".join(literal + ("" if name is None else "0") for literal, name, *_ in parts)
        if PurePath(text).is_absolute() or ".." in PurePath(text).parts or text.endswith(("/", os.sep)):
            raise self._invalid("the name of a file in `dirpath` or in a folder below it")
        for _, name, spec, conversion in parts:
            if name is None:
                continue
            if not name or conversion or "{" in (spec or ""):
                raise self._invalid("made of text, {name} and {name:format}")
            if not any(_takes(sample, spec or "") for sample in (0, 0.0)):
                raise self._invalid(f"given a number's format in {{{name}:{spec}}}")
        return [(literal, name, spec or "") for literal, name, spec, _ in parts]

    def _invalid(self, rule: str) -> InvalidArgumentError:
        action = "Write it like '{epoch}-{val_loss:.2f}'."
        return InvalidArgumentError("filename", rule, self.template, self.where, action)


def first_free_path(path_of: Callable[[int | None], str], is_taken: Callable[[str], bool], version: int = 1) -> str:
    """Return the first path that is not taken: the one without a version, else that with the lowest one.

    Args:
        path_of: Gives the path with a version, without one for None.
        is_taken: Says so of a path.
        version: The first version's number.

    Raises:
        RuntimeError: If two versions have the same path.
    """
    path = path_of(None)
    while is_taken(path):
        before, path = path, path_of(version)
        if path == before:
            raise RuntimeError(
                f"`format_checkpoint_name` must give each version a path of its own, but got {path!r} (str) for "
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

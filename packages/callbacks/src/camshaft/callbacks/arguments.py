"""Errors and checks of constructor arguments, in one wording for all callbacks and loggers."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from typing import Any

from camshaft.hooks_core.support.messages import must_be
from camshaft.hooks_core.support.remote_files import check_store, is_url, local_path

STAGES = ("train", "validate", "test", "predict")
"""Names of the stages of a run."""


def owner_name(where: object) -> str:
    """Return the name of the class or function in an error's text; `where` is that name, or an object of the class."""
    return where if isinstance(where, str) else type(where).__name__


class InvalidArgumentError(ValueError):
    """An argument has a value that is out of range or of the wrong kind.

    Attributes:
        field: Name of the argument.
        value: What was passed.
        where: The class that rejects it.
    """

    def __init__(self, field: str, rule: str, value: object, where: object, action: str) -> None:
        self.field, self.value, self.where = field, value, owner_name(where)
        super().__init__(must_be(field, rule, value, self.where, action))
        self._arguments = field, rule, value, self.where, action

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the constructor's arguments, so that the error can be sent to other processes."""
        return type(self), self._arguments


class MissingMetricError(RuntimeError):
    """A metric that a callback needs now has not been logged.

    Attributes:
        field: The argument that names the metric.
        metric: The name that was looked for.
        available: The names that have been logged so far, sorted.
        where: The class that looked for it.
    """

    def __init__(self, field: str, metric: str, available: Iterable[str], where: object) -> None:
        self.field, self.metric, self.where = field, metric, owner_name(where)
        self.available = tuple(sorted(available))
        names = ", ".join(repr(name) for name in self.available) or "none"
        super().__init__(
            f"`{field}` must be the name of a logged metric, but got {metric!r} (str) in {self.where}; metrics logged"
            f" so far: {names}. Log it with `self.log({metric!r}, value)`, or name one of these."
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the constructor's arguments, so that the error can be sent to other processes."""
        return type(self), (self.field, self.metric, self.available, self.where)


def check_number(
    where: object,
    action: str = "Pass such a number.",
    /,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
    is_int: bool = False,
    or_none: bool = False,
    **numbers: Any,
) -> None:
    """Check that numbers are in a range; NaN is in none.

    Args:
        where: The class that takes them.
        action: What the error advises.
        least: The smallest number allowed.
        above: A bound that is itself not allowed.
        most: The largest number allowed.
        below: An upper bound that is itself not allowed.
        is_int: Whether they must be ints; bool is not one.
        or_none: Whether None is allowed.
        **numbers: The values, by field.

    Raises:
        InvalidArgumentError: If one is out of range.
    """
    for field, value in numbers.items():
        if or_none and value is None:
            continue
        is_valid = not is_int or (isinstance(value, int) and not isinstance(value, bool))
        is_valid = is_valid and (least is None or value >= least) and (above is None or value > above)
        if is_valid and (most is None or value <= most) and (below is None or value < below):
            continue
        limits = f"{least} or more" if least is not None else f"more than {above}"
        if most is not None or below is not None:
            limits = f"from {least} to {most if below is None else f'below {below}'}"
        rule = f"{'an int, ' if is_int else ''}{limits}{', or None' if or_none else ''}"
        raise InvalidArgumentError(field, rule, value, where, action)


def check_one_of(
    where: object, options: Sequence[object], action: str = "Pass one of these.", /, **values: object
) -> None:
    """Check that values are among some options.

    Args:
        where: The class that takes them.
        options: What is allowed.
        action: What the error advises.
        **values: The values, by field.

    Raises:
        InvalidArgumentError: If one is none of the options.
    """
    for field, value in values.items():
        if value not in options:
            *others, last = map(repr, options)
            raise InvalidArgumentError(field, f"{', '.join(others)} or {last}", value, where, action)


def check_not_both(where: object, /, **two: object) -> None:
    """Check that at most one of two arguments, given by field, is not None.

    Raises:
        InvalidArgumentError: If neither is None; it names the second.
    """
    (first, one), (second, other) = two.items()
    if one is not None and other is not None:
        raise InvalidArgumentError(second, f"None when `{first}` is given", other, where, "Pass one of them.")


def check_file_name(where: object, filename: object) -> None:
    """Check that a file's name is not empty and has no folder in it.

    Args:
        where: The class that checks it, for the error.
        filename: The name.

    Raises:
        InvalidArgumentError: If it is not so.
    """
    if not isinstance(filename, str) or not filename or os.path.basename(filename) != filename:
        rule, action = "a file name without a folder", "Pass the folder as `dirpath`."
        raise InvalidArgumentError("filename", rule, filename, where, action)


def check_local(field: str, path: str, where: object) -> None:
    """Check that a folder is on this machine.

    Args:
        field: Name of the argument.
        path: The folder.
        where: The class that takes it.

    Raises:
        InvalidArgumentError: If it is a URL.
    """
    if is_url(path):
        action = "Pass a local folder, and copy the files there afterwards."
        raise InvalidArgumentError(field, "a local folder", path, where, action)


def usable_path(field: str, path: str | os.PathLike[str], where: object) -> str:
    """Return the path of a folder or file of this machine, or of a store; that of "file:///folder" is "/folder".

    Args:
        field: Name of the argument, for the error.
        path: The path or URL.
        where: The class that takes it, for the error.

    Raises:
        InvalidArgumentError: If it is a URL where nothing can be written.
        ModuleNotFoundError: If it is a URL, and fsspec is not installed.
        ImportError: If fsspec misses the library for the store.
    """
    try:
        found = local_path(path)
        check_store(field, found, owner_name(where))
    except ValueError as error:
        rule, action = "a local path, or a string with the URL of a store", "Pass one such as 's3://bucket/folder'."
        raise InvalidArgumentError(field, rule, path, where, action) from error
    return found


def check_installed(library: str, extra: str, where: object) -> None:
    """Check that a library is installed, without importing it.

    Args:
        library: Name of its top package.
        extra: Extra of this distribution that installs it.
        where: The class that needs it.

    Raises:
        ModuleNotFoundError: If it is not installed.
    """
    if sys.modules.get(library) is None and find_spec(library) is None:
        message = (
            f"{owner_name(where)} needs `{library}`, which is not installed. Run `pip install {library}`, or install"
        )
        raise ModuleNotFoundError(f"{message} camshaft-callbacks with its extra `{extra}`.", name=library)


def check_keywords(keywords: Iterable[str], taker: Callable[..., Any], taken: Iterable[str], where: object) -> None:
    """Check that a library's function takes the keyword arguments that a constructor passes on to it.

    Args:
        keywords: Names of the keyword arguments.
        taker: The function, or class, that gets them.
        taken: Arguments of it that the constructor passes itself.
        where: The class whose constructor it is.

    Raises:
        TypeError: If one of them is unknown.
    """
    parameters = inspect.signature(taker).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    known = parameters.keys() - set(taken)
    unknown = [name for name in keywords if name not in known]
    if unknown:
        rule = f"further arguments of `{taker.__qualname__}` ({', '.join(sorted(known))})"
        raise TypeError(must_be("kwargs", rule, unknown, owner_name(where), "Leave out what is not."))

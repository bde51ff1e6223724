"""Checks of callbacks' arguments, and of the libraries that some of them need."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from typing import Any

from camshaft.hooks_core.messages import must_be


class InvalidArgumentError(ValueError):
    """A constructor got a value that it cannot work with.

    Attributes:
        field: Name of the argument.
        value: What was passed.
        where: The class that rejects it.
    """

    def __init__(self, field: str, rule: str, value: object, where: str, action: str) -> None:
        super().__init__(must_be(field, rule, value, where, action))
        self.field = field
        self.value = value
        self.where = where
        self._arguments = field, rule, value, where, action

    def __reduce__(self) -> tuple[Any, ...]:
        """As it was made, so that it can be sent to other processes."""
        return type(self), self._arguments


def check_local(field: str, path: str, where: str) -> None:
    """Check that a folder can be on this machine.

    Args:
        field: Name of the argument.
        path: The folder.
        where: The class that takes it.

    Raises:
        InvalidArgumentError: If it is the address of something that is not mounted here.
    """
    if "://" in path:
        action = "Mount it, or copy the files there afterwards."
        raise InvalidArgumentError(field, "a folder of this machine's file systems", path, where, action)


class MissingMetricError(RuntimeError):
    """A metric is due and nobody has logged it.

    Attributes:
        field: The argument that names the metric.
        metric: The name that was looked for.
        available: The names that have been logged so far, sorted.
        where: The class that looked for it.
    """

    def __init__(self, field: str, metric: str, available: Iterable[str], where: str) -> None:
        self.field = field
        self.metric = metric
        self.available = tuple(sorted(available))
        self.where = where
        names = ", ".join(repr(name) for name in self.available) or "none"
        super().__init__(
            f"`{field}` must be the name of a logged metric, but got {metric!r} (str) in {where}; metrics logged"
            f" so far: {names}. Log it with `self.log({metric!r}, value)`, or name one of these."
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """As it was made, so that it can be sent to other processes."""
        return type(self), (self.field, self.metric, self.available, self.where)


def check_installed(library: str, extra: str, where: str) -> None:
    """Look whether a library can be imported, without importing it.

    Args:
        library: Name of its top package.
        extra: Extra of this distribution that brings it.
        where: The class that needs it.

    Raises:
        ModuleNotFoundError: If it is not installed.
    """
    if find_spec(library) is None:
        action = f"Install it: `pip install 'camshaft-callbacks[{extra}]'`."
        raise ModuleNotFoundError(f"{where} needs `{library}`, which is not installed. {action}", name=library)


def check_keywords(keywords: Iterable[str], taker: Callable[..., Any], taken: Iterable[str], where: str) -> None:
    """Look whether further keyword arguments of a constructor are ones that a library's function takes.

    Args:
        keywords: Their names.
        taker: The function, or class.
        taken: Arguments of it that the constructor passes itself.
        where: The class whose constructor it is.

    Raises:
        TypeError: If it does not.
    """
    known = inspect.signature(taker).parameters.keys() - set(taken)
    unknown = [name for name in keywords if name not in known]
    if unknown:
        rule = f"further arguments of `{taker.__qualname__}` ({', '.join(sorted(known))})"
        raise TypeError(must_be("kwargs", rule, unknown, where, "Leave out what is none."))

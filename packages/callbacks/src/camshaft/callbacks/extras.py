"""Libraries that are installed as extras: said to be missing, and asked for their arguments, before they are needed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from typing import Any

from camshaft.hooks_core.messages import must_be


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

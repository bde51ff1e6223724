"""Metrics and hyperparameters as the plain values that files and tracking libraries take."""

from __future__ import annotations

import dataclasses
from argparse import Namespace
from collections.abc import Mapping
from types import BuiltinFunctionType, FunctionType
from typing import Any

from camshaft.callbacks.arguments import InvalidArgumentError

Hyperparameters = Mapping[str, Any] | Namespace
"""Hyperparameters by name, as loggers take them."""


def numbers_by_name(metrics: Mapping[str, Any], start: str, where: object) -> dict[str, float | int]:
    """Return metrics as numbers. Waits for the device of tensors.

    Args:
        metrics: Numbers, or objects whose `item()` returns one, by name.
        start: What the names are to begin with; "" adds nothing.
        where: The logger.

    Raises:
        InvalidArgumentError: If a value is not a number.
    """
    numbers: dict[str, float | int] = {}
    for name, value in metrics.items():
        number = value.item() if hasattr(value, "item") else value
        if not isinstance(number, int | float):
            raise InvalidArgumentError(f"metrics[{name!r}]", "a number", value, where, "Log scalars.")
        numbers[start + name] = number
    return numbers


def named(params: Hyperparameters) -> dict[str, Any]:
    """Return hyperparameters by name, from a mapping, a namespace or a dataclass.

    Raises:
        InvalidArgumentError: If it is none of these.
    """
    fields = _fields_of(params)
    if fields is None:
        action = "Pass a dictionary."
        raise InvalidArgumentError("params", "hyperparameters by name", params, "log_hyperparams", action)
    return {str(name): value for name, value in fields.items()}


def flat(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the leaves of nested hyperparameters by path: of `{"net": {"depth": 2}}`, `{"net/depth": 2}`.

    Mappings, namespaces and dataclasses are nested, and so are lists of these, by index; other lists and empty
    collections are leaves.

    Returns:
        None, booleans, numbers and strings by path; other values as their `str`.
    """
    leaves: dict[str, Any] = {}
    for name, value in params.items():
        parts = _fields_of(value)
        if parts is None and isinstance(value, list | tuple) and all(_fields_of(part) is not None for part in value):
            parts = dict(enumerate(value))
        if parts:
            leaves |= {f"{name}/{path}": leaf for path, leaf in flat(parts).items()}
        else:
            leaf = jsonable(value)
            leaves[str(name)] = str(leaf) if isinstance(leaf, list | dict) else leaf
    return leaves


def jsonable(value: Any) -> Any:
    """Return a value that JSON can hold: functions and classes by their names, other unknown objects as their `str`."""
    fields = _fields_of(value)
    if fields is not None:
        return {str(name): jsonable(item) for name, item in fields.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, type | FunctionType | BuiltinFunctionType):
        return f"{value.__module__}.{value.__qualname__}"  # `str` of a function would contain its address
    if getattr(value, "ndim", None) == 0:  # a number of torch or numpy
        return jsonable(value.item())
    if isinstance(value, bool | int | float | str):
        return value
    return str(value)


def _fields_of(value: Any) -> Mapping[Any, Any] | None:
    if isinstance(value, Mapping):
        return value
    if isinstance(value, Namespace):
        return vars(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return None

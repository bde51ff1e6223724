"""Reading texts and values, as functions of earlier releases."""

from __future__ import annotations

import pickle

from camshaft.hooks_core.messages import must_be

_TRUE = ("y", "yes", "t", "true", "on", "1")
_FALSE = ("n", "no", "f", "false", "off", "0")


def str_to_bool(val: str) -> bool:
    """A text such as "yes" or "off" as a bool.

    Raises:
        ValueError: If it is none of these.
    """
    value = str_to_bool_or_str(val)
    if isinstance(value, str):
        raise ValueError(must_be("val", "such as 'yes' or 'off'", val, "str_to_bool", "Pass one of these."))
    return value


def str_to_bool_or_str(val: str) -> bool | str:
    """A text such as "yes" or "off" as a bool, any other as it is."""
    lower = val.lower()
    return True if lower in _TRUE else False if lower in _FALSE else val


def is_picklable(obj: object) -> bool:
    """Whether an object can be pickled."""
    try:
        pickle.dumps(obj)
    except (pickle.PicklingError, AttributeError, RuntimeError, TypeError):
        return False
    return True

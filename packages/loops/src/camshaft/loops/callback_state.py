"""The names under which checkpoints keep what callbacks remember."""

from __future__ import annotations

from collections.abc import Sequence

from camshaft.hooks_core.implementation import implementation
from camshaft.hooks_core.messages import must_be


def state_key(callback: object) -> str:
    """The name under which a checkpoint keeps a callback's memory: its `state_key`, else its class's name."""
    return str(getattr(callback, "state_key", type(callback).__qualname__))


def check_state_keys(callbacks: Sequence[object], where: str) -> None:
    """Raise `ValueError` if two callbacks that have a memory would keep it under one name.

    Args:
        callbacks: The callbacks of a run.
        where: Who checks, for the message.
    """
    keys: set[str] = set()
    for callback in callbacks:
        if implementation(callback, "state_dict") is None:
            continue
        key = state_key(callback)
        if key in keys:
            rule = f"different for each callback that has a state, as a {type(callback).__qualname__} has"
            action = "Tell them apart by their arguments, or give the class a `state_key` of its own."
            raise ValueError(must_be("state_key", rule, key, where, action))
        keys.add(key)

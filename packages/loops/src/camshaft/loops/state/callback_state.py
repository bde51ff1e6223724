"""State keys of callbacks in checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from camshaft.hooks_core.dispatch.implementation import implementation
from camshaft.hooks_core.support.messages import must_be, warn_user


def state_key(callback: object) -> str:
    """Return the key of a callback's state in a checkpoint: its `state_key`, else its class's name.

    What a property `state_key` raises is raised, an `AttributeError` too: the class's name would be another key.
    """
    has_none = not hasattr(type(callback), "state_key") and "state_key" not in getattr(callback, "__dict__", {})
    return type(callback).__qualname__ if has_none else str(callback.state_key)  # type: ignore[attr-defined]


def warn_of_absent(states: Mapping[str, Any], callbacks: Sequence[object]) -> None:
    """Warn if a checkpoint holds states of callbacks that are absent, and name them.

    Args:
        states: The states of callbacks by their keys, as in a checkpoint.
        callbacks: The callbacks of the run that goes on.
    """
    present = {state_key(callback) for callback in callbacks}
    absent = [key for key, state in states.items() if state and key not in present]
    if absent:
        warn_user(
            f"The checkpoint holds the state of callbacks that this run does not have: {', '.join(absent)}. Their "
            "state is left out. Pass them, with the same arguments, to go on as they would have."
        )


def has_state_dict(callback: object) -> bool:
    """Return whether a callback has a state, by its `state_dict`."""
    return implementation(callback, "state_dict") is not None


def check_state_keys(
    callbacks: Sequence[object], where: str, has_state: Callable[[object], bool] = has_state_dict
) -> None:
    """Raise `ValueError` if two callbacks that have a state would keep it under one key.

    Args:
        callbacks: The callbacks of a run.
        where: Name of the caller, for the message.
        has_state: Tells which callbacks have a state.
    """
    keys: set[str] = set()
    for callback in filter(has_state, callbacks):
        key = state_key(callback)
        if key in keys:
            rule = f"different for each callback that has a state, as a {type(callback).__qualname__} has"
            action = "Tell them apart by their arguments, or give the class a `state_key` of its own."
            raise ValueError(must_be("state_key", rule, key, where, action))
        keys.add(key)

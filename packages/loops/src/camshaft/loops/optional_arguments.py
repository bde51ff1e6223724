"""Arguments that a hook passes on only where a receiver's signature names them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from camshaft.hooks_core import Hooks
from camshaft.hooks_core.protocols import Strategy


def with_arguments(hooks: Hooks, name: str, **values: Any) -> Callable[..., Any] | None:
    """Return a hook that passes on further arguments, where it has receivers whose signatures name them.

    Args:
        hooks: The hooks of the run.
        name: The hook's name.
        values: What is known, by the arguments' names.

    Returns:
        The hook with those of the values that its receivers take; the very hook of the run where they take none.
    """
    hook: Callable[..., Any] | None = getattr(hooks, name)
    taken = {argument: value for argument, value in values.items() if hooks.takes(name, argument)}
    return partial(hook, **taken) if hook is not None and taken else hook


def is_under_autocast(strategy: Strategy) -> bool:
    """Return whether a strategy tells that its steps run under autocast; the protocol does not ask it to."""
    return getattr(getattr(strategy, "precision", None), "autocast_dtype", None) is not None

"""`Callback` with defaults for the hooks of every release, whose overrides call them by `super()`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import update_wrapper
from typing import Any

from camshaft.hooks_core import CATALOGUE, Receiver
from camshaft.hooks_core import Callback as Callback


def _with_any_arguments(today: Callable[..., Any] | None) -> Callable[..., Any]:
    """Return an event's default, which does nothing whatever it is given."""

    def nothing(self: Any, *args: Any, **kwargs: Any) -> None:
        """Do nothing, with any arguments."""

    if today is not None:
        update_wrapper(nothing, today)
        shown = inspect.signature(today)
        named = [one.replace(name="pl_module") if one.name == "module" else one for one in shown.parameters.values()]
        nothing.__signature__ = shown.replace(parameters=named)  # type: ignore[attr-defined]
    return nothing


# Put into the class itself, since stock callbacks are subclasses of it, and an override of a subclass of one of these
# calls `super()`, too. None of them counts as an override.
for _spec in CATALOGUE.received_by(Receiver.CALLBACK):
    if _spec.kind == "event":
        setattr(Callback, _spec.name, _with_any_arguments(getattr(Callback, _spec.name, None)))

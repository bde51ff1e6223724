"""The arguments that a trainer is made with, from those that it was called with."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from camshaft.hooks_core import Callback, is_overridden
from camshaft.hooks_core.messages import must_be
from camshaft.trainer.defaults import check_barebones, listed
from camshaft.trainer.earlier.argument_translation import EarlierSettings, translate_arguments
from camshaft.trainer.earlier.arguments import EARLIER_ARGUMENTS
from camshaft.trainer.module_settings import ModuleSettings
from camshaft.trainer.torch_switches import TorchSwitches

_Owner = TypeVar("_Owner")
_Arguments = ParamSpec("_Arguments")

_BARE: dict[str, Any] = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
    "log_every_n_steps": 0,
}


def takes_earlier_arguments(
    construct: Callable[Concatenate[_Owner, _Arguments], None],
) -> Callable[Concatenate[_Owner, _Arguments], None]:
    """Let a trainer's constructor take the arguments of earlier releases, too.

    It is called with today's alone. The trainer keeps what else it was asked for as `_earlier`. Callbacks that have
    them are told before it is made and after: `on_init_start` and `on_init_end`.
    """
    parameters = list(inspect.signature(construct).parameters.values())[1:]
    defaults = {parameter.name: parameter.default for parameter in parameters}

    @wraps(construct)
    def takes_both(self: Any, *positional: Any, **given: Any) -> None:
        if positional:
            rule, action = "passed by keyword", "Write `logger=...`, or the name of what it is."
            raise TypeError(must_be("the first argument", rule, positional[0], "Trainer", action))
        arguments, self._earlier = translate_arguments(given, defaults, EARLIER_ARGUMENTS)
        further = _further_callbacks(self._earlier)
        if further:
            arguments["callbacks"] = [*listed(arguments.get("callbacks")), *further]
        if arguments.get("barebones"):
            check_barebones(arguments)
            arguments |= _BARE
        callbacks = listed(arguments.get("callbacks"))
        _tell(callbacks, "on_init_start", self)
        construct(self, **arguments)  # type: ignore[call-arg]
        _tell(callbacks, "on_init_end", self)

    return cast("Callable[Concatenate[_Owner, _Arguments], None]", takes_both)


def _further_callbacks(settings: EarlierSettings) -> list[Callback]:
    """Callbacks that do what several arguments asked for."""
    callbacks: list[Callback] = []
    if settings.switches:
        callbacks.append(TorchSwitches(**settings.switches))
    if settings.of_module:
        callbacks.append(ModuleSettings(**settings.of_module))
    return callbacks


def _tell(callbacks: list[Any], hook: str, trainer: Any) -> None:
    for callback in callbacks:
        if not isinstance(callback, type) and is_overridden(callback, hook):
            getattr(callback, hook)(trainer)

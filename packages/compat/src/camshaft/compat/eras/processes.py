"""Overrides of modules of earlier eras that initialise the process group or make the DistributedDataParallel."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Any

from camshaft.compat.eras.reading import read_receivers
from camshaft.hooks_core import Hooks, is_overridden, resolve
from camshaft.hooks_core.protocols import Strategy
from camshaft.hooks_core.support.messages import must_be

_running: ContextVar[tuple[str, Callable[..., Any]] | None] = ContextVar("_running", default=None)
"""The name of the override that runs, and the strategy's own function."""


class _Override:
    """An override of the module, as the value of a strategy's attribute; `own` is the value that it had before.

    It gets the strategy's own function, which it may call while it runs, and what the override itself gets.
    """

    def __init__(self, name: str, call: Callable[..., Any], own: Callable[..., Any] | None) -> None:
        self.__qualname__, self._call, self.own = name, call, own  # as errors about it call it

    def __call__(self, default: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Any:
        token = _running.set((self.__qualname__, default))
        try:
            return self._call(*arguments, **keywords)
        finally:
            _running.reset(token)


def _join(hooks: Hooks, strategy: Strategy, *, is_started_by_slurm: bool) -> None:
    """Call `init_ddp_connection`; see `ParallelStrategy.join_processes`."""
    assert hooks.init_ddp_connection is not None
    takes = hooks.takes("init_ddp_connection", "is_slurm_managing_tasks")
    further = {"is_slurm_managing_tasks": is_started_by_slurm} if takes else {}
    hooks.init_ddp_connection(strategy.global_rank, strategy.world_size, **further)


_PLACES = (
    ("init_ddp_connection", "join_processes", "the processes are joined", "`backend` or `timeout`"),
    ("configure_ddp", "wrap_module", "the model is distributed", "`find_unused_parameters=True`"),
)
"""Overrides, the attribute of the strategy for each, and words of the error where it has none."""


def delegate(hooks: Hooks, strategy: Strategy) -> None:
    """Set a module's `init_ddp_connection` and `configure_ddp` on its strategy, if there are several processes.

    The strategy gets the overrides as its attributes `join_processes` and `wrap_module`; those of a run before are
    removed, and values that the strategy's owner has set are kept where the module overrides nothing.

    Hooks: init_ddp_connection, configure_ddp, when the strategy comes to them.

    Args:
        hooks: Those of the run that begins.
        strategy: Where it computes; it has not connected yet, unless there was a run before.

    Raises:
        NotImplementedError: If several processes run and the strategy has no place for what is overridden.
    """
    if strategy.world_size == 1:
        return
    for name, attribute, does, example in _PLACES:
        override = getattr(hooks, name)
        if hasattr(strategy, attribute):
            own = getattr(strategy, attribute)
            own = own.own if isinstance(own, _Override) else own
            call = override if name == "configure_ddp" else partial(_join, hooks, strategy)
            setattr(strategy, attribute, own if override is None else _Override(name, call, own))
        elif override is not None:
            rule = f"left out with {type(strategy).__qualname__}, where {does} in another way"
            action = (
                'Pass Trainer(strategy="ddp"), which calls it; or remove the method, and pass the strategy what it '
                f"sets, such as {example}."
            )
            raise NotImplementedError(must_be(name, rule, "an override", "the module", action))


def delegate_early(module: object, strategy: Strategy, trainer: object) -> None:
    """Do the same as `delegate` for a strategy that connects before the hooks of its run can be resolved.

    What is faulty in the module is left out; resolving the run's hooks tells of it.

    Args:
        module: The module that is to run.
        strategy: Where it computes.
        trainer: Who runs it.

    Raises:
        NotImplementedError: As `delegate` raises it.
    """
    hooks = Hooks()
    hooks.init_ddp_connection = hooks.configure_ddp = None
    if strategy.world_size > 1 and any(is_overridden(module, name) for name, *_ in _PLACES):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            hooks = resolve(module=module, trainer=trainer, strict=False, read=read_receivers)
    delegate(hooks, strategy)


def default_of(name: str) -> Callable[..., Any] | None:
    """Return the strategy's own function for an override while it runs; None at other times.

    Args:
        name: The override: "init_ddp_connection" or "configure_ddp".
    """
    running = _running.get()
    return running[1] if running is not None and running[0] == name else None

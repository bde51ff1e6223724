"""Overrides of modules of earlier eras that initialise the process group or make the DistributedDataParallel."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any

from camshaft.compat.eras.reading import read_receivers
from camshaft.hooks_core import Hooks, is_overridden, resolve
from camshaft.hooks_core.support.messages import must_be

if TYPE_CHECKING:
    from torch import nn

    from camshaft.hooks_core.protocols import Strategy

_running: ContextVar[tuple[str, Callable[..., Any]] | None] = ContextVar("_running", default=None)
"""The name of the override that runs, and the strategy's own function."""


class _Override(partial[Any]):
    """An override of the module, as the value of a strategy's attribute; `own` is the value that it had before."""

    own: Callable[..., Any] | None
    __qualname__: str


def _join(hooks: Hooks, strategy: Strategy, join: Callable[[], None], /, *, is_started_by_slurm: bool) -> None:
    """Call `init_ddp_connection`; see `ParallelStrategy.join_processes`."""
    assert hooks.init_ddp_connection is not None
    takes = hooks.takes("init_ddp_connection", "is_slurm_managing_tasks")
    further = {"is_slurm_managing_tasks": is_started_by_slurm} if takes else {}
    with _in_place_of("init_ddp_connection", join):
        hooks.init_ddp_connection(strategy.global_rank, strategy.world_size, **further)


def _wrap(hooks: Hooks, _: Strategy, wrap: Callable[[nn.Module], nn.Module], /, *arguments: Any) -> Any:
    """Call `configure_ddp` with the module and the indexes of its devices; see `DDPStrategy.wrap_module`."""
    assert hooks.configure_ddp is not None
    with _in_place_of("configure_ddp", wrap):
        return hooks.configure_ddp(*arguments)


_PLACES: tuple[tuple[str, str, Callable[..., Any], str, str], ...] = (
    ("init_ddp_connection", "join_processes", _join, "the processes are joined", "`backend` or `timeout`"),
    ("configure_ddp", "wrap_module", _wrap, "the model is distributed", "`find_unused_parameters=True`"),
)
"""Overrides, the attribute of the strategy for each with what it gets, and words of the error where it has none."""


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
    for name, attribute, call, does, example in _PLACES:
        override = getattr(hooks, name)
        if not hasattr(strategy, attribute):
            if override is None:
                continue
            rule = f"left out with {type(strategy).__qualname__}, where {does} in another way"
            action = (
                'Pass Trainer(strategy="ddp"), which calls it; or remove the method, and pass the strategy what it '
                f"sets, such as {example}."
            )
            raise NotImplementedError(must_be(name, rule, "an override", "the module", action))
        own = getattr(strategy, attribute)
        own = own.own if isinstance(own, _Override) else own
        if override is not None:
            overriding = _Override(call, hooks, strategy)
            overriding.__qualname__ = name  # as errors about it call it
            overriding.own, own = own, overriding
        setattr(strategy, attribute, own)


def delegate_early(module: nn.Module, strategy: Strategy, trainer: object) -> None:
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


@contextmanager
def _in_place_of(name: str, default: Callable[..., Any]) -> Iterator[None]:
    token = _running.set((name, default))
    try:
        yield
    finally:
        _running.reset(token)

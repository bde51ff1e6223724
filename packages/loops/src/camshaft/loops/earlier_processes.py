"""How modules of earlier eras join several processes, and wrap themselves for them, in place of the strategy."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from camshaft.hooks_core import Hooks, is_overridden, resolve

if TYPE_CHECKING:
    from torch import nn

    from camshaft.hooks_core.protocols import Strategy

_NAMES = ("init_ddp_connection", "configure_ddp")

_running: ContextVar[tuple[str, Callable[..., Any]] | None] = ContextVar("_running", default=None)
"""Which override runs, and what it is in place of."""


def delegate(hooks: Hooks, strategy: Strategy) -> None:
    """Let the module do what it overrides of `init_ddp_connection` and `configure_ddp`; with one process, neither.

    Hooks: init_ddp_connection, configure_ddp, when the strategy comes to them.

    Args:
        hooks: Those of the run that begins.
        strategy: Where it computes; it has not connected yet, unless there was a run before.

    Raises:
        NotImplementedError: If several processes run and the strategy has no place for what is overridden.
    """
    if strategy.world_size == 1:
        return
    init_ddp_connection, configure_ddp = hooks.init_ddp_connection, hooks.configure_ddp

    def join(default: Callable[[], None], *, is_started_by_slurm: bool) -> None:
        assert init_ddp_connection is not None
        takes = hooks.takes("init_ddp_connection", "is_slurm_managing_tasks")
        further = {"is_slurm_managing_tasks": is_started_by_slurm} if takes else {}
        with _in_place_of("init_ddp_connection", default):
            init_ddp_connection(strategy.global_rank, strategy.world_size, **further)

    def wrap(default: Callable[[nn.Module], nn.Module], module: nn.Module, device_ids: list[int] | None) -> Any:
        assert configure_ddp is not None
        with _in_place_of("configure_ddp", default):
            return configure_ddp(module, device_ids)

    strategy.delegate(None if init_ddp_connection is None else join, None if configure_ddp is None else wrap)


def delegate_early(module: nn.Module, strategy: Strategy, trainer: object) -> None:
    """As `delegate`, for a trainer whose strategy connects before the hooks of its run can be resolved.

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
    if strategy.world_size > 1 and any(is_overridden(module, name) for name in _NAMES):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            hooks = resolve(module=module, trainer=trainer, strict=False, runs_eras=True)
    delegate(hooks, strategy)


def default_of(name: str) -> Callable[..., Any] | None:
    """What the strategy would do in place of an override, while that runs; None at other times.

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

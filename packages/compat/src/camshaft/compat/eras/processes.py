"""How modules of earlier eras join several processes, and wrap themselves for them, in place of the strategy."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from camshaft.compat.eras.reading import read_receivers
from camshaft.hooks_core import Hooks, is_overridden, resolve
from camshaft.hooks_core.messages import must_be

if TYPE_CHECKING:
    from torch import nn

    from camshaft.hooks_core.protocols import Strategy

_NAMES = ("init_ddp_connection", "configure_ddp")

_running: ContextVar[tuple[str, Callable[..., Any]] | None] = ContextVar("_running", default=None)
"""Which override runs, and what it is in place of."""


class _Override:
    """An override of the module that stands in an attribute of a strategy.

    Args:
        name: Its name.
        own: What the attribute held before, which whoever made the strategy has set.
    """

    def __init__(self, name: str, own: Callable[..., Any] | None) -> None:
        self.__name__ = self.__qualname__ = name
        self.own = own


class _Join(_Override):
    """Joins the processes by `init_ddp_connection`; see `ParallelStrategy.join_processes`."""

    def __init__(self, hooks: Hooks, strategy: Strategy, own: Callable[..., Any] | None) -> None:
        super().__init__("init_ddp_connection", own)
        self._hooks, self._strategy = hooks, strategy

    def __call__(self, join: Callable[[], None], /, *, is_started_by_slurm: bool) -> None:
        override = self._hooks.init_ddp_connection
        assert override is not None
        takes = self._hooks.takes("init_ddp_connection", "is_slurm_managing_tasks")
        further = {"is_slurm_managing_tasks": is_started_by_slurm} if takes else {}
        with _in_place_of("init_ddp_connection", join):
            override(self._strategy.global_rank, self._strategy.world_size, **further)


class _Wrap(_Override):
    """Wraps the module by `configure_ddp`; see `DDPStrategy.wrap_module`."""

    def __init__(self, hooks: Hooks, strategy: Strategy, own: Callable[..., Any] | None) -> None:
        super().__init__("configure_ddp", own)
        self._hooks = hooks

    def __call__(
        self, wrap: Callable[[nn.Module], nn.Module], module: nn.Module, device_ids: list[int] | None, /
    ) -> Any:
        override = self._hooks.configure_ddp
        assert override is not None
        with _in_place_of("configure_ddp", wrap):
            return override(module, device_ids)


_PLACES: tuple[tuple[str, str, type[_Join] | type[_Wrap], str, str], ...] = (
    ("init_ddp_connection", "join_processes", _Join, "the processes are joined", "`backend` or `timeout`"),
    ("configure_ddp", "wrap_module", _Wrap, "the model is distributed", "`find_unused_parameters=True`"),
)
"""Overrides, the attribute of a strategy that takes each, and what is said where a strategy has none."""


def delegate(hooks: Hooks, strategy: Strategy) -> None:
    """Let the module do what it overrides of `init_ddp_connection` and `configure_ddp`; with one process, neither.

    The strategy gets the overrides as its attributes `join_processes` and `wrap_module`; those of a run before are
    taken back, and what somebody else has set there counts where the module overrides nothing.

    Hooks: init_ddp_connection, configure_ddp, when the strategy comes to them.

    Args:
        hooks: Those of the run that begins.
        strategy: Where it computes; it has not connected yet, unless there was a run before.

    Raises:
        NotImplementedError: If several processes run and the strategy has no place for what is overridden.
    """
    if strategy.world_size == 1:
        return
    for name, attribute, kind, does, example in _PLACES:
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
        setattr(strategy, attribute, own if override is None else kind(hooks, strategy, own))


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
            hooks = resolve(module=module, trainer=trainer, strict=False, read=read_receivers)
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

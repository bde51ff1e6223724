"""What the first process alone does, and what it says, as functions of earlier releases."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch

from camshaft.hooks_core.user_warnings import warn_user
from camshaft.strategies.processes.process_environment import find_process_environment
from camshaft.strategies.processes.rank_zero import is_rank_zero
from camshaft.strategies.processes.rank_zero import rank_zero_only as _rank_zero_only

P = ParamSpec("P")
R = TypeVar("R")

logger = logging.getLogger("pytorch_lightning")
"""What earlier code logs to, and what it sets the level of."""


class PossibleUserWarning(UserWarning):
    """A warning about what may be a mistake; ours are plain `UserWarning`s."""


class LightningDeprecationWarning(DeprecationWarning):
    """A warning about what will go."""


class _RankZeroOnly:
    """`rank_zero_only`, which earlier code also asks for the process's rank."""

    @property
    def rank(self) -> int:
        """Index of this process among all."""
        return get_rank()

    def __call__(self, function: Callable[P, R]) -> Callable[P, R | None]:
        """Decorate a function that runs on the first process only; see `camshaft.strategies.rank_zero_only`."""
        return _rank_zero_only(function)


rank_zero_only = _RankZeroOnly()
"""Decorates a function that runs on the first process only; its `rank` is that of this process."""


def get_rank() -> int:
    """Index of this process among all."""
    return find_process_environment().global_rank


def distributed_available() -> bool:
    """Whether a process group has been joined."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def rank_zero_warn(
    message: Any, category: type[Warning] = UserWarning, stacklevel: int = 5, *args: Any, **kwargs: Any
) -> None:
    """Warn on the first process, at the line that called into camshaft."""
    if is_rank_zero():
        warn_user(str(message), category)


def rank_zero_deprecation(message: Any, *args: Any, **kwargs: Any) -> None:
    """Warn on the first process that something will go."""
    rank_zero_warn(message, LightningDeprecationWarning)


def rank_zero_info(*args: Any, **kwargs: Any) -> None:
    """Log on the first process; arguments are those of `logging.Logger.info`."""
    if is_rank_zero():
        logger.info(*args, **kwargs)


def rank_zero_debug(*args: Any, **kwargs: Any) -> None:
    """Log details on the first process; arguments are those of `logging.Logger.debug`."""
    if is_rank_zero():
        logger.debug(*args, **kwargs)


class WarningCache(set[str]):
    """Says each thing once."""

    def warn(self, message: str, *args: Any, **kwargs: Any) -> None:
        """Warn on the first process, unless this has been said."""
        if message not in self:
            self.add(message)
            rank_zero_warn(message)

    def deprecation(self, message: str, *args: Any, **kwargs: Any) -> None:
        """Warn on the first process that something will go, unless this has been said."""
        if message not in self:
            self.add(message)
            rank_zero_deprecation(message)

    def info(self, message: str, *args: Any, **kwargs: Any) -> None:
        """Log on the first process, unless this has been said."""
        if message not in self:
            self.add(message)
            rank_zero_info(message)

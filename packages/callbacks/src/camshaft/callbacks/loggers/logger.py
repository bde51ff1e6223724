"""Base class of loggers, and the decorator for what only the first process has."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from camshaft.callbacks.loggers.logged_values import Hyperparameters
from camshaft.hooks_core.support.messages import process_rank

if TYPE_CHECKING:
    from camshaft.callbacks.checkpoints.model_checkpoint import ModelCheckpoint


class Logger(ABC):
    """Base class for loggers of one's own: define `name`, `version`, `log_metrics` and `log_hyperparams`.

    The trainer takes any object with the methods of `camshaft.hooks_core.protocols.Logger`; this class has what those
    need not define. The trainer calls loggers on rank 0 alone; other ranks have ones that take every call.

    Attributes:
        prefix: What the stock loggers begin names of metrics with, followed by `LOGGER_JOIN_CHAR`; "" and None add
            nothing.
    """

    LOGGER_JOIN_CHAR: ClassVar[str] = "-"
    prefix: str | None = ""

    @property
    def _names_start(self) -> str:
        """Prefix of the names of metrics."""
        return f"{self.prefix}{self.LOGGER_JOIN_CHAR}" if self.prefix else ""

    @property
    @abstractmethod
    def name(self) -> str | None:
        """Name of the experiment."""

    @property
    @abstractmethod
    def version(self) -> int | str | None:
        """Number or name of the run."""

    @property
    def save_dir(self) -> str | None:
        """Folder of all experiments; None if nothing is written to disk."""
        return None

    @property
    def root_dir(self) -> str | None:
        """Folder of all versions of the experiment, or None."""
        return None

    @property
    def log_dir(self) -> str | None:
        """Folder of the run, or None. The trainer writes other files of the run there."""
        return None

    @property
    def group_separator(self) -> str:
        """Separator of groups in names of metrics."""
        return "/"

    @abstractmethod
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log metrics.

        Args:
            metrics: Numbers by name.
            step: Number of optimizer updates.
        """

    @abstractmethod
    def log_hyperparams(self, params: Hyperparameters, *args: Any, **kwargs: Any) -> None:
        """Log hyperparameters.

        Args:
            params: Values by name.
            *args: Further arguments, if the logger has any.
            **kwargs: Likewise.
        """

    def log_graph(self, model: torch.nn.Module, input_array: Any = None) -> None:  # noqa: B027
        """Log the graph of a model, which the trainer passes when fit begins. Does nothing by default.

        Args:
            input_array: An example input; None takes the model's own.
        """

    def save(self) -> None:  # noqa: B027
        """Write what is held back. Does nothing by default."""

    def finalize(self, status: str) -> None:
        """End a verb of the trainer. Calls `save` by default; logging may continue.

        Args:
            status: "success" or "failed".
        """
        self.save()

    def after_save_checkpoint(self, checkpoint_callback: ModelCheckpoint) -> None:  # noqa: B027
        """Log the checkpoint that a callback has just saved. Does nothing by default."""


def rank_zero_experiment(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Decorate a logger's `experiment`: on rank 0 it is what it is, on others an object that takes every call.

    Returns:
        The decorated function.
    """

    @functools.wraps(function)
    def experiment(self: Any) -> Any:
        return function(self) if is_rank_zero() else SilentExperiment()

    return experiment


class SilentExperiment:
    """Takes every call, and does nothing."""

    def nop(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("__"):  # of Python, as `copy` and `pickle` look for it
            raise AttributeError(name)
        return self.nop

    def __getitem__(self, idx: Any) -> SilentExperiment:
        return self

    def __setitem__(self, idx: Any, value: Any) -> None:
        """Do nothing."""


def is_rank_zero() -> bool:
    """Return whether this is rank 0 of its run, also before the process group exists."""
    return not process_rank()

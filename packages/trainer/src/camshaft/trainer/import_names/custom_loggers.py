"""What loggers of one's own were built on in earlier releases."""

from __future__ import annotations

import functools
from argparse import Namespace
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any, ClassVar

from camshaft.callbacks.loggers.mlflow_logger import MLFlowLogger
from camshaft.callbacks.loggers.run_folder import RunFolderLogger
from camshaft.callbacks.loggers.wandb_logger import WandbLogger
from camshaft.strategies.processes.rank_zero import is_rank_zero
from camshaft.trainer.import_names.nested_collections import flatten_dict
from camshaft.trainer.import_names.stand_ins import StandIn, refuse_overrides

_NOT_CALLED = ("agg_and_log_metrics", "update_agg_funcs")


class LightningLoggerBase(metaclass=StandIn):
    """Base class of loggers of one's own: define `name`, `version`, `log_metrics` and `log_hyperparams`.

    Raises:
        TypeError: If a subclass overrides what is not called.
    """

    __stands_for__: ClassVar[tuple[type, ...]] = (RunFolderLogger, WandbLogger, MLFlowLogger)

    LOGGER_JOIN_CHAR: ClassVar[str] = "-"

    def __init__(self) -> None:
        self.prefix = getattr(self, "prefix", "")

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        refuse_overrides(cls, _NOT_CALLED, "Put it into `log_metrics`, or into a callback.")

    @property
    def name(self) -> str | None:
        """Name of the experiment."""
        return None

    @property
    def version(self) -> int | str | None:
        """Name or number of the run."""
        return None

    @property
    def save_dir(self) -> str | None:
        """Directory of all experiments; None if nothing is written to disk."""
        return None

    @property
    def log_dir(self) -> str | None:
        """Directory of this run, as far as it is known."""
        return None

    @property
    def root_dir(self) -> str | None:
        """Directory of all versions, as far as it is known."""
        return None

    @property
    def experiment(self) -> Any:
        """The underlying library's own object."""
        raise NotImplementedError(f"{type(self).__qualname__} does not define `experiment`.")

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Write values for a step."""
        raise NotImplementedError(f"{type(self).__qualname__} does not define `log_metrics`.")

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Write hyperparameters."""
        raise NotImplementedError(f"{type(self).__qualname__} does not define `log_hyperparams`.")

    def log_graph(self, model: Any, input_array: Any = None) -> None:
        """Write the model's graph; nothing by default."""

    def save(self) -> None:
        """Write what is held back; nothing by default."""

    def finalize(self, status: str) -> None:
        """Close; saves by default."""
        self.save()

    @property
    def rank(self) -> int:
        """0 on the first process, else 1, as loggers of 0.5 and 0.6 ask."""
        return 0 if is_rank_zero() else 1

    @staticmethod
    def _convert_params(params: Mapping[str, Any] | Namespace | None) -> dict[str, Any]:
        return {} if params is None else dict(vars(params) if isinstance(params, Namespace) else params)

    @staticmethod
    def _flatten_dict(params: Any, delimiter: str = "/") -> dict[str, Any]:
        return flatten_dict(LightningLoggerBase._convert_params(params), delimiter)

    @staticmethod
    def _sanitize_params(params: Mapping[str, Any]) -> dict[str, Any]:
        plain = (bool, int, float, str)
        return {name: value if isinstance(value, plain) else str(value) for name, value in params.items()}

    def _add_prefix(self, metrics: Mapping[str, float]) -> dict[str, float]:
        prefix = getattr(self, "_prefix", "") or self.prefix
        return {f"{prefix}{self.LOGGER_JOIN_CHAR}{k}": v for k, v in metrics.items()} if prefix else dict(metrics)


class DummyExperiment:
    """Takes every call and does nothing."""

    def nop(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.nop

    def __getitem__(self, idx: int) -> DummyExperiment:
        return self


class DummyLogger(LightningLoggerBase):
    """Logs nowhere."""

    @property
    def experiment(self) -> DummyExperiment:
        """What takes every call."""
        return DummyExperiment()

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Do nothing."""

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""


def rank_zero_experiment(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a logger's `experiment`: on the first process it is what it is, on others it takes every call."""

    @functools.wraps(function)
    def experiment(self: Any) -> Any:
        found = function(self) if is_rank_zero() else None
        return DummyExperiment() if found is None else found

    return experiment


def merge_dicts(
    dicts: Sequence[Mapping[str, Any]],
    agg_key_funcs: Mapping[str, Callable[[list[Any]], Any]] | None = None,
    default_func: Callable[[list[Any]], Any] | None = None,
) -> dict[str, Any]:
    """One dictionary of several, with a function of the values of each key; by default their mean.

    Args:
        dicts: The dictionaries, nested or not.
        agg_key_funcs: Functions for some keys, nested as the dictionaries are.
        default_func: The function for the others; None is the mean.
    """
    merged: MutableMapping[str, Any] = {}
    for key in dict.fromkeys(key for each in dicts for key in each):
        values = [each[key] for each in dicts if key in each]
        function: Any = (agg_key_funcs or {}).get(key) or default_func
        if isinstance(values[0], Mapping):
            merged[key] = merge_dicts(values, function if isinstance(function, Mapping) else None, default_func)
        else:
            merged[key] = sum(values) / len(values) if function is None else function(values)
    return dict(merged)

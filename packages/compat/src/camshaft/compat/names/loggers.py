"""Loggers with the arguments of earlier releases, and the base class of custom loggers."""

from __future__ import annotations

import functools
import os
from argparse import Namespace
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any, ClassVar

from camshaft.callbacks import CSVLogger as _CSVLogger
from camshaft.callbacks import MLFlowLogger as _MLFlowLogger
from camshaft.callbacks import TensorBoardLogger as _TensorBoardLogger
from camshaft.callbacks import WandbLogger as _WandbLogger
from camshaft.callbacks.loggers.run_folder import RunFolderLogger
from camshaft.compat.names.functions import flatten_dict
from camshaft.compat.names.stand_ins import StandIn, refuse_argument, refuse_overrides
from camshaft.strategies import is_rank_zero

_EXPERIMENT = "lightning_logs"
_AGGREGATION = ("the values of a step are logged once", "Put values together before you log them.")


class TensorBoardLogger(_TensorBoardLogger, metaclass=StandIn):
    """`camshaft.callbacks.TensorBoardLogger` with the arguments of releases 0.6 to 1.9.

    Args:
        save_dir: As today.
        name: As today; the default is that of the earlier releases.
        version: As today.
        log_graph: False.
        default_hp_metric: As today.
        prefix: As today.
        sub_dir: As today.
        agg_key_funcs: None.
        agg_default_func: None.
        kwargs: Arguments of `SummaryWriter`.

    Raises:
        ValueError: If `log_graph` is true, or a function is given.
    """

    __stands_for__: ClassVar[type] = _TensorBoardLogger

    def __init__(
        self,
        save_dir: str | os.PathLike[str],
        name: str | None = _EXPERIMENT,
        version: int | str | None = None,
        log_graph: bool = False,
        default_hp_metric: bool = True,
        prefix: str = "",
        sub_dir: str | os.PathLike[str] | None = None,
        *,
        agg_key_funcs: Any = None,
        agg_default_func: Any = None,
        **kwargs: Any,
    ) -> None:
        where, action = type(self).__name__, "Call `self.logger.log_graph(self, example)` in `on_fit_start`."
        refuse_argument("log_graph", log_graph, where, "the graph is not logged by itself", action, (False,))
        refuse_argument("agg_key_funcs", agg_key_funcs, where, *_AGGREGATION)
        refuse_argument("agg_default_func", agg_default_func, where, *_AGGREGATION)
        super().__init__(
            save_dir, name, version, prefix=prefix, sub_dir=sub_dir, default_hp_metric=default_hp_metric, **kwargs
        )


class CSVLogger(_CSVLogger, metaclass=StandIn):
    """`camshaft.callbacks.CSVLogger`, with the experiment's name of earlier releases by default."""

    __stands_for__: ClassVar[type] = _CSVLogger

    def __init__(
        self, save_dir: str | os.PathLike[str], name: str | None = _EXPERIMENT, *args: Any, **kwargs: Any
    ) -> None:
        super().__init__(save_dir, name or "", *args, **kwargs)


class WandbLogger(_WandbLogger, metaclass=StandIn):
    """`camshaft.callbacks.WandbLogger` with the arguments of releases 0.6 to 1.9, from the third one on by name.

    Args:
        name: As today.
        save_dir: As today; None is the working directory.
        anonymous: Whether a run without an account is allowed.
        project: As today; the default is that of the earlier releases.
        sync_step: None.
        agg_key_funcs: None.
        agg_default_func: None.
        kwargs: Today's arguments, and those of `wandb.init`.

    Raises:
        ValueError: If `sync_step` or a function is given.
    """

    __stands_for__: ClassVar[type] = _WandbLogger

    def __init__(
        self,
        name: str | None = None,
        save_dir: str | os.PathLike[str] | None = None,
        *,
        anonymous: bool | str | None = None,
        project: str | None = None,
        sync_step: bool | None = None,
        agg_key_funcs: Any = None,
        agg_default_func: Any = None,
        **kwargs: Any,
    ) -> None:
        where, why = type(self).__name__, "steps are always the trainer's"
        refuse_argument("sync_step", sync_step, where, why, "Leave it out.")
        refuse_argument("agg_key_funcs", agg_key_funcs, where, *_AGGREGATION)
        refuse_argument("agg_default_func", agg_default_func, where, *_AGGREGATION)
        if anonymous:
            kwargs["anonymous"] = "allow" if anonymous is True else anonymous
        project = project or os.environ.get("WANDB_PROJECT") or _EXPERIMENT
        super().__init__(name, "." if save_dir is None else save_dir, project=project, **kwargs)


class MLFlowLogger(_MLFlowLogger, metaclass=StandIn):
    """`camshaft.callbacks.MLFlowLogger` with the arguments of releases 0.5 to 1.9, from the second one on by name.

    Args:
        experiment_name: As today; the default is that of the earlier releases.
        save_dir: As today; None is the default.
        kwargs: Today's arguments.
    """

    __stands_for__: ClassVar[type] = _MLFlowLogger

    def __init__(
        self, experiment_name: str = _EXPERIMENT, *, save_dir: str | os.PathLike[str] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(experiment_name, save_dir="./mlruns" if save_dir is None else save_dir, **kwargs)


_NOT_CALLED = ("agg_and_log_metrics", "update_agg_funcs")


class LightningLoggerBase(metaclass=StandIn):
    """The base class of custom loggers: define `name`, `version`, `log_metrics` and `log_hyperparams`.

    Raises:
        TypeError: If a subclass overrides what is not called.
    """

    __stands_for__: ClassVar[tuple[type, ...]] = (RunFolderLogger, _WandbLogger, _MLFlowLogger)

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
        """Close the logger; the default saves."""
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
    """An experiment that takes every call and does nothing."""

    def nop(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.nop

    def __getitem__(self, idx: int) -> DummyExperiment:
        return self


class DummyLogger(LightningLoggerBase):
    """A logger that logs nothing."""

    @property
    def experiment(self) -> DummyExperiment:
        """An object that takes every call."""
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
    """Merge dictionaries by a function of the values of each key, the mean by default.

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

"""Loggers with the arguments of earlier releases, and the base class of custom loggers."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Any, ClassVar

from torch import Tensor

from camshaft.callbacks import CSVLogger as _CSVLogger
from camshaft.callbacks import Logger as _Logger
from camshaft.callbacks import MLFlowLogger as _MLFlowLogger
from camshaft.callbacks import TensorBoardLogger as _TensorBoardLogger
from camshaft.callbacks import WandbLogger as _WandbLogger
from camshaft.callbacks import rank_zero_experiment as rank_zero_experiment
from camshaft.callbacks.loggers.csv_logger import MetricsFile
from camshaft.callbacks.loggers.logged_values import Hyperparameters, jsonable, named
from camshaft.callbacks.loggers.logger import SilentExperiment as DummyExperiment
from camshaft.callbacks.loggers.run_folder import RunFolderLogger
from camshaft.compat.names.stand_ins import StandIn, refuse_argument, same_as, warn_of_overrides
from camshaft.compat.names.utilities.functions import add_prefix, convert_params, flatten_dict
from camshaft.hooks_core.support.messages import warn_user
from camshaft.hooks_core.support.remote_files import exists, is_url, join, local_path, remove, replace_file
from camshaft.strategies import is_rank_zero
from camshaft.trainer.loggers import SilentLogger

_EXPERIMENT = "lightning_logs"
_Path = str | os.PathLike[str]


class _HparamsInYaml(RunFolderLogger):
    """Writes hyperparameters to `hparams.yaml`, where libraries look for them."""

    HPARAMS_FILE: ClassVar[str] = "hparams.yaml"
    NAME_HPARAMS_FILE: ClassVar[str] = HPARAMS_FILE

    def _hparams_text(self, hparams: dict[str, Any]) -> str:
        return _yaml(hparams)


def _yaml(hparams: dict[str, Any]) -> str:
    import yaml  # type: ignore[import-untyped]

    plain = json.loads(json.dumps(hparams))  # enumerations and other subclasses of str, int and float as what they are
    return str(yaml.safe_dump(plain, sort_keys=True))


class TensorBoardLogger(_HparamsInYaml, _TensorBoardLogger, metaclass=StandIn):
    """`camshaft.callbacks.TensorBoardLogger` with the arguments of releases 0.6 to 2.x.

    Its folder always gets a file `hparams.yaml`.

    Args:
        save_dir: As today.
        name: As today; the default is that of Lightning.
        version: As today.
        log_graph: As today.
        default_hp_metric: As today.
        prefix: As today.
        sub_dir: As today.
        kwargs: Arguments of `SummaryWriter`.
    """

    def __init__(
        self,
        save_dir: str | os.PathLike[str],
        name: str | None = _EXPERIMENT,
        version: int | str | None = None,
        log_graph: bool = False,
        default_hp_metric: bool = True,
        prefix: str = "",
        sub_dir: str | os.PathLike[str] | None = None,
        **kwargs: Any,
    ) -> None:
        folder = os.path.expanduser(os.path.expandvars(save_dir))
        kwargs |= {"log_graph": log_graph, "prefix": prefix, "sub_dir": sub_dir, "default_hp_metric": default_hp_metric}
        super().__init__(folder, name, version, **kwargs)

    def begin_fit(self, module: Any) -> None:
        """Make the folder of the run and its files, even if nothing is logged."""
        _ = self.experiment  # which makes the folder
        self.save()
        super().begin_fit(module)

    def log_graph(self, model: Any, input_array: Any = None) -> None:
        """Write the graph of a model if `log_graph` is true; warn if there is no input for it."""
        example = getattr(model, "example_input_array", None) if input_array is None else input_array
        if not self._logs_graph:
            return
        if isinstance(example, Tensor | tuple):
            super().log_graph(model, example)
        else:
            warn_user(
                "Could not log computational graph to TensorBoard: `example_input_array` must be a tensor or tuple of "
                f"inputs, but is {type(example).__name__}. Set it, or leave out `log_graph`."
            )

    def save(self) -> None:
        """Write everything that is buffered, and `hparams.yaml` if there is none yet in the folder of the run."""
        super().save()
        has_folder = self._version is not None and os.path.isdir(self.log_dir)
        if has_folder and not os.path.exists(os.path.join(self.log_dir, self.HPARAMS_FILE)):
            RunFolderLogger.log_hyperparams(self)  # not an override of it, since there are none to log


class TestTubeLogger(TensorBoardLogger):
    """A `TensorBoardLogger` with the arguments of releases 0.5 to 1.6. Files of test-tube's own are not written.

    Args:
        save_dir: As of `TensorBoardLogger`.
        name: The same.
        description: Left out, with a warning.
        debug: False.
        version: As of `TensorBoardLogger`.
        create_git_tag: False.
        log_graph: As of `TensorBoardLogger`.
        prefix: The same.

    Raises:
        ValueError: If `debug` or `create_git_tag` is true.
    """

    __test__ = False  # for pytest

    def __init__(
        self,
        save_dir: str | os.PathLike[str],
        name: str = "default",
        description: str | None = None,
        debug: bool = False,
        version: int | None = None,
        create_git_tag: bool = False,
        log_graph: bool = False,
        prefix: str = "",
    ) -> None:
        where = type(self).__name__
        refuse_argument("debug", debug, where, "it logs nothing", "Pass `Trainer(logger=False)`.", (False,))
        why = "loggers leave repositories alone"
        refuse_argument("create_git_tag", create_git_tag, where, why, "Tag it yourself.", (False,))
        if description is not None:
            warn_user(f"{where}: `description` is not written. Log it with `log_hyperparams`.")
        super().__init__(save_dir, name, version, log_graph, prefix=prefix)


class ExperimentWriter(MetricsFile):
    """The `experiment` of `CSVLogger`: rows of `metrics.csv`, and `hparams.yaml`.

    Args:
        log_dir: Folder of both. A `metrics.csv` that is there is removed, with a warning.

    Attributes:
        hparams: The hyperparameters so far.
    """

    NAME_METRICS_FILE: ClassVar[str] = _CSVLogger.METRICS_FILE
    NAME_HPARAMS_FILE: ClassVar[str] = _HparamsInYaml.HPARAMS_FILE

    def __init__(self, log_dir: str | os.PathLike[str]) -> None:
        super().__init__(join(local_path(log_dir), self.NAME_METRICS_FILE))
        self.hparams: dict[str, Any] = {}
        path = self.metrics_file_path
        if exists(path):
            warn_user(f"{path} of an earlier run is replaced. Pass CSVLogger another `version` to keep both.")
            remove(path)

    def log_hparams(self, params: Hyperparameters) -> None:
        """Add hyperparameters to `hparams.yaml`."""
        self.hparams.update(named(params))
        with replace_file(join(self.log_dir, self.NAME_HPARAMS_FILE)) as fresh:
            fresh.write_text(_yaml(jsonable(self.hparams)), encoding="utf-8")


class CSVLogger(_HparamsInYaml, _CSVLogger, metaclass=StandIn):
    """`camshaft.callbacks.CSVLogger`, with the experiment's name of Lightning by default, and `hparams.yaml`.

    A given version that has metrics already is written anew, with a warning.
    """

    def __init__(self, save_dir: _Path, name: str | None = _EXPERIMENT, *args: Any, **kwargs: Any) -> None:
        super().__init__(save_dir, name or "", *args, **kwargs)

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Add a row; without a step, and a metric of that name, its step is the number of rows that are held back."""
        if step is None and metrics and "step" not in metrics:
            step = len(self.experiment.metrics)
        super().log_metrics(metrics, step)

    def _open(self) -> MetricsFile:
        writer = ExperimentWriter(self.log_dir)
        writer.hparams = self.hparams
        return writer


def default_logger(save_dir: str) -> Any:
    """Return the logger that a trainer makes: for TensorBoard where that is installed, else a CSV logger.

    In a store it is a CSV logger: that for TensorBoard cannot write there. In a job of SLURM the version is the
    job's number.
    """
    if find_spec("tensorboard") is None or is_url(save_dir):
        return CSVLogger(save_dir)
    is_interactive = os.environ.get("SLURM_JOB_NAME") in ("bash", "interactive")
    job = os.environ.get("SLURM_JOB_ID", "")
    return TensorBoardLogger(save_dir, version=int(job) if job.isdigit() and not is_interactive else None)


class WandbLogger(_WandbLogger, metaclass=StandIn):
    """`camshaft.callbacks.WandbLogger` with the arguments of releases 0.6 to 1.9, from the third one on by name.

    Args:
        name: As today.
        save_dir: As today; None is the working directory.
        anonymous: Whether a run without an account is allowed.
        project: As today; the default is that of the earlier releases.
        sync_step: None.
        kwargs: Today's arguments, and those of `wandb.init`.

    Raises:
        ValueError: If `sync_step` is given.
    """

    def __init__(
        self,
        name: str | None = None,
        save_dir: str | os.PathLike[str] | None = None,
        *,
        anonymous: bool | str | None = None,
        project: str | None = None,
        sync_step: bool | None = None,
        **kwargs: Any,
    ) -> None:
        refuse_argument("sync_step", sync_step, type(self).__name__, "steps are always the trainer's", "Leave it out.")
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

    def __init__(self, experiment_name: str = _EXPERIMENT, *, save_dir: _Path | None = None, **kwargs: Any) -> None:
        super().__init__(experiment_name, save_dir="./mlruns" if save_dir is None else save_dir, **kwargs)

    name: Any = same_as("experiment_id")  # which the run is made for


_NOT_CALLED = ("agg_and_log_metrics", "update_agg_funcs")


def _nothing(_: Any) -> None:
    """Return None, as loggers do that define no such property."""


class FabricLogger(_Logger, metaclass=StandIn):
    """The base class of custom loggers of Fabric: define `name`, `version`, `log_metrics` and `log_hyperparams`."""

    __stands_for__: ClassVar[type] = _Logger

    name: Any = property(_nothing, doc="Name of the experiment.")
    version: Any = property(_nothing, doc="Name or number of the run.")

    @property
    def experiment(self) -> Any:
        """The underlying library's own object."""
        raise NotImplementedError(f"{type(self).__qualname__} does not define `experiment`. Define it as a property.")

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Write values for a step."""
        raise NotImplementedError(f"{type(self).__qualname__} does not define `log_metrics`. Define it to log metrics.")

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Write hyperparameters."""
        raise NotImplementedError(
            f"{type(self).__qualname__} does not define `log_hyperparams`. Define it to log them."
        )


class LightningLoggerBase(FabricLogger, metaclass=StandIn):
    """The base class of custom loggers of the trainer; see `FabricLogger`. It warns of methods that are not called."""

    __stands_for__: ClassVar[type] = _Logger

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.prefix = getattr(self, "prefix", "")
        warn_of_overrides(type(self), _NOT_CALLED, "Put it into `log_metrics`, or into a callback.")

    rank = property(lambda _: int(not is_rank_zero()), doc="0 on the first process, else 1, as loggers of 0.5 ask.")

    _convert_params = staticmethod(convert_params)
    _flatten_dict = staticmethod(flatten_dict)

    @staticmethod
    def _sanitize_params(params: Mapping[str, Any]) -> dict[str, Any]:
        plain = (bool, int, float, str)
        return {name: value if isinstance(value, plain) else str(value) for name, value in params.items()}

    def _add_prefix(self, metrics: Mapping[str, float]) -> Mapping[str, float]:
        prefix: Any = getattr(self, "_prefix", "") or self.prefix
        return add_prefix(metrics, prefix, self.LOGGER_JOIN_CHAR)


class DummyLogger(_Logger, metaclass=StandIn):
    """A logger that takes every call, and does nothing; the trainer's own in a trial is an instance."""

    __stands_for__: ClassVar[type] = SilentLogger

    name: Any = ""
    version: Any = ""
    experiment: Any = DummyExperiment()  # which takes every call

    def log_metrics(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""

    log_hyperparams = log_metrics

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # of Python, as `copy` and `pickle` look for it
            raise AttributeError(name)
        return DummyExperiment().nop

    def __getitem__(self, idx: Any) -> DummyLogger:
        return self


def start_runs(loggers: Sequence[Any]) -> None:
    """Read the `experiment` of loggers of services, which starts their runs, as Lightning does when a verb begins.

    Some know their name and version from then on.
    """
    for logger in loggers:
        if not isinstance(logger, RunFolderLogger | SilentLogger):
            with suppress(AttributeError, NotImplementedError):
                _ = logger.experiment


def log_dir_of(logger: Any) -> str | None:
    """Return the folder of the run of a CSV or TensorBoard logger; that of all experiments of another one."""
    folder: str | None = getattr(logger, "log_dir" if isinstance(logger, RunFolderLogger) else "save_dir", None)
    return folder


def checkpoint_dir_of(logger: Any, default_root_dir: str) -> str:
    """Return Lightning's folder of checkpoints: below the logger's `save_dir`, by its name and its version."""
    name, version = (getattr(logger, fact, None) for fact in ("name", "version"))
    names = (str(name), version if isinstance(version, str) else f"version_{version}", "checkpoints")
    return join(getattr(logger, "save_dir", None) or default_root_dir, *filter(None, names))


def merge_dicts(
    dicts: Sequence[Mapping[str, Any]], agg_key_funcs: Mapping[str, Any] | None = None, default_func: Any = None
) -> dict[str, Any]:
    """Merge dictionaries by a function of the values of each key, the mean by default.

    Args:
        dicts: The dictionaries, nested or not.
        agg_key_funcs: Functions for some keys, nested as the dictionaries are.
        default_func: The function for the others; None is the mean.
    """
    merged: dict[str, Any] = {}
    for key in dict.fromkeys(key for each in dicts for key in each):
        values = [each[key] for each in dicts if key in each]
        function: Any = (agg_key_funcs or {}).get(key) or default_func
        if isinstance(values[0], Mapping):
            merged[key] = merge_dicts(values, function if isinstance(function, Mapping) else None, default_func)
        else:
            merged[key] = sum(values) / len(values) if function is None else function(values)
    return merged


class FabricCSVLogger(CSVLogger, FabricLogger):
    """`camshaft.callbacks.CSVLogger`.

    Args:
        root_dir: The folder of all experiments.
        name: As there; the default is that of Lightning.
        args: Further arguments, as there.
        kwargs: Likewise.
    """

    def __init__(self, root_dir: _Path, name: str | None = "lightning_logs", *args: Any, **kwargs: Any) -> None:
        super().__init__(root_dir, name, *args, **kwargs)


class FabricTensorBoardLogger(TensorBoardLogger, FabricLogger):
    """`camshaft.callbacks.TensorBoardLogger`.

    Args:
        root_dir: The folder of all experiments.
        name: As there; the default is that of Lightning.
        version: As there.
        args: `default_hp_metric`, `prefix` and `sub_dir`, as there.
        kwargs: Likewise, and arguments of `SummaryWriter`.
    """

    def __init__(
        self, root_dir: _Path, name: str | None = "lightning_logs", version: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        super().__init__(root_dir, name, version, False, *args, **kwargs)

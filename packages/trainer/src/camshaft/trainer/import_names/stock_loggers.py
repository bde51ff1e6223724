"""Loggers with the arguments of earlier releases."""

from __future__ import annotations

import os
from typing import Any, ClassVar

from camshaft.callbacks import CSVLogger as _CSVLogger
from camshaft.callbacks import MLFlowLogger as _MLFlowLogger
from camshaft.callbacks import TensorBoardLogger as _TensorBoardLogger
from camshaft.callbacks import WandbLogger as _WandbLogger
from camshaft.trainer.import_names.stand_ins import StandIn, refuse_argument

_EXPERIMENT = "lightning_logs"
_AGGREGATION = ("the values of a step are logged once", "Put values together before you log them.")


class TensorBoardLogger(_TensorBoardLogger, metaclass=StandIn):
    """Takes what releases 0.6 to 1.9 took; see `camshaft.callbacks.TensorBoardLogger`.

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
    """Takes what releases 0.6 to 1.9 took, from the third argument on by name; see `camshaft.callbacks.WandbLogger`.

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
    """Takes what releases 0.5 to 1.9 took, from the second argument on by name; see `camshaft.callbacks.MLFlowLogger`.

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

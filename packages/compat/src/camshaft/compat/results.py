"""The results that steps of release 0.9 returned in place of a loss: `TrainResult` and `EvalResult`.

`camshaft.compat.Trainer` reads them once this module is imported; with loops alone, `eras.extend` gets `read_result`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor

from camshaft.callbacks import EarlyStopping, ModelCheckpoint
from camshaft.hooks_core.support.messages import must_be
from camshaft.loops import Run

_EPOCH_ENDS = {
    "training_step": ("on_train_epoch_end", "training_epoch_end"),
    "validation_step": ("on_validation_epoch_end", "validation_epoch_end", "validation_end"),
    "test_step": ("on_test_epoch_end", "test_epoch_end", "test_end"),
}
"""By step, the end of its epoch today, and those that got one result of all steps."""
_BEHIND_REDUCE_FX = (
    *("tbptt_reduce_fx", "tbptt_pad_token", "enable_graph", "sync_dist", "sync_dist_op", "sync_dist_group"),
)
_WATCHERS = {"early_stop_on": EarlyStopping, "checkpoint_on": ModelCheckpoint}


class Result(dict[str, Any]):
    """A dictionary with attributes, and with values to be logged when a step returns it.

    Args:
        minimize: The loss.
        early_stop_on: Monitored as `early_stop_on`, or `val_early_stop_on` in evaluation: its mean over the epoch.
        checkpoint_on: Likewise as `checkpoint_on`, or `val_checkpoint_on`; None or True means the loss.
        hiddens: What the next split gets.

    Raises:
        TypeError: If `early_stop_on` or `checkpoint_on` is no tensor; if `minimize` is none with a graph.
    """

    _prefix: ClassVar[str] = ""
    _logs_steps: ClassVar[bool] = False

    def __init__(
        self,
        minimize: Tensor | None = None,
        early_stop_on: Tensor | None = None,
        checkpoint_on: Tensor | bool | None = None,
        hiddens: Any = None,
    ) -> None:
        super().__init__()
        where = type(self).__name__
        if minimize is not None and not (isinstance(minimize, Tensor) and minimize.requires_grad):
            rule, action = "a tensor that can be differentiated", "Pass the loss in `training_step` alone."
            raise TypeError(must_be("minimize", rule, minimize, where, action))
        self._calls: list[tuple[str, Any, dict[str, Any]]] = []
        self._logged: set[str] = set()
        by_default = checkpoint_on is None or checkpoint_on is True
        self._explicit = {"early_stop_on": early_stop_on}
        if not by_default and checkpoint_on is not False:
            self._explicit["checkpoint_on"] = checkpoint_on  # type: ignore[assignment]
        self._watched = {**self._explicit, **({"checkpoint_on": minimize} if by_default else {})}
        for name, value in self._watched.items():
            if value is not None and not isinstance(value, Tensor):
                raise TypeError(must_be(name, "a tensor", value, where, "Pass the metric itself."))
        further = {"hiddens": hiddens, "minimize": minimize}
        detached = {name: value.detach() for name, value in self._watched.items() if value is not None}
        self.update({name: value for name, value in {**detached, **further}.items() if value is not None})

    def __getattr__(self, name: str) -> Any:
        """Return an item; None if there is none."""
        if name.startswith("__"):
            raise AttributeError(name)
        return self.get(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            super().__setattr__(name, value)
        else:
            self[name] = value.detach() if isinstance(value, Tensor) and name != "minimize" else value

    def log(
        self,
        name: str,
        value: Any,
        prog_bar: bool = False,
        logger: bool = True,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        reduce_fx: Any = torch.mean,
        *args: Any,
        **options: Any,
    ) -> None:
        """Log a value when the step returns this: per step in training, else per epoch by default.

        With both it is logged as `step_<name>` and `epoch_<name>`. The options are those of `TrainingModule.log`.
        """
        on_step = self._logs_steps if on_step is None else on_step
        on_epoch = not self._logs_steps if on_epoch is None else on_epoch
        options |= dict(zip(_BEHIND_REDUCE_FX, args, strict=False))
        enable_graph = bool(options.get("enable_graph"))
        options |= {"prog_bar": prog_bar, "logger": logger, "reduce_fx": reduce_fx, "on_step": on_step}
        options |= {"on_epoch": on_epoch, "enable_graph": enable_graph and on_step}
        options["sync_dist"] = options.get("sync_dist") or None
        if on_step and on_epoch:
            self._calls.append((f"step_{name}", value, {**options, "on_epoch": False}))
            self._calls.append((f"epoch_{name}", value, {**options, "on_step": False, "enable_graph": False}))
        else:
            self._calls.append((name, value, options))
        self._logged.add(name)
        self[name] = value.detach() if isinstance(value, Tensor) and not enable_graph else value

    def log_dict(
        self,
        dictionary: Mapping[str, Any],
        prog_bar: bool = False,
        logger: bool = True,
        on_step: bool = False,
        on_epoch: bool = True,
        **options: Any,
    ) -> None:
        """Log each value of a dictionary, per epoch by default, in training as well.

        Args:
            dictionary: The values by name.
            prog_bar, logger, on_step, on_epoch: As those of `log`.
            options: Further options of `log`.
        """
        for name, value in dictionary.items():
            self.log(name, value, prog_bar, logger, on_step, on_epoch, **options)

    def write(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise `NotImplementedError`: nothing is written by way of what a step returns."""
        rule, action = "left to the trainer's `predict`", "Use that, or a `BasePredictionWriter` as callback."
        raise NotImplementedError(must_be("write", rule, args or kwargs, type(self).__name__, action))

    write_dict = write


class TrainResult(Result):
    """The return value of `training_step` in 0.9; see `Result`."""

    _logs_steps = True


class EvalResult(Result):
    """The return value of `validation_step` and `test_step` in 0.9; see `Result`, which has `minimize` as well."""

    _prefix = "val_"

    def __init__(self, early_stop_on: Any = None, checkpoint_on: Any = None, hiddens: Any = None) -> None:
        super().__init__(None, early_stop_on, checkpoint_on, hiddens)


def read_result(run: Run, step: str, returned: Any) -> Any:
    """Log what a result holds, where a step returned one.

    Returns:
        The result proper, which is the loss of a training step, or a dictionary with it and what else the result has
        beside what is logged; what is no result as it is.

    Raises:
        TypeError: If a training step returned that of an evaluation.
        NotImplementedError: If the module has a hook of the epoch's end, which got one result of all steps.
        ValueError: If a callback monitors something else than the result says.
    """
    if not isinstance(returned, Result):
        return returned
    where = f"{type(run.module).__qualname__}.{step}"
    if step == "training_step" and isinstance(returned, EvalResult):
        raise TypeError(must_be("return value", "a TrainResult", returned, where, "Return a TrainResult, or the loss."))
    today, *earlier = _EPOCH_ENDS[step]
    for hook in earlier:
        if getattr(run.hooks, hook, None) is not None:
            rule = f"left out where `{step}` returns a {type(returned).__name__}"
            action = f"Keep what you need in a list of your own, and read it in `{today}`."
            raise NotImplementedError(must_be(hook, rule, "an override", type(run.module).__qualname__, action))
    log: Any = run.module.log
    for name, value in returned._watched.items():
        if value is not None:
            monitored = returned._prefix + name
            for callback in run.callbacks if returned._explicit.get(name) is not None else ():
                monitor = getattr(callback, "monitor", None)
                if isinstance(callback, _WATCHERS[name]) and monitor not in (None, name, f"val_{name}"):
                    rule = f"{monitored!r}, since {where} passes `{name}`"  # 0.9 replaced it without asking
                    action = f"Pass monitor={monitored!r}, or leave `{name}` out."
                    raise ValueError(must_be("monitor", rule, monitor, type(callback).__name__, action))
            log(monitored, value.detach(), logger=False, on_step=False, on_epoch=True, batch_size=1)
    for name, value, options in returned._calls:
        log(name, value, **options)
    done = {"minimize", *_WATCHERS, *returned._logged}
    outputs = {name: value for name, value in returned.items() if name not in done}
    if "minimize" not in returned:
        return outputs
    return {**outputs, "loss": returned["minimize"]} if outputs else returned["minimize"]

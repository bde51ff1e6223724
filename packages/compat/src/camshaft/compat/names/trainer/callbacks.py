"""Callbacks with the arguments of earlier releases."""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Iterator
from inspect import signature
from typing import Any, ClassVar, Final

from camshaft.callbacks import AdvancedProfiler as _AdvancedProfiler
from camshaft.callbacks import DeviceStatsMonitor
from camshaft.callbacks import EarlyStopping as _EarlyStopping
from camshaft.callbacks import LearningRateMonitor as _LearningRateMonitor
from camshaft.callbacks import PyTorchProfiler as _PyTorchProfiler
from camshaft.callbacks import SimpleProfiler as _SimpleProfiler
from camshaft.callbacks import StochasticWeightAveraging as _StochasticWeightAveraging
from camshaft.callbacks.monitoring import validates
from camshaft.compat.eras.releases import MODES_ARE_MIN, behaviour_in, is_any_of_1_x
from camshaft.compat.names.stand_ins import StandIn, has_arguments_of, note, refuse_argument
from camshaft.hooks_core.support.messages import must_be, warn_user

UNSET: Final[Any] = type("Unset", (), {"__repr__": lambda self: "left out"})()
"""The default of an argument for which None means something."""


def chosen_mode(mode: str | None, monitor: str | None, where: str, *, is_auto_by_default: bool) -> tuple[str, bool]:
    """Return the given direction, or the one of earlier releases, and whether that depends on the release.

    Args:
        mode: "min", "max", "auto", or None for what was left out.
        monitor: The metric.
        where: The class, for messages.
        is_auto_by_default: Whether up to 1.2 "auto" went by any name with "acc" in it, and not by "acc" alone.
    """
    if mode not in (None, "auto"):
        return str(mode), False
    name = monitor or ""
    means_more = name == "acc" or (is_auto_by_default and ("acc" in name or name.startswith("fmeasure")))
    if mode is None:
        return "min", means_more
    chosen = "max" if means_more else "min"
    note(where, "mode='auto'", f"`mode={chosen!r}` for {name!r}, as up to 1.2")
    return chosen, False


def follow_release(callback: Any, trainer: Any, where: str) -> None:
    """Choose the direction that was left out, where up to 1.2 it was "max" for the metric, and later "min".

    Raises:
        ValueError: If it is not known for which of these releases the module was written.
    """
    run = getattr(trainer, "current_run", None)
    name, action = callback.monitor, "Pass mode='max' if more is better."
    if is_any_of_1_x(run):
        rule = f"given for monitor={name!r}, for which releases up to 1.2 took 'max' and later ones 'min'"
        raise ValueError(must_be("mode", rule, None, where, f"{action[:-1]}, or declare the module's `hook_era`."))
    if behaviour_in(run).since < MODES_ARE_MIN:
        callback.mode = "max"
    note(where, f"no `mode` for monitor={name!r}", f"{callback.mode!r}, as in the module's release. {action[:-1]}")


def is_before_validation(trainer: Any) -> bool:
    """Return whether an epoch's end hooks come before its validation, as from 1.1 to 1.3: metrics are not there yet."""
    return behaviour_in(getattr(trainer, "current_run", None)).epoch_ends_before_validation and validates(trainer)


_EARLY_STOPPING = "EarlyStopping"
_NUM_ARGUMENTS_BEFORE_RANKS = 6  # behind `mode`


@has_arguments_of(_EarlyStopping)
class EarlyStopping(_EarlyStopping, metaclass=StandIn):
    """`camshaft.callbacks.EarlyStopping` with the arguments of releases 0.4 to 1.9.

    Args:
        monitor: The metric. Left out or None it is `val_loss`, as up to 0.9.
        min_delta: As today.
        patience: As today.
        verbose: Whether to print; 0 and 1 mean false and true.
        mode: "min", "max" or "auto", which is "max" for "acc" alone. Left out it is that of the module's release.
        log_rank_zero_only: As today, but the first process alone prints if it is left out.
        arguments: Today's.

    Raises:
        ValueError: As `camshaft.callbacks.EarlyStopping`; at setup, if it is not clear which direction is meant.
    """

    _is_mode_open: bool = False

    def __init__(
        self,
        monitor: Any = UNSET,
        min_delta: float = 0.0,
        patience: int = 3,
        verbose: bool | int = False,
        mode: str | None = None,
        *args: Any,
        log_rank_zero_only: bool = True,
        **arguments: Any,
    ) -> None:
        if monitor is UNSET or monitor is None:
            monitor = "val_loss"
            note(_EARLY_STOPPING, "no `monitor`", "`monitor='val_loss'`, as up to 0.9")
        chosen, is_open = chosen_mode(mode, monitor, _EARLY_STOPPING, is_auto_by_default=False)
        if len(args) < _NUM_ARGUMENTS_BEFORE_RANKS:
            arguments["log_rank_zero_only"] = log_rank_zero_only
        super().__init__(monitor, min_delta, patience, bool(verbose), chosen, *args, **arguments)
        self._is_mode_open = is_open

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Let an override of the check take the module as well, as up to 1.2."""
        super().__init_subclass__(**kwargs)
        check = vars(cls).get("_run_early_stopping_check")
        parameters = [] if check is None else [*signature(check).parameters.values()][2:]  # behind self and trainer
        if any(one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD for one in parameters):

            def with_module(self: Any, trainer: Any, pl_module: Any = None) -> None:
                check(self, trainer, pl_module or trainer.lightning_module)  # type: ignore[misc]

            cls._run_early_stopping_check = with_module  # type: ignore[method-assign]

    def setup(self, trainer: Any, module: Any, stage: str) -> None:
        """Enable checks, in fit only, in the direction of the module's release if that was left open."""
        if stage == "fit" and self._is_mode_open:
            self._is_mode_open = False
            follow_release(self, trainer, _EARLY_STOPPING)
            if self.mode == "max":
                self.min_delta, self.best_score = -self.min_delta, -self.best_score
        super().setup(trainer, module, stage)

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """Begin; choose where checks are made if that was left open, which hooks of subclasses read."""
        super().on_train_start(trainer, module)
        if self._check_on_train_epoch_end is None:
            self._check_on_train_epoch_end = self._is_due_at_train_epoch_end(trainer)

    def _is_due_at_train_epoch_end(self, trainer: Any) -> bool:
        is_open = self._check_on_train_epoch_end is None
        return not (is_open and is_before_validation(trainer)) and super()._is_due_at_train_epoch_end(trainer)

    def _run_early_stopping_check(self, trainer: Any, pl_module: Any = None) -> None:
        """Check, and stop training if needed; up to 1.2 with the module. Collective."""
        super()._run_early_stopping_check(trainer)


_LEAST_START = 0.5  # a first argument that is more likely a fraction of the epochs than a learning rate


@has_arguments_of(_StochasticWeightAveraging)
class StochasticWeightAveraging(_StochasticWeightAveraging, metaclass=StandIn):
    """Weight averaging as in all releases: without the weights after the last epoch.

    Arguments by position are those of today. Up to 1.6 the first two were in the other order, and are taken so where
    they can mean nothing else.

    Args:
        args: As today; or `swa_epoch_start` first, if it is an int, or if a list, None or a keyword is for `swa_lrs`.
        arguments: As today, but without `swa_lrs` the optimizer keeps its learning rates, as up to 1.6.

    Raises:
        TypeError: If there are too many arguments, or one is given twice.
        ValueError: As `camshaft.callbacks.StochasticWeightAveraging`.
    """

    includes_last_epoch: ClassVar[bool] = False
    _max_epochs: int = -1

    def __init__(self, *args: Any, **arguments: Any) -> None:
        where, names = "StochasticWeightAveraging", ["swa_lrs", "swa_epoch_start"]
        first, second = (*args, UNSET, UNSET)[:2]
        if isinstance(first, int) or second is None or isinstance(second, list) or (args and "swa_lrs" in arguments):
            note(where, f"the first argument {first!r}", "`swa_epoch_start`, as up to 1.6")
            names.reverse()
        elif isinstance(first, float) and first >= _LEAST_START and second is UNSET:
            note(where, f"the first argument {first!r}", "`swa_lrs`, as since 1.7")
        given = dict(**dict(zip(names, args, strict=False)), **arguments)
        super().__init__(given.pop("swa_lrs", None), given.pop("swa_epoch_start", 0.8), *args[2:], **given)

    def setup(self, trainer: Any, module: Any, stage: str) -> None:
        """Compute the first epoch and the last."""
        super().setup(trainer, module, stage)
        self._max_epochs = -1 if trainer.max_epochs is None else trainer.max_epochs

    @property
    def swa_end(self) -> float:
        """Zero-based index of the last of these epochs, infinite without a limit; known when fit has begun."""
        return math.inf if self._max_epochs == -1 else self._max_epochs - 1

    @property
    def _initialized(self) -> bool:
        return self.average_model is not None

    @property
    def _swa_epoch_start(self) -> int | float:
        """`swa_epoch_start`, in fit as the number of an epoch."""
        return self._first_epoch + 1 if self._is_fitting else self.swa_epoch_start

    @_swa_epoch_start.setter
    def _swa_epoch_start(self, start: int | float) -> None:
        self.swa_epoch_start = start


class LearningRateMonitor(_LearningRateMonitor, metaclass=StandIn):
    """`camshaft.callbacks.LearningRateMonitor`, with the methods by which Lightning's class finds names."""

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """Start the schedule, also where only an override may have something to log."""
        super().on_train_start(trainer, module)
        if self.logging_interval != "epoch":
            self._schedule.start(trainer)

    def _due_names(self, trainer: Any, interval: str) -> Iterator[tuple[Any, list[str]]]:
        configs = trainer.lr_scheduler_configs
        of_configs, seen, types = self._find_names_from_schedulers(configs)
        of_others, others = self._find_names_from_optimizers(trainer.optimizers, seen, types)
        self._remap_keys([*of_configs, *of_others])
        for config, names in zip(configs, of_configs, strict=True):
            if names and interval in (config.interval, "any"):
                yield config.scheduler.optimizer, names
        yield from zip(others, of_others, strict=True)

    def _find_names_from_schedulers(self, lr_scheduler_configs: Any) -> tuple[list[list[str]], list[Any], Any]:
        """Return names for the groups of each scheduler's optimizer, these optimizers, and how many of each class."""
        found: list[list[str]] = []
        seen: list[Any] = []
        types: defaultdict[type, int] = defaultdict(int)
        for config in lr_scheduler_configs:
            optimizer = getattr(config.scheduler, "optimizer", None)
            name = config.name or f"lr-{type(optimizer).__name__}"
            update = self._check_duplicates_and_update_name
            found.append([] if optimizer is None else update(optimizer, name, seen, types, config))
        return found, seen, types

    def _find_names_from_optimizers(
        self, optimizers: Any, seen_optimizers: list[Any], seen_optimizer_types: Any
    ) -> tuple[list[list[str]], list[Any]]:
        """Return names for the groups of each optimizer that was not seen, and these optimizers."""
        found, others = [], []
        for optimizer in optimizers:
            if any(one.param_groups is optimizer.param_groups for one in seen_optimizers):
                continue
            inner = getattr(optimizer, "optimizer", optimizer)  # wrapped by a strategy
            update, name = self._check_duplicates_and_update_name, f"lr-{type(inner).__name__}"
            found.append(update(inner, name, seen_optimizers, seen_optimizer_types, None))
            others.append(inner)
        return found, others

    def _check_duplicates_and_update_name(
        self, optimizer: Any, name: str, seen_optimizers: list[Any], seen_optimizer_types: Any, config: Any
    ) -> list[str]:
        """Return a name for each group of an optimizer, which is seen now."""
        seen_optimizers.append(optimizer)
        seen_optimizer_types[type(optimizer)] += config is None or config.name is None
        prefix, groups = self._add_prefix(name, type(optimizer), seen_optimizer_types), optimizer.param_groups
        return [self._add_suffix(prefix, groups, idx) for idx in range(len(groups))]

    def _add_prefix(self, name: str, optimizer_cls: type, seen_optimizer_types: Any) -> str:
        """Return a name with the number of earlier optimizers of the class, if there are any."""
        num = seen_optimizer_types.get(optimizer_cls, 0)
        return f"{name}-{num - 1}" if num > 1 else name

    def _add_suffix(self, name: str, param_groups: Any, param_group_index: int, use_names: bool = True) -> str:
        """Return a name for a group: with its own, or its number if there are several."""
        own = param_groups[param_group_index].get("name") if use_names else None
        if len(param_groups) > 1:
            own = own or f"pg{param_group_index + 1}"
        return f"{name}/{own}" if own else name

    def _remap_keys(self, names: list[list[str]], token: str = "/pg1") -> None:
        """Make entries for names under `lrs`; the only group that has got company keeps its rates."""
        for name in (name for of_one in names for name in of_one):
            single = name.replace(token, "")
            self.lrs.setdefault(name, self.lrs.pop(single, []) if single != name else [])


_NAMED = ("each hook is a range of the trace", "Leave it out.")


class _OneFile:
    """Arguments that profilers had up to 1.4.

    Args:
        args: Today's arguments.
        output_filename: The path of the report.
        record_functions, profiled_functions: None; every hook is a range of the trace.
        arguments: Today's.

    Raises:
        ValueError: If functions are named.
    """

    def __init__(
        self,
        *args: Any,
        output_filename: str | os.PathLike[str] | None = None,
        record_functions: Any = None,
        profiled_functions: Any = None,
        **arguments: Any,
    ) -> None:
        refuse_argument("record_functions", record_functions, type(self).__name__, *_NAMED)
        refuse_argument("profiled_functions", profiled_functions, type(self).__name__, *_NAMED)
        if output_filename is not None:
            folder, name = os.path.split(os.fspath(output_filename))
            arguments |= {"dirpath": folder or ".", "filename": os.path.splitext(name)[0]}
        super().__init__(*args, **arguments)


@has_arguments_of(_SimpleProfiler)
class SimpleProfiler(_OneFile, _SimpleProfiler, metaclass=StandIn):
    """`camshaft.callbacks.SimpleProfiler`."""


@has_arguments_of(_AdvancedProfiler)
class AdvancedProfiler(_OneFile, _AdvancedProfiler, metaclass=StandIn):
    """`camshaft.callbacks.AdvancedProfiler`."""


@has_arguments_of(_PyTorchProfiler)
class PyTorchProfiler(_OneFile, _PyTorchProfiler, metaclass=StandIn):
    """`camshaft.callbacks.PyTorchProfiler`."""


class GPUStatsMonitor(DeviceStatsMonitor, metaclass=StandIn):
    """`DeviceStatsMonitor`, which logs the statistics of torch's allocator in place of those of nvidia-smi.

    Args:
        args: What was to be logged; utilisation, fan speed and temperature are not.
        kwargs: The same by name.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        warn_user(
            "GPUStatsMonitor logs the memory that torch allocates, as `DeviceStatsMonitor` does: not the utilisation, "
            "fan speed and temperature of nvidia-smi. Use `DeviceStatsMonitor()`."
        )
        super().__init__()

"""Callback that logs learning rates."""

import math
from collections.abc import Iterator
from typing import Any

import attrs
import torch

from camshaft.callbacks.arguments import check_one_of
from camshaft.callbacks.monitors.logging_schedule import LoggingSchedule, check_has_logger, log_to_all
from camshaft.hooks_core import Callback
from camshaft.hooks_core.protocols import TrainerProtocol
from camshaft.hooks_core.support.messages import warn_user

_MAX_RATES = 10_000  # of each name, of which the older half is dropped


@attrs.define(slots=False, eq=False, repr=False)
class LearningRateMonitor(Callback):
    """Logs the learning rate of every optimizer and parameter group, with a scheduler or without.

    A value is logged with the index of the update that uses it, as are the values that the module logs in that step.
    Values of steps are logged every `trainer.log_every_n_steps` updates. `trainer.callback_metrics` has them as well,
    so that other callbacks can monitor them.

    The name is the `name` of the scheduler's configuration, or "lr-" and the optimizer's class, as in "lr-Adam". With
    several groups each appends its own "name", or its number: "lr-Adam/pg1". Equal names get numbers: "lr-Adam-1".

    Args:
        logging_interval: "step" logs before updates, "epoch" at the start of each epoch. None is each scheduler's own
            interval, and both without a scheduler.
        log_momentum: Whether to log the momentum, or the first of the betas, under the name with "-momentum"; 0 for an
            optimizer that has none.
        log_weight_decay: Whether to log the weight decay, under the name with "-weight_decay".

    Attributes:
        lrs: The logged rates by name, the latest 5,000 to 10,000 of each.
        last_momentum_values: The latest momentum by name; None before it is logged.
        last_weight_decay_values: The latest weight decay by name; None before it is logged.

    Raises:
        InvalidArgumentError: If `logging_interval` is none of the three; at the set-up of fit, if the trainer has no
            logger.
    """

    only_observes = True

    logging_interval: str | None = None
    log_momentum: bool = False
    log_weight_decay: bool = False
    lrs: dict[str, list[float]] = attrs.field(factory=dict, init=False)
    last_momentum_values: dict[str, float | None] = attrs.field(factory=dict, init=False)
    last_weight_decay_values: dict[str, float | None] = attrs.field(factory=dict, init=False)
    _schedule: LoggingSchedule = attrs.field(factory=LoggingSchedule, init=False)

    def __attrs_post_init__(self) -> None:
        check_one_of(self, ("step", "epoch", None), logging_interval=self.logging_interval)

    @property
    def state_key(self) -> str:
        """Class name and interval, which tell the states of two monitors apart."""
        return f"{type(self).__qualname__}(logging_interval={self.logging_interval!r})"

    def setup(self, trainer: TrainerProtocol, module: Any, stage: str) -> None:
        """Check that there is a logger, and forget an earlier run."""
        if stage == "fit":
            check_has_logger(trainer, self)
            self.lrs = {}

    def on_train_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Start the schedule, if anything is logged by steps."""
        logged = list(self._named_optimizers(trainer))
        if any(interval != "epoch" for _, _, interval in logged):
            self._schedule.start(trainer)
        else:
            self._schedule.stop()
        groups = (group for optimizer, _, _ in logged for group in optimizer.param_groups)
        if self.log_momentum and any(_momentum(group) is None for group in groups):
            told = "`log_momentum` is set, but an optimizer has no momentum: 0 is logged for it. Leave it out."
            warn_user(told, RuntimeWarning)
        names = [name for _, of_one in self._due_names(trainer, "any") for name in of_one]
        for name in names:
            self.lrs.setdefault(name, [])
        self.last_momentum_values = {f"{name}-momentum": None for name in names}
        self.last_weight_decay_values = {f"{name}-weight_decay": None for name in names}

    def on_train_epoch_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Log the rates that are logged by epochs."""
        if self.logging_interval != "step":
            self._log(trainer, "epoch")

    def on_train_batch_start(self, trainer: TrainerProtocol, module: Any, batch: Any, batch_idx: int) -> None:
        """Log the rates that are logged by steps, if due."""
        if trainer.global_step >= self._schedule.next_step:
            self._schedule.advance(trainer)
            self._log(trainer, "step")

    def state_dict(self) -> dict[str, Any]:
        """Return the rates so far, and the schedule."""
        lrs = {name: list(rates) for name, rates in self.lrs.items()}
        return {"lrs": lrs, "schedule": self._schedule.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore rates and schedule."""
        self.lrs = {name: list(rates) for name, rates in state_dict["lrs"].items()}
        self._schedule.load_state_dict(state_dict["schedule"])

    def _log(self, trainer: TrainerProtocol, interval: str) -> None:
        numbers = self._extract_stats(trainer, interval if self.logging_interval is None else "any")
        if numbers:
            log_to_all(trainer, numbers, trainer.global_step)

    def _due_names(self, trainer: TrainerProtocol, interval: str) -> Iterator[tuple[Any, list[str]]]:
        """Yield the optimizers of an interval, each with a name for each group."""
        taken: set[str] = set()
        for optimizer, name, its_interval in self._named_optimizers(trainer):
            names = _group_names(optimizer.param_groups, name, taken)
            if interval == "any" or its_interval in (interval, None):
                yield optimizer, names

    # methods that subclasses of Lightning's class override and call

    def _extract_stats(self, trainer: TrainerProtocol, interval: str) -> dict[str, float]:
        """Return, and note, the numbers of an interval: "step", "epoch", or "any"."""
        numbers: dict[str, float] = {}
        for optimizer, names in self._due_names(trainer, interval):
            numbers |= self._get_optimizer_stats(optimizer, names)
        if isinstance(trainer.callback_metrics, dict):
            trainer.callback_metrics.update({name: torch.tensor(number) for name, number in numbers.items()})
        return numbers

    def _get_optimizer_stats(self, optimizer: Any, names: list[str]) -> dict[str, float]:
        numbers: dict[str, float] = {}
        for group, name in zip(optimizer.param_groups, names, strict=True):
            numbers |= self._extract_lr(group, name)
            numbers |= self._extract_momentum(group, f"{name}-momentum", "betas" in group)
            numbers |= self._extract_weight_decay(group, f"{name}-weight_decay")
        return numbers

    def _extract_lr(self, param_group: dict[str, Any], name: str) -> dict[str, float]:
        """Return the rate. Waits for the device of one that is a tensor."""
        rate = float(param_group["lr"]) if "lr" in param_group else math.nan
        single = name.removesuffix("/pg1")
        if single != name and name not in self.lrs and single in self.lrs:
            self.lrs[name] = self.lrs.pop(single)  # the only group has got company
        rates = self.lrs.setdefault(name, [])
        if len(rates) == _MAX_RATES:
            del rates[: _MAX_RATES // 2]
        rates.append(rate)
        return {name: rate}

    def _extract_momentum(self, param_group: dict[str, Any], name: str, use_betas: bool) -> dict[str, float]:
        if not self.log_momentum:
            return {}
        momentum = self.last_momentum_values[name] = _momentum(param_group) or 0.0
        return {name: momentum}

    def _extract_weight_decay(self, param_group: dict[str, Any], name: str) -> dict[str, float]:
        if not self.log_weight_decay or "weight_decay" not in param_group:
            return {}
        decay = self.last_weight_decay_values[name] = float(param_group["weight_decay"])
        return {name: decay}

    def _named_optimizers(self, trainer: TrainerProtocol) -> Iterator[tuple[Any, str, str | None]]:
        """Yield each optimizer with the name and interval of each named scheduler, else with the name of its class.

        The interval is None where values are logged both by epochs and by steps.
        """
        for optimizer in trainer.optimizers:
            configs = [
                config
                for config in trainer.lr_scheduler_configs
                if getattr(getattr(config.scheduler, "optimizer", None), "param_groups", None) is optimizer.param_groups
            ]
            named = [(config.name, config.interval) for config in configs if config.name is not None]
            if not named:
                intervals = {config.interval for config in configs}
                inner = getattr(optimizer, "optimizer", optimizer)  # wrapped by a strategy
                named = [(f"lr-{type(inner).__name__}", "step" if "step" in intervals else next(iter(intervals), None))]
            for name, interval in named:
                yield optimizer, name, self.logging_interval or interval


def _group_names(groups: list[dict[str, Any]], name: str, taken: set[str]) -> list[str]:
    """Return a unique name for each group."""
    name = _unique_name(name, taken)
    if len(groups) == 1 and groups[0].get("name") is None:
        return [name]
    own: set[str] = set()
    suffixes = [str(group.get("name") or f"pg{number}") for number, group in enumerate(groups, 1)]
    return [f"{name}/{_unique_name(suffix, own)}" for suffix in suffixes]


def _unique_name(name: str, taken: set[str]) -> str:
    """Return a name, with a number if it is taken already."""
    unique, number = name, 0
    while unique in taken:
        number += 1
        unique = f"{name}-{number}"
    taken.add(unique)
    return unique


def _momentum(group: dict[str, Any]) -> float | None:
    """Return the momentum of a group; None if its optimizer has none."""
    if "betas" in group:
        return float(group["betas"][0])
    return float(group["momentum"]) if "momentum" in group else None

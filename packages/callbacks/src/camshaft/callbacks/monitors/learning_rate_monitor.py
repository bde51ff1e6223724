"""Logging the learning rates."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from camshaft.callbacks.arguments import InvalidArgumentError
from camshaft.callbacks.monitors.logging_schedule import LoggingSchedule, check_has_logger
from camshaft.hooks_core import Callback
from camshaft.hooks_core.user_warnings import warn_user

if TYPE_CHECKING:
    from camshaft.hooks_core.protocols import TrainerProtocol


_NUM_KEPT = 10_000

_OWN_NAMES = "Name the schedulers and groups with `name`, or log the values in a callback of your own."


class LearningRateMonitor(Callback):
    """Logs the learning rate of every optimizer and parameter group, with a scheduler or without.

    A value belongs to the update that it is about to make, of which it has the index, as have the values that the
    module logs in that step. Values of steps are logged every `trainer.log_every_n_steps` updates.

    A rate has the `name` of its scheduler's configuration, or "lr-" and the optimizer's class, as in "lr-Adam". Of
    several groups each adds its own "name", or its number: "lr-Adam/pg1". Equal names are told apart: "lr-Adam-1".

    Args:
        logging_interval: "step" logs before updates, "epoch" at the start of each epoch. None goes by each scheduler's
            own interval, and takes "step" for what has none.
        log_momentum: Whether to log the momentum, or the first of the betas, under the name with "-momentum".
        log_weight_decay: Whether to log the weight decay, under the name with "-weight_decay".

    Raises:
        InvalidArgumentError: If `logging_interval` is none of the three; at the set-up of fit, if the trainer has no
            logger.
    """

    _uncalled_methods: ClassVar[Mapping[str, str]] = {
        "_add_prefix": _OWN_NAMES,
        "_add_suffix": _OWN_NAMES,
        "_check_duplicates_and_update_name": _OWN_NAMES,
        "_duplicate_param_group_names": _OWN_NAMES,
        "_extract_lr": _OWN_NAMES,
        "_extract_momentum": _OWN_NAMES,
        "_extract_stats": _OWN_NAMES,
        "_extract_weight_decay": _OWN_NAMES,
        "_find_names_from_optimizers": _OWN_NAMES,
        "_find_names_from_schedulers": _OWN_NAMES,
        "_get_optimizer_stats": _OWN_NAMES,
        "_remap_keys": _OWN_NAMES,
    }

    def __init__(
        self, logging_interval: str | None = None, log_momentum: bool = False, log_weight_decay: bool = False
    ) -> None:
        if logging_interval not in (None, "step", "epoch"):
            where, action = type(self).__name__, "Pass one of these."
            raise InvalidArgumentError("logging_interval", "'step', 'epoch' or None", logging_interval, where, action)
        self.logging_interval = logging_interval
        self.log_momentum = log_momentum
        self.log_weight_decay = log_weight_decay
        self._schedule = LoggingSchedule()
        self._rates: dict[str, deque[float]] = {}

    @property
    def lrs(self) -> dict[str, list[float]]:
        """The rates that were logged, by name: the latest 10 000 of each."""
        return {name: list(rates) for name, rates in self._rates.items()}

    @property
    def state_key(self) -> str:
        """Class name and interval: two of these in one trainer keep their memory apart."""
        return f"{type(self).__qualname__}(logging_interval={self.logging_interval!r})"

    def setup(self, trainer: TrainerProtocol, module: Any, stage: str) -> None:
        """Look whether there is a logger."""
        if stage == "fit":
            check_has_logger(trainer, type(self).__name__)

    def on_train_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Find out what there is to log, and when."""
        logged = [(optimizer, interval) for optimizer, _, interval in self._named_optimizers(trainer)]
        if any(interval == "step" for _, interval in logged):
            self._schedule.start(trainer)
        else:
            self._schedule.stop()
        optimizers = [optimizer for optimizer, _ in logged]
        if self.log_momentum and not any(_momentum(group) is not None for one in optimizers for group in _groups(one)):
            warn_user("`log_momentum` is set, but no optimizer has a momentum: none is logged.")

    def on_train_epoch_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Log what goes by epochs."""
        if self.logging_interval != "step":
            self._log(trainer, "epoch")

    def on_train_batch_start(self, trainer: TrainerProtocol, module: Any, batch: Any, batch_idx: int) -> None:
        """Log what goes by steps, if it is due."""
        if trainer.global_step >= self._schedule.next_step:
            self._schedule.advance(trainer)
            self._log(trainer, "step")

    def state_dict(self) -> dict[str, Any]:
        """The rates so far, and when they are logged next."""
        return {"lrs": self.lrs, "schedule": self._schedule.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        self._rates = {name: deque(rates, _NUM_KEPT) for name, rates in state_dict["lrs"].items()}
        self._schedule.load_state_dict(state_dict["schedule"])

    def _log(self, trainer: TrainerProtocol, interval: str) -> None:
        numbers: dict[str, float] = {}
        taken: set[str] = set()
        for optimizer, name, its_interval in self._named_optimizers(trainer):
            is_due = its_interval == interval
            for group, group_name in _named_groups(optimizer, name, taken):
                if is_due:
                    numbers |= self._read(group, group_name)
        if numbers:
            for logger in trainer.loggers:
                logger.log_metrics(metrics=numbers, step=trainer.global_step)

    def _read(self, group: dict[str, Any], name: str) -> dict[str, float]:
        """The numbers of a group; a rate that is a tensor on a device is waited for."""
        rate = float(group["lr"]) if "lr" in group else math.nan
        self._rates.setdefault(name, deque(maxlen=_NUM_KEPT)).append(rate)
        numbers = {name: rate}
        momentum = _momentum(group) if self.log_momentum else None
        if momentum is not None:
            numbers[f"{name}-momentum"] = momentum
        if self.log_weight_decay and "weight_decay" in group:
            numbers[f"{name}-weight_decay"] = float(group["weight_decay"])
        return numbers

    def _named_optimizers(self, trainer: TrainerProtocol) -> Iterator[tuple[Any, str, str]]:
        """Each optimizer with the name and interval of each scheduler that was named; else with its class's name."""
        for optimizer in trainer.optimizers:
            groups = _groups(optimizer)
            configs = [
                config
                for config in trainer.lr_scheduler_configs
                if getattr(getattr(config.scheduler, "optimizer", None), "param_groups", None) is groups
            ]
            named = [(config.name, config.interval) for config in configs if config.name is not None]
            if not named:
                in_steps = not configs or any(config.interval == "step" for config in configs)
                inner = getattr(optimizer, "optimizer", optimizer)  # of what a strategy has wrapped
                named = [(f"lr-{type(inner).__name__}", "step" if in_steps else "epoch")]
            for name, interval in named:
                yield optimizer, name, self.logging_interval or interval


def _groups(optimizer: Any) -> list[dict[str, Any]]:
    groups: list[dict[str, Any]] = optimizer.param_groups
    return groups


def _named_groups(optimizer: Any, name: str, taken: set[str]) -> Iterable[tuple[dict[str, Any], str]]:
    """Each group with a name that none has yet."""
    groups = _groups(optimizer)
    name = _untaken(name, taken)
    if len(groups) == 1 and groups[0].get("name") is None:
        return [(groups[0], name)]
    own: set[str] = set()
    suffixes = [str(group.get("name") or f"pg{number}") for number, group in enumerate(groups, 1)]
    return [(group, f"{name}/{_untaken(suffix, own)}") for group, suffix in zip(groups, suffixes, strict=True)]


def _untaken(name: str, taken: set[str]) -> str:
    """The name, or with the first number that makes it a new one."""
    untaken, number = name, 0
    while untaken in taken:
        number += 1
        untaken = f"{name}-{number}"
    taken.add(untaken)
    return untaken


def _momentum(group: dict[str, Any]) -> float | None:
    """The momentum of a group; None if its optimizer knows none."""
    if "betas" in group:
        return float(group["betas"][0])
    return float(group["momentum"]) if "momentum" in group else None

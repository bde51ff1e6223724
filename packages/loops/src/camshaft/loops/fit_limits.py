"""How long a fit may run and how often it validates, checked when it is constructed."""

from __future__ import annotations

import copy
from typing import Any

import attrs

from camshaft.hooks_core.messages import must_be
from camshaft.loops.argument_checks import WHERE, at_least
from camshaft.loops.evaluation import check_limit
from camshaft.loops.time_limit import to_seconds

DEFAULT_MAX_EPOCHS = 1000


@attrs.frozen(kw_only=True)
class FitLimits:
    """The numbers that steer a fit.

    Args:
        max_epochs: Epochs to train in all; -1 for no limit. None means 1000, or no limit if `max_steps` or `max_time`
            sets one.
        min_epochs: Epochs that `should_stop` cannot cut short.
        max_steps: Optimizer updates to train in all; -1 for no limit. It is looked at after every batch: the batch in
            which it is reached is finished, and if it is split, its other splits make updates beyond the limit.
        min_steps: Updates that `should_stop` cannot cut short.
        max_time: How long to train in all, resumed parts included: "DD:HH:MM:SS", a `timedelta`, a dictionary of its
            arguments; None for no limit. When it is over training stops after the batch, but not before `min_epochs`
            and `min_steps`.
        limit_train_batches: How much of an epoch to take: an int is a number of batches, a float a share.
        overfit_batches: If not 0, how much of an epoch to take instead: the same batches in every epoch, without
            shuffling; validation takes at most as much of its loaders. Streams, and loaders that are no `DataLoader`,
            are taken as they come.
        val_check_interval: How often to validate: a float is a share of an epoch, an int a number of batches.
        check_val_every_n_epoch: In which epochs to validate; None counts `val_check_interval` (an int then) across
            epochs.
        num_sanity_val_steps: Validation batches of each loader to try before training; -1 tries all.
        reload_dataloaders_every_n_epochs: Ask for the training loader again once so many epochs have passed since it
            was asked for, and for those of validation likewise, before a validation; 0 asks once. Loaders that were
            passed are kept.

    Raises:
        TypeError, ValueError: If a number is of the wrong type or out of range, or two contradict each other.
    """

    max_epochs: int | None = attrs.field(default=None, validator=at_least(-1, optional=True))
    min_epochs: int | None = attrs.field(default=None, validator=at_least(0, optional=True))
    max_steps: int = attrs.field(default=-1, validator=at_least(-1))
    min_steps: int | None = attrs.field(default=None, validator=at_least(0, optional=True))
    max_time: Any = None
    limit_train_batches: int | float = 1.0
    overfit_batches: int | float = 0.0
    val_check_interval: int | float = 1.0
    check_val_every_n_epoch: int | None = attrs.field(default=1, validator=at_least(1, optional=True))
    num_sanity_val_steps: int = attrs.field(default=2, validator=at_least(-1))
    reload_dataloaders_every_n_epochs: int = attrs.field(default=0, validator=at_least(0))
    max_seconds: float | None = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._check_each()
        self.check_together()

    def with_number(self, name: str, value: Any) -> FitLimits:
        """Return the same limits but for one number, which may contradict another until `check_together` is called.

        So several can be changed one after the other.

        Raises:
            TypeError, ValueError: If the number is of the wrong type or out of range.
        """
        changed = copy.copy(self)
        object.__setattr__(changed, name, value)
        attrs.validate(changed)
        changed._check_each()
        return changed

    def check_together(self) -> None:
        """Raise `TypeError` or `ValueError` if two of the numbers contradict each other."""
        if self.overfit_batches and self.limit_train_batches != 1.0:
            rule = "left out with overfit_batches, which sets it"
            action = "Leave one of the two out."
            raise ValueError(must_be("limit_train_batches", rule, self.limit_train_batches, WHERE, action))
        self._check_minimum("epochs", self.min_epochs, self.epoch_limit)
        self._check_minimum("steps", self.min_steps, self.step_limit)
        if self.check_val_every_n_epoch is None and isinstance(self.val_check_interval, float):
            rule = "an int if check_val_every_n_epoch is None, since it counts batches across epochs"
            raise TypeError(must_be("val_check_interval", rule, self.val_check_interval, WHERE, "Pass an int."))

    @property
    def train_limit(self) -> tuple[int | float, str]:
        """How much of a training epoch to take, and the argument that says so."""
        if self.overfit_batches:
            return self.overfit_batches, "overfit_batches"
        return self.limit_train_batches, "limit_train_batches"

    @property
    def epoch_limit(self) -> float:
        """The largest number of epochs."""
        if self.max_epochs is None:
            has_other_limit = self.max_steps != -1 or self.max_time is not None
            return float("inf") if has_other_limit else DEFAULT_MAX_EPOCHS
        return float("inf") if self.max_epochs == -1 else self.max_epochs

    @property
    def step_limit(self) -> float:
        """The largest number of updates."""
        return float("inf") if self.max_steps == -1 else self.max_steps

    def validates_in(self, epoch: int) -> bool:
        """Return whether validation may be due in an epoch."""
        return self.check_val_every_n_epoch is None or (epoch + 1) % self.check_val_every_n_epoch == 0

    def batches_between_validations(self, num_batches: int | float) -> int | float:
        """After how many batches validation is due; infinity stands for the end of the epoch.

        Raises:
            ValueError: If the interval is longer than an epoch, or a share of an epoch of unknown length.
        """
        interval = self.val_check_interval
        if isinstance(interval, int):
            if self.check_val_every_n_epoch is not None and interval > num_batches:
                rule = f"at most the epoch's {num_batches} batches"
                action = "Pass a smaller one, or check_val_every_n_epoch=None to count batches across epochs."
                raise ValueError(must_be("val_check_interval", rule, interval, WHERE, action))
            return interval
        if interval == 1.0:
            return float("inf")
        if num_batches == float("inf"):
            rule = "1.0 or an int for a loader of unknown length"
            raise ValueError(must_be("val_check_interval", rule, interval, WHERE, "Pass an int."))
        return max(1, int(num_batches * interval + 1e-9))  # 0.29 * 100 is a little less than 29

    def _check_each(self) -> None:
        object.__setattr__(self, "max_seconds", to_seconds(self.max_time, WHERE))
        check_limit("limit_train_batches", self.limit_train_batches)
        check_limit("overfit_batches", self.overfit_batches)
        check_limit("val_check_interval", self.val_check_interval)
        if self.val_check_interval == 0:
            action = "To train without validation, pass limit_val_batches=0."
            raise ValueError(must_be("val_check_interval", "above 0", self.val_check_interval, WHERE, action))

    def _check_minimum(self, what: str, minimum: int | None, maximum: float) -> None:
        if minimum is not None and minimum > maximum:
            rule = f"at most max_{what} ({maximum})"
            raise ValueError(must_be(f"min_{what}", rule, minimum, WHERE, "Pass a smaller one."))

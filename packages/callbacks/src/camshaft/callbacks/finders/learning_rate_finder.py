"""Finding a learning rate by a range test before training."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, cast

from torch import Tensor

from camshaft.callbacks.arguments import InvalidArgumentError, check_installed
from camshaft.callbacks.finders.trials import (
    SearchBeforeFit,
    TrialSteps,
    endless,
    find_attribute,
    mean_of_ranks,
    put_back,
    set_attribute,
)
from camshaft.hooks_core.user_warnings import warn_user

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from camshaft.hooks_core.protocols import TrainerProtocol


_MODES = ("exponential", "linear")
_SMOOTHING = 0.98  # of the running mean of losses
_NAMES = ("lr", "learning_rate")


class LearningRateFinder(SearchBeforeFit):
    """Trains a few steps with growing learning rates when a fit starts, and begins with the rate that suits best.

    The test follows Smith, "Cyclical Learning Rates for Training Neural Networks" (2017), section 3.3. It leaves no
    trace but the rate: weights, buffers, optimizer, random numbers, the order of the data and what was logged are as
    if it had not been, to the bit. It runs once, at the start of a fit; a fit that resumes from a checkpoint takes the
    rate over from it and does not search. With several processes all try the same rates, and the mean of their losses
    counts. Under `fast_dev_run` it does nothing.

    The rate becomes the base of the optimizer: groups keep their proportions to each other (the largest gets the
    rate), and schedulers follow, so that a warm-up leads to it.

    Args:
        min_lr: Rate to begin with; positive.
        max_lr: Rate to end with; larger.
        num_training_steps: How many rates to try, one update each, of `accumulate_grad_batches` batches. The training
            loader is read as often as that needs.
        mode: Whether rates grow by a factor ("exponential") or by a summand ("linear").
        early_stop_threshold: The search ends where the smoothed loss is so many times the best so far, or not finite;
            None tries all rates.
        update_attr: Whether to use the suggestion: set the attribute, and the optimizer's rate. False only searches.
        attr_name: Attribute or hyperparameter of the module that keeps the rate; "" takes `lr` or `learning_rate`.
        skip_begin: How many of the first rates the suggestion leaves out; see `LearningRateCurve.suggestion`.
        skip_end: How many of the last.

    Attributes:
        optimal_lr: The `LearningRateCurve` that was found; None before.
        suggested_lr: What it suggests; None before, or if it suggests nothing.

    Raises:
        InvalidArgumentError: If an argument is out of range; in `setup`, if the module optimizes by hand or keeps no
            rate under the name; when the fit starts, if there is not exactly one optimizer.
    """

    def __init__(
        self,
        min_lr: float = 1e-8,
        max_lr: float = 1,
        num_training_steps: int = 100,
        mode: str = "exponential",
        early_stop_threshold: float | None = 4.0,
        update_attr: bool = True,
        attr_name: str = "",
        *,
        skip_begin: int = 10,
        skip_end: int = 1,
    ) -> None:
        where = type(self).__name__
        for field, value, rule, holds in (
            ("min_lr", min_lr, "positive", min_lr > 0),
            ("max_lr", max_lr, f"above `min_lr` ({min_lr})", max_lr > min_lr),
            ("num_training_steps", num_training_steps, "at least 2", num_training_steps >= 2),
            ("mode", mode, "'exponential' or 'linear'", mode in _MODES),
            ("early_stop_threshold", early_stop_threshold, "above 1, or None", (early_stop_threshold or 2) > 1),
            ("skip_begin", skip_begin, "at least 0", skip_begin >= 0),
            ("skip_end", skip_end, "at least 0", skip_end >= 0),
        ):
            if not holds:
                raise InvalidArgumentError(field, rule, value, where, "Pass such a value, or leave it out.")
        self.min_lr = min_lr
        self.max_lr = max_lr
        self.num_training_steps = num_training_steps
        self.mode = cast(SearchMode, mode)
        self.early_stop_threshold = early_stop_threshold
        self.update_attr = update_attr
        self.attr_name = attr_name
        self.skip_begin = skip_begin
        self.skip_end = skip_end
        self.optimal_lr: LearningRateCurve | None = None
        self.suggested_lr: float | None = None

    def lr_find(self, trainer: TrainerProtocol, module: Any) -> LearningRateCurve:
        """Search now, and use the suggestion if `update_attr` says so. Collective.

        A subclass may call it before any epoch, from `on_train_epoch_start`.

        Returns:
            What was found; also as `optimal_lr`.

        Raises:
            InvalidArgumentError: If the module optimizes by hand, or has not exactly one optimizer.
            RuntimeError: While a batch is trained.
        """
        steps = TrialSteps(trainer, module, type(self).__name__)
        self.optimal_lr = curve = self._search(trainer, module, steps)
        self.suggested_lr = rate = curve.suggestion(self.skip_begin, self.skip_end)
        if not self.update_attr:
            return curve
        if rate is None:
            num_tried = len(curve.results["lr"])
            warn_user(
                f"{type(self).__name__} found no learning rate at which the loss falls, among {num_tried} tried. "
                "The rate stays as it was. Try more rates, or others."
            )
            return curve
        set_attribute([module], self._attribute(module), rate)
        scale_to(steps.optimizer, [config.scheduler for config in trainer.lr_scheduler_configs], rate)
        return curve

    def state_dict(self) -> dict[str, Any]:
        """What was found."""
        results = None if self.optimal_lr is None else {k: list(v) for k, v in self.optimal_lr.results.items()}
        return {"suggested_lr": self.suggested_lr, "mode": self.mode, "results": results}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Have found the same."""
        results = state_dict["results"]
        self.optimal_lr = None if results is None else LearningRateCurve(state_dict["mode"], results)
        self.suggested_lr = state_dict["suggested_lr"]

    def _check_attribute(self, trainer: TrainerProtocol, module: Any) -> None:
        if self.update_attr:
            self._attribute(module)

    def _take_over(self, trainer: TrainerProtocol, module: Any, state: dict[str, Any]) -> None:
        if state["suggested_lr"] is not None and self.update_attr:
            set_attribute([module], self._attribute(module), state["suggested_lr"])

    def _find(self, trainer: TrainerProtocol, module: Any) -> None:
        self.lr_find(trainer, module)

    def _search(self, trainer: TrainerProtocol, module: Any, steps: TrialSteps) -> LearningRateCurve:
        bases = base_rates(steps.optimizer)
        tried: list[float] = []
        losses: list[float] = []
        smoothed = _SmoothedLoss()
        length = trainer.accumulate_grad_batches
        with trainer.trial() as batches, put_back(module, [steps.optimizer], trainer.strategy):
            given = endless(batches)
            for step_idx, rate in enumerate(self._rates()):
                window = list(islice(given, length))
                if not window:
                    break
                set_rates(steps.optimizer, rates_in_proportion(bases, rate))
                loss = mean_of_ranks(trainer.strategy, steps.run(window, step_idx * length))
                tried.append(rate)
                losses.append(math.nan if loss is None else smoothed.add(loss))
                if loss is not None and smoothed.diverges(self.early_stop_threshold):
                    break
        return LearningRateCurve(self.mode, {"lr": tried, "loss": losses})

    def _rates(self) -> Iterator[float]:
        last = self.num_training_steps - 1
        for step_idx in range(self.num_training_steps):
            share = step_idx / last
            if self.mode == "exponential":
                yield self.min_lr * (self.max_lr / self.min_lr) ** share
            else:
                yield self.min_lr + (self.max_lr - self.min_lr) * share

    def _attribute(self, module: Any) -> str:
        names = (self.attr_name,) if self.attr_name else _NAMES
        return find_attribute([module], names, "attr_name", type(self).__name__)


class _SmoothedLoss:
    """A running mean of losses, corrected for its beginning at 0, and the best that it was."""

    def __init__(self) -> None:
        self._mean = 0.0
        self._num_losses = 0
        self._latest = self._best = math.inf

    def add(self, loss: float) -> float:
        """Take a loss in. Returns the mean."""
        self._best = min(self._best, self._latest)
        self._num_losses += 1
        self._mean = _SMOOTHING * self._mean + (1 - _SMOOTHING) * loss
        self._latest = self._mean / (1 - _SMOOTHING**self._num_losses)
        return self._latest

    def diverges(self, threshold: float | None) -> bool:
        """Whether the latest is not finite, or so many times the best before it; never without a threshold."""
        if threshold is None:
            return False
        if not math.isfinite(self._latest):
            return True
        # as `latest > threshold * best`, also where losses are negative
        return self._latest > self._best + (threshold - 1) * abs(self._best)


_OF_GROUPS = ("lr", "initial_lr", "max_lr", "min_lr")
_OF_SCHEDULERS = ("base_lrs", "max_lrs", "_last_lr")


def base_rates(optimizer: Any) -> list[float]:
    """The rate that each group's schedule is built on: its peak, else what it starts from, else the group's own."""
    return [
        float(next(group[name] for name in ("max_lr", "initial_lr", "lr") if group.get(name) is not None))
        for group in optimizer.param_groups
    ]


def rates_in_proportion(bases: Sequence[float], rate: float) -> list[float]:
    """A rate for each group: `rate` for the largest base, and others in proportion to it; all alike if all are 0."""
    largest = max(bases)
    return [rate if base == largest else rate * (base / largest) for base in bases]


def set_rates(optimizer: Any, rates: Sequence[float]) -> None:
    """Let each group learn with a rate, whatever is scheduled."""
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        _assign(group, "lr", rate)


def scale_to(optimizer: Any, schedulers: Sequence[Any], rate: float) -> None:
    """Make a rate the base of the groups, and let everything that was built on the former bases follow.

    The group with the largest base gets the rate, others stay in proportion. A group's current rate, which a scheduler
    may have lowered already, its peak and its end, and the bases of schedulers, are scaled alike. What a scheduler has
    as an absolute rate of its own, such as `eta_min`, stays.

    Args:
        optimizer: The optimizer.
        schedulers: Its schedulers; those within others follow too.
        rate: The rate.
    """
    bases = base_rates(optimizer)
    targets = rates_in_proportion(bases, rate)
    for group, base, target in zip(optimizer.param_groups, bases, targets, strict=True):
        for name in _OF_GROUPS:
            if group.get(name) is not None:
                _assign(group, name, _scaled(float(group[name]), base, target))
    for scheduler in _flat(schedulers):
        for name in _OF_SCHEDULERS:
            values = getattr(scheduler, name, None)
            if isinstance(values, list) and len(values) == len(bases):
                triples = zip(values, bases, targets, strict=True)
                setattr(scheduler, name, [_scaled(float(value), base, target) for value, base, target in triples])


def _scaled(value: float, base: float, target: float) -> float:
    return target if value == base or base == 0 else value * (target / base)


def _assign(group: dict[str, Any], name: str, value: float) -> None:
    """In place where the rate is a tensor, which a compiled or captured step reads."""
    if isinstance(group[name], Tensor):
        group[name].fill_(value)
    else:
        group[name] = value


def _flat(schedulers: Sequence[Any]) -> Iterator[Any]:
    for scheduler in schedulers:
        yield scheduler
        yield from _flat(getattr(scheduler, "_schedulers", ()))


SearchMode = Literal["exponential", "linear"]


class LearningRateCurve:
    """The losses by learning rate, and what they suggest.

    Args:
        mode: How the rates were spaced: "exponential" or "linear".
        results: "lr", the rates, and "loss", the smoothed loss at each.

    Attributes:
        mode: The same.
        results: The same.
    """

    def __init__(self, mode: SearchMode, results: dict[str, list[float]]) -> None:
        self.mode = mode
        self.results = results

    def suggestion(self, skip_begin: int = 10, skip_end: int = 1) -> float | None:
        """The rate at which the loss falls most steeply before it is lowest, on the scale of the search: logarithmic if
        that is exponential.

        Args:
            skip_begin: How many rates to leave out at the beginning, where the mean of losses settles.
            skip_end: How many at the end, where the loss diverges.

        Returns:
            The rate; None if fewer than two finite losses are left, or the loss falls nowhere among them.

        Raises:
            InvalidArgumentError: If a number is negative.
        """
        idx = self._suggested_idx(skip_begin, skip_end)
        return None if idx is None else self.results["lr"][idx]

    def plot(
        self,
        suggest: bool = False,
        show: bool = False,
        ax: Axes | None = None,
        skip_begin: int = 10,
        skip_end: int = 1,
    ) -> Figure:
        """Draw the loss over the learning rate.

        Args:
            suggest: Whether to mark the suggested rate.
            show: Whether to open a window; needs an interactive backend.
            ax: Where to draw; None makes a figure.
            skip_begin: As in `suggestion`.
            skip_end: As in `suggestion`.

        Returns:
            The figure.

        Raises:
            ModuleNotFoundError: If matplotlib is not installed.
        """
        check_installed("matplotlib", "plot", f"{type(self).__name__}.plot")
        from matplotlib import pyplot

        if ax is None:
            _, ax = pyplot.subplots()
        rates, losses = self.results["lr"], self.results["loss"]
        ax.plot(rates, losses)
        if self.mode == "exponential":
            ax.set_xscale("log")
        ax.set_xlabel("learning rate")
        ax.set_ylabel("training loss, smoothed")
        idx = self._suggested_idx(skip_begin, skip_end) if suggest else None
        if idx is not None:
            ax.plot([rates[idx]], [losses[idx]], marker="o", markersize=8, color="red", linestyle="none")
            ax.annotate(f"{rates[idx]:.3g}", (rates[idx], losses[idx]), textcoords="offset points", xytext=(8, 8))
        if show:
            pyplot.show()
        figure: Figure = ax.figure  # type: ignore[assignment]
        return figure

    def _suggested_idx(self, skip_begin: int, skip_end: int) -> int | None:
        for field, value in (("skip_begin", skip_begin), ("skip_end", skip_end)):
            if value < 0:
                raise InvalidArgumentError(field, "at least 0", value, "suggestion", "Pass 0 to skip none.")
        rates, losses = self.results["lr"], self.results["loss"]
        idxs = [idx for idx in range(skip_begin, len(losses) - skip_end) if math.isfinite(losses[idx])]
        if len(idxs) < 2:
            return None
        places = [math.log(rates[idx]) if self.mode == "exponential" else rates[idx] for idx in idxs]
        values = [losses[idx] for idx in idxs]
        last = len(idxs) - 1
        around = [(max(at - 1, 0), min(at + 1, last)) for at in range(last + 1)]
        slopes = [(values[after] - values[before]) / (places[after] - places[before]) for before, after in around]
        lowest = min(range(last + 1), key=values.__getitem__)  # where a loss falls later, it has diverged before
        steepest = min(range(lowest + 1), key=slopes.__getitem__)
        return idxs[steepest] if slopes[steepest] < 0 else None

"""Callback that finds a learning rate by a range test before training."""

import math
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import attrs

from camshaft.callbacks.arguments import check_installed, check_number, check_one_of
from camshaft.callbacks.finders.trials import (
    SearchBeforeFit,
    TrialSteps,
    endless,
    find_attribute,
    mean_of_ranks,
    restored,
    set_attribute,
)
from camshaft.callbacks.param_groups import base_rates, rates_in_proportion, scale_to, set_rates
from camshaft.hooks_core.protocols import TrainerProtocol
from camshaft.hooks_core.support.messages import warn_user

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_SMOOTHING = 0.98  # of the running mean of losses
_DEFAULT_NAMES = ("lr", "learning_rate")


@attrs.define(slots=False, eq=False, repr=False)
class LearningRateFinder(SearchBeforeFit):
    """Trains a few steps with growing learning rates when a fit starts, and starts with the suggested rate.

    The test follows Smith, "Cyclical Learning Rates for Training Neural Networks" (2017), section 3.3. It changes
    nothing but the rate: weights, buffers, optimizer, random numbers, the order of the data and logged values are
    restored bit for bit. It runs once, at the start of a fit; a resumed fit takes the rate from the checkpoint and does
    not search. All ranks try the same rates, and the mean of their losses counts. Under `fast_dev_run` it does nothing.

    The rate becomes the base of the optimizer: groups keep their proportions to each other (the largest gets the
    rate), and schedulers are scaled, so that a warm-up leads to it.

    Args:
        min_lr: First rate; positive.
        max_lr: Last rate; larger.
        num_training_steps: Number of rates to try, one update each, of `accumulate_grad_batches` batches. The training
            loader is read as often as needed.
        mode: Whether rates grow by a factor ("exponential") or by a summand ("linear").
        early_stop_threshold: The search ends when the smoothed loss exceeds the best so far by this factor, or is not
            finite; None tries all rates.
        update_attr: Whether to use the suggestion: set the attribute, and the optimizer's rate. False only searches.
        attr_name: Attribute or hyperparameter of the module for the rate; "" is `lr` or `learning_rate`.
        skip_begin: Number of first rates to leave out of the suggestion; see `LearningRateCurve.suggestion`.
        skip_end: Number of last rates to leave out.

    Attributes:
        optimal_lr: The `LearningRateCurve` of the search; None before.
        suggested_lr: The suggested rate; None before, or if there is no suggestion.

    Raises:
        InvalidArgumentError: If an argument is out of range; in `setup`, if the module optimizes manually or has no
            such attribute; when the fit starts, if there is not exactly one optimizer.
    """

    min_lr: float = 1e-8
    max_lr: float = 1
    num_training_steps: int = 100
    mode: str = "exponential"
    early_stop_threshold: float | None = 4.0
    update_attr: bool = True
    attr_name: str = ""
    skip_begin: int = attrs.field(default=10, kw_only=True)
    skip_end: int = attrs.field(default=1, kw_only=True)
    optimal_lr: "LearningRateCurve | None" = attrs.field(default=None, init=False)
    suggested_lr: float | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        check_number(self, above=0, min_lr=self.min_lr)
        check_number(self, "Pass a rate above `min_lr`.", above=self.min_lr, max_lr=self.max_lr)
        check_number(self, least=1, num_training_steps=self.num_training_steps)
        check_one_of(self, ("exponential", "linear"), mode=self.mode)
        check_number(self, above=1, or_none=True, early_stop_threshold=self.early_stop_threshold or None)
        check_number(self, least=0, skip_begin=self.skip_begin, skip_end=self.skip_end)

    def lr_find(self, trainer: TrainerProtocol, module: Any) -> "LearningRateCurve":
        """Search now, and use the suggestion if `update_attr` says so. Collective.

        A subclass may call it before any epoch, from `on_train_epoch_start`.

        Returns:
            The curve; also as `optimal_lr`.

        Raises:
            InvalidArgumentError: If the module optimizes manually, or there is not exactly one optimizer.
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
                "The rate stays as it was. Try more rates, or another range."
            )
            return curve
        set_attribute([module], self._attribute(module), rate)
        scale_to(steps.optimizer, [config.scheduler for config in trainer.lr_scheduler_configs], rate)
        return curve

    def state_dict(self) -> dict[str, Any]:
        """Return the suggestion and the curve."""
        results = None if self.optimal_lr is None else {k: list(v) for k, v in self.optimal_lr.results.items()}
        return {"suggested_lr": self.suggested_lr, "mode": self.mode, "results": results}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore suggestion and curve."""
        results = state_dict["results"]
        self.optimal_lr = None if results is None else self._curve(results)
        self.suggested_lr = state_dict["suggested_lr"]

    def _check_attribute(self, trainer: TrainerProtocol, module: Any) -> None:
        if self.update_attr:
            self._attribute(module)

    def _use_loaded(self, trainer: TrainerProtocol, module: Any, state: dict[str, Any]) -> None:
        if state["suggested_lr"] is not None and self.update_attr:
            set_attribute([module], self._attribute(module), state["suggested_lr"])

    def _run_search(self, trainer: TrainerProtocol, module: Any) -> None:
        self.lr_find(trainer, module)

    def _search(self, trainer: TrainerProtocol, module: Any, steps: TrialSteps) -> "LearningRateCurve":
        bases = base_rates(steps.optimizer)
        tried: list[float] = []
        losses: list[float] = []
        smoothed = self._smoothing()
        length = trainer.accumulate_grad_batches
        with trainer.trial() as batches, restored(module, [steps.optimizer], trainer.strategy):
            given = endless(batches, self._max_passes(trainer))
            for step_idx, rate in enumerate(self._rates()):
                window = list(islice(given, length))
                if not window:
                    break
                set_rates(steps.optimizer, self._rates_of_groups(bases, rate))
                loss = mean_of_ranks(trainer.strategy, steps.run(window, step_idx * length))
                tried.append(rate)
                losses.append(smoothed.add(loss))
                if loss is not None and smoothed.diverges(self.early_stop_threshold):
                    break
        return self._curve({"lr": tried, "loss": losses})

    def _rates(self) -> Iterator[float]:
        last = max(1, self.num_training_steps - 1)
        for step_idx in range(self.num_training_steps):
            yield self._rate_at(step_idx / last)

    def _rate_at(self, share: float) -> float:
        """Return the rate after a share of the search."""
        if self.mode == "exponential":
            return float(self.min_lr * (self.max_lr / self.min_lr) ** share)
        return self.min_lr + (self.max_lr - self.min_lr) * share

    # for finders that follow other rules

    def _max_passes(self, trainer: TrainerProtocol) -> float:
        """Return how often the training loader is read at most."""
        return math.inf

    def _rates_of_groups(self, bases: list[float], rate: float) -> list[float]:
        """Return the rate of each group in a step; `bases` are those before the search."""
        return rates_in_proportion(bases, rate)

    def _smoothing(self) -> "SmoothedLoss":
        return SmoothedLoss()

    def _curve(self, results: dict[str, list[float]]) -> "LearningRateCurve":
        return LearningRateCurve(self.mode, results, self.min_lr, self.max_lr, self.num_training_steps)

    def _attribute(self, module: Any) -> str:
        names = (self.attr_name,) if self.attr_name else _DEFAULT_NAMES
        return find_attribute([module], names, "attr_name", self)


@attrs.define(slots=False, eq=False, repr=False)
class LearningRateCurve:
    """The losses by learning rate, and the rate that they suggest.

    Args:
        mode: Spacing of the rates: "exponential" or "linear".
        results: "lr", the rates, and "loss", the smoothed loss at each.
        lr_min: First rate of the search; None if it is not known.
        lr_max: Last rate of the search if it does not end early; likewise.
        num_training: Number of rates that were to be tried; likewise.

    Attributes:
        mode, results, lr_min, lr_max, num_training: The arguments.
    """

    mode: str
    results: dict[str, list[float]]
    lr_min: float | None = None
    lr_max: float | None = None
    num_training: int | None = None

    def suggestion(self, skip_begin: int = 10, skip_end: int = 1) -> float | None:
        """Return the rate at which the loss falls most steeply before its minimum.

        The slope is that over the logarithm of the rate if the search is exponential.

        Args:
            skip_begin: Number of rates to leave out at the beginning, where the mean of losses settles.
            skip_end: Number of rates to leave out at the end, where the loss diverges.

        Returns:
            The rate; None if fewer than two finite losses are left, or the loss does not fall.

        Raises:
            InvalidArgumentError: If a number is negative.
        """
        idx = self._suggested_idx(skip_begin, skip_end)
        return None if idx is None else self.results["lr"][idx]

    def plot(
        self,
        suggest: bool = False,
        show: bool = False,
        ax: "Axes | None" = None,
        skip_begin: int = 10,
        skip_end: int = 1,
    ) -> "Figure":
        """Draw the loss over the learning rate.

        Args:
            suggest: Whether to mark the suggested rate.
            show: Whether to open a window; needs an interactive backend.
            ax: Axes to draw on; None makes a figure.
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
        check_number("suggestion", "Pass 0 to skip none.", least=0, skip_begin=skip_begin, skip_end=skip_end)
        rates, losses = self.results["lr"], self.results["loss"]
        idxs = [idx for idx in range(skip_begin, len(losses) - skip_end) if math.isfinite(losses[idx])]
        if len(idxs) < 2:
            return None
        places = [math.log(rates[idx]) if self.mode == "exponential" else rates[idx] for idx in idxs]
        values = [losses[idx] for idx in idxs]
        last = len(idxs) - 1
        around = [(max(at - 1, 0), min(at + 1, last)) for at in range(last + 1)]
        slopes = [(values[after] - values[before]) / (places[after] - places[before]) for before, after in around]
        lowest = min(range(last + 1), key=values.__getitem__)  # a loss that falls after it has diverged before
        steepest = min(range(lowest + 1), key=slopes.__getitem__)
        return idxs[steepest] if slopes[steepest] < 0 else None


class SmoothedLoss:
    """A running mean of losses, corrected for its start at 0, and its best value."""

    def __init__(self) -> None:
        self._mean = 0.0
        self._num_losses = 0
        self._latest = self._best = math.inf

    def add(self, loss: float | None) -> float:
        """Add the loss of a step. Return the mean; NaN if the step had none.

        Returns:
            The mean.
        """
        if loss is None:
            return math.nan
        self._best = min(self._best, self._latest)
        self._num_losses += 1
        self._mean = _SMOOTHING * self._mean + (1 - _SMOOTHING) * loss
        self._latest = self._mean / (1 - _SMOOTHING**self._num_losses)
        return self._latest

    def diverges(self, threshold: float | None) -> bool:
        """Return whether the latest mean is not finite, or exceeds the best before it by a factor; None never does."""
        if threshold is None:
            return False
        if not math.isfinite(self._latest):
            return True
        # `latest > threshold * best`, in a form that holds for negative losses too
        return self._latest > self._best + (threshold - 1) * abs(self._best)

"""Finders and `Tuner` by Lightning's rules: the rates that are tried, the smoothed loss, the suggestion."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, ClassVar

import torch

from camshaft.callbacks import BatchSizeFinder as _BatchSizeFinder
from camshaft.callbacks import LearningRateCurve
from camshaft.callbacks import LearningRateFinder as _LearningRateFinder
from camshaft.callbacks.finders.learning_rate_finder import SmoothedLoss
from camshaft.compat.names.stand_ins import StandIn
from camshaft.compat.names.utilities.functions import logger
from camshaft.hooks_core.support.messages import warn_user
from camshaft.trainer import Tuner as _Tuner

_SMOOTHING = 0.98


class LRFinder(LearningRateCurve):
    """The losses by learning rate, and the rate that they suggest as Lightning does: where the loss over the rate falls
    most steeply, or rises least.

    Args:
        mode: Spacing of the rates: "exponential" or "linear".
        lr_min, lr_max, num_training: First and last rate, and number of rates of the search.

    Attributes:
        results: "lr", the rates, and "loss", the smoothed loss at each.
    """

    def __init__(self, mode: Any, lr_min: float, lr_max: float, num_training: int) -> None:
        super().__init__(mode, {}, lr_min, lr_max, num_training)

    def _suggested_idx(self, skip_begin: int, skip_end: int) -> int | None:
        kept = slice(skip_begin, -skip_end)  # of 0 last ones nothing is left, as there
        found = [float(loss) for loss in self.results["loss"]]
        idxs = [idx for idx in range(len(found))[kept] if math.isfinite(found[idx])]
        if len(idxs) < 2:
            logger.error(
                "Failed to compute suggestion for learning rate because there are not enough points: "
                f"{len(idxs)} of {len(found)} are left. Try more rates, or pass more data."
            )
            return None
        losses = torch.tensor([found[idx] for idx in idxs])
        rates = torch.tensor([float(self.results["lr"][idx]) for idx in idxs])
        return idxs[int(torch.gradient(losses, spacing=[rates])[0].argmin())]


class _RunningLoss(SmoothedLoss):
    """Lightning's running mean: steps without a loss count, and the correction is that of one step more."""

    def __init__(self) -> None:
        super().__init__()
        self._mean = self._lowest = 0.0
        self._num_steps = 0

    def add(self, loss: float | None) -> float:
        """Add the loss of a step. Return the mean; NaN if the step had none."""
        self._num_steps += 1
        if loss is None:
            return math.nan
        self._mean = _SMOOTHING * self._mean + (1 - _SMOOTHING) * loss
        self._latest = self._mean / (1 - _SMOOTHING ** (self._num_steps + 1))
        self._before = self._lowest
        if self._latest < self._lowest or self._num_steps == 1:
            self._lowest = self._latest
        return self._latest

    def diverges(self, threshold: float | None) -> bool:
        """Return whether the latest mean exceeds the lowest before it by a factor; None never does."""
        return threshold is not None and self._num_steps > 1 and self._latest > threshold * self._before


class LearningRateFinder(_LearningRateFinder, metaclass=StandIn):
    """`camshaft.callbacks.LearningRateFinder` by Lightning's rules.

    All groups are tried with the same rate, and the data are read at most as often as there are epochs to train.
    """

    SUPPORTED_MODES: ClassVar[tuple[str, ...]] = ("linear", "exponential")

    def _rates(self) -> Iterator[float]:
        yield self.min_lr
        for step_idx in range(1, self.num_training_steps):
            yield self._rate_at((step_idx + 1) / self.num_training_steps)

    def _max_passes(self, trainer: Any) -> float:
        """As many as epochs are left to train."""
        return math.inf if trainer.max_epochs is None else max(1, trainer.max_epochs - trainer.current_epoch)

    def _rates_of_groups(self, bases: list[float], rate: float) -> list[float]:
        return [rate] * len(bases)

    def _smoothing(self) -> SmoothedLoss:
        return _RunningLoss()

    def _curve(self, results: dict[str, list[float]]) -> LearningRateCurve:
        curve = LRFinder(self.mode, self.min_lr, self.max_lr, self.num_training_steps)
        curve.results.update(results)
        return curve


class BatchSizeFinder(_BatchSizeFinder, metaclass=StandIn):
    """`camshaft.callbacks.BatchSizeFinder` by Lightning's rules: "binsearch" always leaves the margin."""

    SUPPORTED_MODES: ClassVar[tuple[str, ...]] = ("power", "binsearch")

    def setup(self, trainer: Any, module: Any, stage: str) -> None:
        """Check that trial steps are possible; warn outside of fit, where Lightning's callback searches as well."""
        super().setup(trainer, module, stage)
        if stage != "fit":
            warn_user(f"{type(self).__name__} searches in fit. Use Tuner(trainer).scale_batch_size(method={stage!r}).")

    def _choose(self, found: int | None, ran_out: bool) -> int:
        return super()._choose(found, ran_out=True)


class Tuner(_Tuner):
    """`camshaft.trainer.Tuner` by Lightning's rules."""

    learning_rate_finder: ClassVar[type[_LearningRateFinder]] = LearningRateFinder
    batch_size_finder: ClassVar[type[_BatchSizeFinder]] = BatchSizeFinder

"""What a range test of learning rates found."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from camshaft.callbacks.errors import InvalidArgumentError
from camshaft.callbacks.extras import check_installed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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

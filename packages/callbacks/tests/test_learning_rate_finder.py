from __future__ import annotations

import math
from pathlib import Path

import pytest

from camshaft.callbacks.arguments import InvalidArgumentError
from camshaft.callbacks.finders.learning_rate_finder import LearningRateCurve

pytest.importorskip("matplotlib").use("Agg")


def curve() -> LearningRateCurve:
    """Flat, steepest at 1e-3, and diverging from 1e-1 on."""
    rates = [10 ** (-6 + step / 10) for step in range(61)]
    losses = [2 - math.tanh(3 * (math.log10(rate) + 3)) + max(0.0, 40 * (rate - 0.1)) for rate in rates]
    return LearningRateCurve("exponential", {"lr": rates, "loss": losses})


def test_the_suggestion_is_where_the_loss_falls_most_steeply() -> None:
    assert curve().suggestion() == pytest.approx(1e-3)
    assert curve().suggestion(skip_begin=0, skip_end=0) == pytest.approx(1e-3)
    linear = LearningRateCurve("linear", {"lr": [0.1, 0.2, 0.3, 0.4, 0.5], "loss": [5.0, 4.9, 3.0, 1.1, 1.0]})
    assert linear.suggestion(0, 0) == 0.3


def test_a_fall_after_the_loss_has_diverged_suggests_nothing() -> None:
    rates, losses = [0.1, 0.2, 0.3, 0.4, 0.5], [2.0, 1.5, 9.0, 5.0, 3.0]
    assert LearningRateCurve("linear", {"lr": rates, "loss": losses}).suggestion(0, 0) == 0.1


def test_points_that_are_skipped_or_not_finite_do_not_count() -> None:
    found = curve()
    assert found.suggestion(skip_begin=35) == pytest.approx(found.results["lr"][35])
    found.results["loss"][30] = math.nan
    suggested = found.suggestion()
    assert suggested is not None and suggested != found.results["lr"][30]


@pytest.mark.parametrize("losses", [[], [1.0], [1.0, math.nan], [1.0, 1.0, 1.0], [1.0, 2.0, 3.0]])
def test_without_a_fall_there_is_no_suggestion(losses: list[float]) -> None:
    rates = [0.1 * (idx + 1) for idx in range(len(losses))]
    assert LearningRateCurve("linear", {"lr": rates, "loss": losses}).suggestion(0, 0) is None


def test_a_negative_number_of_points_is_an_error() -> None:
    with pytest.raises(InvalidArgumentError, match="`skip_end` must be 0 or more, but got -1"):
        curve().suggestion(skip_end=-1)


def test_the_plot_is_a_figure_with_the_curve_and_the_suggestion(tmp_path: Path) -> None:
    found = curve()
    figure = found.plot(suggest=True)
    (axes,) = figure.axes
    line, mark = axes.lines
    assert list(line.get_xdata()) == found.results["lr"] and list(line.get_ydata()) == found.results["loss"]
    assert list(mark.get_xdata()) == [found.suggestion()]
    assert axes.get_xscale() == "log"
    figure.savefig(tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert len(found.plot().axes[0].lines) == 1
    assert found.plot(ax=axes) is figure

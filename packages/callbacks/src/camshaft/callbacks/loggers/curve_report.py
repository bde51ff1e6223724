"""Logger that draws its metrics as pictures."""

from __future__ import annotations

import csv
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from camshaft.callbacks.arguments import check_installed
from camshaft.callbacks.loggers.csv_logger import CSVLogger
from camshaft.hooks_core.support.remote_files import absolute, exists, join, local_copy, replace_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Curve = tuple[list[float], list[float]]
"""Steps, and the values at them."""

_STAGES = re.compile(r"^(train|val|valid|validation|test)[_/]|[_/](train|val|valid|validation|test)$")
_ENDINGS = re.compile(r"_(step|epoch)$")
_NUM_COLUMNS = 3


_ONE_VALUE = "one value so far: a curve needs a second (train longer, or lower `log_every_n_steps`)"


class CurveReport(CSVLogger):
    """Draws the logged metrics when a verb ends: `<save_dir>/curves.png`, and a picture per metric.

    Metrics whose names differ only by stage ("train_loss", "val_loss", "loss_step") share a picture. The numbers are in
    `metrics.csv` beside the pictures; a run that is resumed in the same folder continues the curves, one that starts
    again replaces them. Needs matplotlib (the extra `camshaft-callbacks[plot]`).

    Args:
        save_dir: The folder, or its URL.

    Raises:
        ModuleNotFoundError: If matplotlib is not installed.
    """

    OVERVIEW: ClassVar[str] = "curves.png"

    def __init__(self, save_dir: str | os.PathLike[str]) -> None:
        super().__init__(save_dir, name="", version="")
        check_installed("matplotlib", "plot", self)
        self._is_drawn = True

    @property
    def log_dir(self) -> str:
        """The folder."""
        return absolute(self.save_dir)

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Add a row, as `CSVLogger` does."""
        super().log_metrics(metrics, step)
        self._is_drawn = False

    def finalize(self, status: str) -> None:
        """Write the buffered rows, and draw if there were metrics since the last time."""
        super().finalize(status)
        path = join(self.log_dir, self.METRICS_FILE)
        if self._is_drawn or not exists(path):
            return
        self._is_drawn = True
        with local_copy(path) as file:
            pictures = _group_by_picture(read_curves(file))
        if not pictures:
            return
        _draw(join(self.log_dir, self.OVERVIEW), pictures)
        taken = {self.OVERVIEW}
        for name, curves in pictures.items():
            file_name = re.sub(r"[^\w.-]+", "_", name)
            while f"{file_name}.png" in taken:
                file_name += "_"
            taken.add(f"{file_name}.png")
            _draw(join(self.log_dir, f"{file_name}.png"), {name: curves})


def read_curves(path: Path) -> dict[str, Curve]:
    """Return the curves in the file of a `CSVLogger`, by metric, without rows that have no step.

    Where steps start again, at a resume or a new start, values of the same and later steps are dropped.
    """
    values: dict[str, dict[float, float]] = {}
    last = -math.inf
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if not row["step"]:
                continue
            step = float(row.pop("step"))
            if step < last:
                values = {name: {at: y for at, y in curve.items() if at < step} for name, curve in values.items()}
            last = step
            for name, text in row.items():
                if text:
                    values.setdefault(name, {})[step] = float(text)
    return {name: (list(curve), list(curve.values())) for name, curve in values.items() if curve}


def _group_by_picture(curves: Mapping[str, Curve]) -> dict[str, dict[str, Curve]]:
    pictures: dict[str, dict[str, Curve]] = {}
    for name, curve in curves.items():
        if name == "epoch":
            continue  # a straight line in every run
        shared = _STAGES.sub("", _ENDINGS.sub("", name)) or name
        pictures.setdefault(shared, {})[name] = curve
    return dict(sorted(pictures.items()))


def _draw(path: str, pictures: Mapping[str, Mapping[str, Curve]]) -> None:
    """Draw pictures side by side into a file, which is replaced atomically."""
    from matplotlib.figure import Figure

    num_columns = min(_NUM_COLUMNS, len(pictures))
    num_rows = -(-len(pictures) // num_columns)
    figure = Figure(figsize=(5.5 * num_columns, 3.6 * num_rows), layout="constrained")
    grid: Any = figure.subplots(num_rows, num_columns, squeeze=False)
    axes: Sequence[Axes] = list(grid.flat)
    for one, (name, curves) in zip(axes, pictures.items(), strict=False):
        _draw_curves(one, name, curves)
    for one in axes[len(pictures) :]:
        one.set_axis_off()
    with replace_file(path) as fresh:
        figure.savefig(fresh, format="png", dpi=110)


def _draw_curves(axes: Axes, title: str, curves: Mapping[str, Curve]) -> None:
    for name, (steps, values) in curves.items():
        marker = "o" if len(steps) <= 30 else None
        axes.plot(steps, values, label=name, marker=marker, markersize=3, linewidth=1.4)
    axes.set_title(title if len(curves) > 1 else next(iter(curves)), fontsize=11)
    axes.set_xlabel("update")
    axes.locator_params(axis="x", integer=True)
    axes.grid(alpha=0.3)
    if all(len(steps) == 1 for steps, _ in curves.values()):
        axes.text(0.5, 0.06, _ONE_VALUE, transform=axes.transAxes, ha="center", fontsize=8, color="0.4")
    if _spans_magnitudes(value for _, values in curves.values() for value in values):
        axes.set_yscale("log")
    if len(curves) > 1:
        axes.legend(fontsize=8)


def _spans_magnitudes(values: Iterable[float]) -> bool:
    """Return whether values are positive and so far apart that a linear axis would show only the largest."""
    finite = [value for value in values if math.isfinite(value)]
    return len(finite) > 1 and min(finite) > 0 and max(finite) / min(finite) > 300

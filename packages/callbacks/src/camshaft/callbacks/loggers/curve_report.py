"""Curves of everything that is logged, as pictures."""

from __future__ import annotations

import csv
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from camshaft.callbacks.loggers.csv_logger import CSVLogger
from camshaft.hooks_core.durable_paths import written_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Curve = tuple[list[float], list[float]]
"""Steps, and the values at these."""

_STAGES = re.compile(r"^(train|val|valid|validation|test)[_/]|[_/](train|val|valid|validation|test)$")
_ENDINGS = re.compile(r"_(step|epoch)$")
_NUM_COLUMNS = 3


class CurveReport(CSVLogger):
    """A logger that draws what it was given when a verb ends: `<save_dir>/curves.png`, and a picture per metric.

    Metrics whose names differ by their stage alone ("train_loss", "val_loss", "loss_step") share a picture. The numbers
    are in `metrics.csv` beside them; a run that goes on in the same folder goes on with the curves, and one that begins
    again replaces them. matplotlib draws (the extra `camshaft-callbacks[plot]`).

    Args:
        save_dir: The folder.

    Raises:
        ModuleNotFoundError: If matplotlib is not installed.
    """

    OVERVIEW: ClassVar[str] = "curves.png"

    def __init__(self, save_dir: str | os.PathLike[str]) -> None:
        super().__init__(save_dir, name="", version="")
        try:
            import matplotlib  # noqa: F401  (to say so before anything is trained)
        except ModuleNotFoundError as error:
            message = "CurveReport needs matplotlib. Install the extra: camshaft-callbacks[plot]."
            raise ModuleNotFoundError(message, name=error.name) from error

    @property
    def log_dir(self) -> str:
        """The folder."""
        return os.path.abspath(self.save_dir)

    def finalize(self, status: str) -> None:
        """Write what is held back, and draw."""
        super().finalize(status)
        path = Path(self.log_dir, self.METRICS_FILE)
        pictures = _by_picture(read_curves(path)) if path.exists() else {}
        if not pictures:
            return
        _draw(Path(self.log_dir, self.OVERVIEW), pictures)
        taken = {self.OVERVIEW}
        for name, curves in pictures.items():
            file_name = re.sub(r"[^\w.-]+", "_", name)
            while f"{file_name}.png" in taken:
                file_name += "_"
            taken.add(f"{file_name}.png")
            _draw(Path(self.log_dir, f"{file_name}.png"), {name: curves})


def read_curves(path: Path) -> dict[str, Curve]:
    """The curves of a file that a `CSVLogger` wrote, by metric, rows without a step left out.

    Where steps begin again, at a resume or a new start, what was written of the same and of later steps is dropped.
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


def _by_picture(curves: Mapping[str, Curve]) -> dict[str, dict[str, Curve]]:
    pictures: dict[str, dict[str, Curve]] = {}
    for name, curve in curves.items():
        if name == "epoch":
            continue  # a straight line in every run
        shared = _STAGES.sub("", _ENDINGS.sub("", name)) or name
        pictures.setdefault(shared, {})[name] = curve
    return dict(sorted(pictures.items()))


def _draw(path: Path, pictures: Mapping[str, Mapping[str, Curve]]) -> None:
    """Draw pictures side by side into a file, which is whole at every moment."""
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
    with written_whole(path) as fresh:
        figure.savefig(fresh, format="png", dpi=110)


def _draw_curves(axes: Axes, title: str, curves: Mapping[str, Curve]) -> None:
    for name, (steps, values) in curves.items():
        marker = "o" if len(steps) <= 30 else None
        axes.plot(steps, values, label=name, marker=marker, markersize=3, linewidth=1.4)
    axes.set_title(title if len(curves) > 1 else next(iter(curves)), fontsize=11)
    axes.set_xlabel("update")
    axes.grid(alpha=0.3)
    if _spans_magnitudes(value for _, values in curves.values() for value in values):
        axes.set_yscale("log")
    if len(curves) > 1:
        axes.legend(fontsize=8)


def _spans_magnitudes(values: Iterable[float]) -> bool:
    """Whether values are positive and so far apart that a linear axis would show the largest alone."""
    finite = [value for value in values if math.isfinite(value)]
    return len(finite) > 1 and min(finite) > 0 and max(finite) / min(finite) > 300

"""Settings of the tutorials that Sphinx-Gallery makes: their order, the look of their pictures, their footer."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import matplotlib as mpl
import torch
from cycler import cycler
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

GALLERY = "tutorials"
READING_ORDER = (
    "callback",
    "logging_and_metrics",
    "custom_evaluation",
    "k_fold",
    "command_line",
    "stop_and_resume",
    "truncated_backpropagation",
    "two_processes",
    "nan_and_spikes",
    "find_what_is_slow",
    "own_loop",
    "own_strategy",
    "file_of_2019",
)
GREY = "#808080"  # on white and on furo's black it has a contrast of about 4
STYLE: dict[str, Any] = {
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "savefig.transparent": True,
    "text.color": GREY,
    "axes.labelcolor": GREY,
    "axes.edgecolor": GREY,
    "axes.titlecolor": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "grid.color": GREY,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.prop_cycle": cycler(color=["#3b82f6", "#f97316", "#10a37f", "#a855f7", "#ef4444"]),
    "font.size": 11,
    "figure.dpi": 110,
    "savefig.dpi": 110,
}


def prepare(gallery_conf: dict[str, Any], fname: str) -> None:
    """Set what the output of a program depends on, before each.

    Colours of pictures are read on light and on dark pages, torch computes in one thread, and warnings come without the
    path of this machine.
    """
    mpl.rcdefaults()
    mpl.use("Agg")
    mpl.rcParams.update(STYLE)
    torch.set_num_threads(1)
    warnings.formatwarning = _without_path


def _without_path(message: Warning | str, category: type[Warning], *place: Any, **named: Any) -> str:
    return f"{category.__name__}: {message}\n"


class ReadingOrder:
    """The place of a program among the tutorials."""

    def __init__(self, src_dir: str) -> None:
        pass

    def __call__(self, filename: str) -> int:
        """Return the place.

        Raises:
            ExtensionError: if `READING_ORDER` does not have it.
        """
        name = Path(filename).stem
        if name not in READING_ORDER:
            raise ExtensionError(f"READING_ORDER in {__file__} lacks the tutorial {name!r}. Add it at its place.")
        return READING_ORDER.index(name)


ZIP_DOWNLOAD = re.compile(
    r"^ *\.\. container:: sphx-glr-download sphx-glr-download-zip\n\s*:download:.*\n", re.MULTILINE
)


def remove_archives(app: Sphinx, docname: str, source: list[str]) -> None:
    """Remove the link to a .zip that holds nothing but the program, which no setting of Sphinx-Gallery leaves out."""
    if docname.startswith(f"{GALLERY}/"):
        source[0] = ZIP_DOWNLOAD.sub("", source[0])


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the functions of this file."""
    app.connect("source-read", remove_archives)
    app.add_css_file("tutorials.css", priority=900)  # after that of Sphinx-Gallery
    return {"parallel_read_safe": True, "parallel_write_safe": True}

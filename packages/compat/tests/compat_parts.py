"""The parts of the other packages' tests, such that they run modules of any era."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import bare_parts
import trainer_parts

from camshaft.compat import Trainer, TrainingModule
from camshaft.compat.eras import extend


class BareTrainer(bare_parts.BareTrainer):
    """The trainer of the loops' tests, with all that runs eras put on each run."""

    extend = staticmethod(extend)


class Regression(TrainingModule, trainer_parts.Regression):
    """See `trainer_parts.Regression`."""


def quiet_trainer(root: Path | str, **arguments: Any) -> Trainer:
    """A trainer without logger, checkpoints and progress bar, unless they are asked for."""
    defaults = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "max_epochs": 1}
    return Trainer(default_root_dir=root, **{**defaults, **arguments})

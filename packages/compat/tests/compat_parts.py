"""The regression of the trainer's tests as a module of any era, and trainers that run it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import trainer_parts

from camshaft.compat import Trainer, TrainingModule


class Regression(TrainingModule, trainer_parts.Regression):
    """See `trainer_parts.Regression`."""


def quiet_trainer(root: Path | str, **arguments: Any) -> Trainer:
    """A trainer without logger, checkpoints and progress bar, unless they are asked for."""
    defaults = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "max_epochs": 1}
    return Trainer(default_root_dir=root, **{**defaults, **arguments})

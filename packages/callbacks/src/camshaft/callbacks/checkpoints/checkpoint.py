"""Base class of callbacks that save checkpoints."""

from __future__ import annotations

from typing import ClassVar

from camshaft.hooks_core import Callback


class Checkpoint(Callback):
    """Base class of callbacks that save checkpoints by `trainer.save_checkpoint`; `ModelCheckpoint` is the stock one.

    A trainer adds no `ModelCheckpoint` beside one of a subclass, and lists it in `checkpoint_callbacks`. It runs after
    the module at the end of a training epoch.

    Attributes:
        dirpath: Folder of the checkpoints, if there is one.
        best_model_path: Path of the best checkpoint, which `ckpt_path="best"` stands for; "" if there is none.
    """

    only_observes = True
    monitors: ClassVar[bool] = True
    dirpath: str | None = None
    best_model_path: str = ""

"""Loggers under the names of `lightning.fabric.loggers`, whose first argument is `root_dir`.

They have the folder under `save_dir`; their attribute `root_dir` is the folder of the experiment in it, as in loggers
of the trainer.
"""

from __future__ import annotations

import os
from typing import Any

from camshaft.compat.names.trainer import loggers

_Path = str | os.PathLike[str]


class FabricCSVLogger(loggers.CSVLogger, loggers.FabricLogger):
    """`camshaft.callbacks.CSVLogger`.

    Args:
        root_dir: The folder of all experiments.
        name: As there; the default is that of Lightning.
        args: Further arguments, as there.
        kwargs: Likewise.
    """

    def __init__(self, root_dir: _Path, name: str | None = "lightning_logs", *args: Any, **kwargs: Any) -> None:
        super().__init__(root_dir, name, *args, **kwargs)


class FabricTensorBoardLogger(loggers.TensorBoardLogger, loggers.FabricLogger):
    """`camshaft.callbacks.TensorBoardLogger`.

    Args:
        root_dir: The folder of all experiments.
        name: As there; the default is that of Lightning.
        version: As there.
        args: `default_hp_metric`, `prefix` and `sub_dir`, as there.
        kwargs: Likewise, and arguments of `SummaryWriter`.
    """

    def __init__(
        self, root_dir: _Path, name: str | None = "lightning_logs", version: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        super().__init__(root_dir, name, version, False, *args, **kwargs)

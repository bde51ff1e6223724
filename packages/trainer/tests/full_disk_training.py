"""Trains until a checkpoint cannot be written any more, and reports what is remembered then."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

from trainer_parts import Regression, loader, quiet_trainer

from camshaft.callbacks import ModelCheckpoint
from camshaft.hooks_core import Callback
from camshaft.strategies import SingleDeviceStrategy


class Full(Callback):
    """Lets no file grow beyond a limit from an epoch on, once the earlier checkpoints are written."""

    def __init__(self, epoch: int, limit: int) -> None:
        self.epoch, self.limit = epoch, limit

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        if trainer.current_epoch == self.epoch:
            trainer.current_run.finish_saving()
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.limit, resource.RLIM_INFINITY))


class Falling(Regression):
    """Its score is better from epoch to epoch."""

    def on_train_epoch_end(self) -> None:
        self.log("score", -float(self.current_epoch))


def main(folder: str, kind: str, epoch: int, limit: int, options: dict[str, Any]) -> None:
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    checkpoint = ModelCheckpoint(f"{folder}/kept", "{epoch}", "score", **options)
    strategy = SingleDeviceStrategy("cpu", save_asynchronously=kind == "async")
    trainer = quiet_trainer(
        folder, callbacks=[checkpoint, Full(epoch, limit)], enable_checkpointing=True, max_epochs=5, strategy=strategy
    )
    raised: dict[str, Any] = {}
    try:
        trainer.fit(Falling(), loader(2))
    except OSError as error:
        raised = {"errno": error.errno, "filename": str(error.filename)}
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    files = {str(path): os.path.realpath(path) for path in Path(folder, "kept").iterdir()}
    memory = {
        "best": checkpoint.best_model_path,
        "last": checkpoint.last_model_path,
        "kept": {path: float(score) for path, score in checkpoint.best_k_models.items()},
        "kth": checkpoint.kth_best_model_path,
        "best score": None if checkpoint.best_model_score is None else float(checkpoint.best_model_score),
    }
    print(json.dumps({"raised": raised, "files": sorted(files), "memory": memory}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), json.loads(sys.argv[5]))
